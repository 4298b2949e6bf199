// Bearer tokens: who may ask a server.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

// The tokens of --auth-token-file, one a line; empty lines and lines that begin with # are left
// out. Throws Error naming the file where it cannot be read, holds no token, or (with the line's
// number, never its text) one with other characters than RFC 6750 has. Warns where everybody may
// read it.
std::vector<std::string> read_token_file(const std::string& path);

// Checks what clients present. Keeps digests alone.
class TokenCheck {
 public:
  // Without tokens everybody is accepted, as one tenant.
  TokenCheck() = default;
  explicit TokenCheck(const std::vector<std::string>& tokens);

  // Whose token it is: of its digest so much as tells them apart; nullopt where it is none of them.
  // authorization: the value of that header or metadata, "Bearer TOKEN"; empty where there is none.
  // Takes as long for a wrong token as for a right one.
  std::optional<uint64_t> tenant(std::string_view authorization) const;

 private:
  std::vector<std::array<uint8_t, 32>> digests_;  // SHA-256
};

}  // namespace outrider
