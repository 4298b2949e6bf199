// AddedTokens: tokens that are found in the text before it is pre-tokenized (<|im_end|> and the
// like).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"

namespace outrider {

struct AddedToken {
  std::string content;  // what is looked for
  int32_t id = 0;
  bool special = false;      // not part of decoded text
  bool single_word = false;  // not where a word goes on before or behind it
  bool lstrip = false;       // swallows white space before it
  bool rstrip = false;       // swallows white space behind it
  bool normalized = false;   // looked for in normalized text
};

class AddedTokens {
 public:
  AddedTokens() : AddedTokens(std::vector<AddedToken>()) {}
  // Of two tokens with the same content the first counts. No content is empty.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // Cuts `text` at the tokens in it, the longest of those that begin leftmost, and hands over in
  // order the text between them (non-empty) and their ids, until one of the two returns false;
  // returns whether neither did.
  bool split(std::string_view text, absl::FunctionRef<bool(std::string_view)> between,
             absl::FunctionRef<bool(int32_t)> token) const;

 private:
  static constexpr int32_t kNone = -1;

  // The token that begins at text[0]; null where there is none.
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  // A trie over bytes. Node 0 is the root; the child of node n for byte b is children_[n * 256 +
  // b].
  absl::flat_hash_map<uint64_t, int32_t> children_;
  std::vector<int32_t> token_at_;  // of each node: an index into tokens_, or kNone
  std::array<bool, 256> begins_{};
};

}  // namespace outrider
