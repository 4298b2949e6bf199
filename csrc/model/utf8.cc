#include "model/utf8.h"

#include <cstdint>

namespace outrider {

Utf8Piece first_utf8_piece(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Utf8::kCharacter, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8::kInvalid, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range keeps out overlong forms, surrogates and what is past U+10FFFF.
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i, low = 0x80, high = 0xBF) {
    if (i == bytes.size()) return {Utf8::kIncomplete, i};
    if (byte(i) < low || byte(i) > high) return {Utf8::kInvalid, i};
  }
  return {Utf8::kCharacter, length};
}

bool is_valid_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Piece piece = first_utf8_piece(bytes);
    if (piece.kind != Utf8::kCharacter) return false;
    bytes.remove_prefix(piece.bytes);
  }
  return true;
}

size_t append_utf8(std::string_view bytes, std::string* text) {
  while (!bytes.empty()) {
    const Utf8Piece piece = first_utf8_piece(bytes);
    if (piece.kind == Utf8::kIncomplete) break;
    text->append(piece.kind == Utf8::kCharacter ? bytes.substr(0, piece.bytes)
                                                : kReplacementCharacter);
    bytes.remove_prefix(piece.bytes);
  }
  return bytes.size();
}

}  // namespace outrider
