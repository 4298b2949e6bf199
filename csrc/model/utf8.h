// UTF-8: cutting bytes into characters and into what is none.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace outrider {

enum class Utf8 { kCharacter, kIncomplete, kInvalid };

struct Utf8Piece {
  Utf8 kind;
  size_t bytes;  // 1 .. 4
};

// The first piece of non-empty `bytes`: a character; all that is left, where more bytes could make
// it one; or a maximal ill-formed part, which stands for one U+FFFD (Unicode 16, section 3.9,
// "U+FFFD Substitution of Maximal Subparts").
Utf8Piece first_utf8_piece(std::string_view bytes);

bool is_valid_utf8(std::string_view bytes);

// Appends the whole pieces of `bytes` to `text`, ill-formed parts as U+FFFD. Returns how many bytes
// at the end are the beginning of a character, and were not appended: 0 .. 3.
size_t append_utf8(std::string_view bytes, std::string* text);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace outrider
