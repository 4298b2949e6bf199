// See auth_tokens.h.
#include "server/auth_tokens.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_split.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "server/secret_file.h"

namespace outrider {
namespace {

constexpr char kScheme[] = "Bearer ";

// b64token of RFC 6750, section 2.1.
bool is_token_character(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         std::string_view("-._~+/=").find(c) != std::string_view::npos;
}

std::array<uint8_t, 32> sha256(std::string_view text) {
  std::array<uint8_t, 32> digest;
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), digest.data());
  return digest;
}

}  // namespace

std::vector<std::string> read_token_file(const std::string& path) {
  const std::string flag = "--auth-token-file " + path;
  std::vector<std::string> tokens;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(read_small_file(flag, path), '\n')) {
    ++number;
    const absl::string_view token = absl::StripAsciiWhitespace(line);
    if (token.empty() || token[0] == '#') continue;
    if (!std::all_of(token.begin(), token.end(), is_token_character)) {
      throw Error(flag + ", line " + std::to_string(number) +
                  ": is no token; expected letters, digits and - . _ ~ + / = alone");
    }
    tokens.emplace_back(token);
  }
  if (tokens.empty()) throw Error(flag + " holds no token; expected one a line");
  warn_if_world_readable(flag, path);
  return tokens;
}

TokenCheck::TokenCheck(const std::vector<std::string>& tokens) {
  for (const std::string& token : tokens) digests_.push_back(sha256(token));
}

std::optional<uint64_t> TokenCheck::tenant(std::string_view authorization) const {
  if (digests_.empty()) return 0;
  const size_t scheme_length = sizeof kScheme - 1;
  const absl::string_view scheme(authorization.data(),
                                 std::min(authorization.size(), scheme_length));
  if (!absl::EqualsIgnoreCase(scheme, kScheme)) return std::nullopt;
  const auto presented = sha256(authorization.substr(scheme_length));
  bool known = false;
  for (const auto& digest : digests_) {  // all of them, whichever it is
    known |= CRYPTO_memcmp(digest.data(), presented.data(), digest.size()) == 0;
  }
  if (!known) return std::nullopt;
  uint64_t tenant = 0;
  std::memcpy(&tenant, presented.data(), sizeof tenant);
  return tenant;
}

}  // namespace outrider
