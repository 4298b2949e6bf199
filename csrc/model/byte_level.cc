#include "model/byte_level.h"

namespace outrider {
namespace {

// Printable Latin-1 stands for itself; the other 68 bytes are U+0100 and up, in order.
bool stands_for_itself(int byte) {
  return (0x21 <= byte && byte <= 0x7E) || (0xA1 <= byte && byte <= 0xFF && byte != 0xAD);
}

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int, 0x144> bytes;  // of each code point, -1 where it has none

  Alphabet() {
    bytes.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const int character = stands_for_itself(byte) ? byte : next++;
      bytes[character] = byte;
      characters[byte] = character < 0x80
                             ? std::string{static_cast<char>(character)}
                             : std::string{static_cast<char>(0xC0 | character >> 6),
                                           static_cast<char>(0x80 | (character & 0x3F))};
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

const std::array<std::string, 256>& byte_level_alphabet() { return alphabet().characters; }

std::optional<std::string> undo_byte_level(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t i = 0; i < token.size(); ++i) {
    unsigned character = static_cast<uint8_t>(token[i]);
    if (character >= 0x80) {
      if (character >= 0xE0 || i + 1 == token.size()) return std::nullopt;
      character = (character & 0x1F) << 6 | (static_cast<uint8_t>(token[++i]) & 0x3F);
    }
    if (character >= alphabet().bytes.size() || alphabet().bytes[character] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(alphabet().bytes[character]));
  }
  return bytes;
}

}  // namespace outrider
