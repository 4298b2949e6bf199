// The byte-level alphabet of GPT-2 (Radford et al. 2019): in a vocabulary each byte is written as
// one printable character, a space as U+0120 for instance.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace outrider {

// The character of each byte, in UTF-8.
const std::array<std::string, 256>& byte_level_alphabet();

// The bytes that `token` stands for; nullopt where it holds a character that is not of the
// alphabet.
std::optional<std::string> undo_byte_level(std::string_view token);

}  // namespace outrider
