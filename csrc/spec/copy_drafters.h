// Drafters that copy from the context: on rank 0's host, so their drafts travel in the plan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "spec/drafter_kind.h"

namespace outrider {

// Where each token of a context stood before: a drafter looks at those places alone, of a context
// of thousands of tokens.
class TokenIndex {
 public:
  // tokens: what was given before, and what has come since.
  void extend(std::span<const int32_t> tokens);

  int64_t size() const { return static_cast<int64_t>(before_.size()); }
  // The last place of a token, and the one before place i of the token that stands there; none: -1.
  int64_t last(int32_t token) const;
  int64_t before(int64_t i) const { return before_[i]; }

 private:
  std::vector<int32_t> before_;  // [tokens]
  absl::flat_hash_map<int32_t, int32_t> last_;
};

// Earlier places of a token that are looked at, the latest ones: it may have thousands, and each
// sequence of each step waits while rank 0 looks.
constexpr int kMostPlaces = 256;

// What a copy drafter proposes; its q is one-hot.
struct CopiedDraft {
  std::vector<int32_t> tokens;
  int matched = 0;  // how many of the context's last tokens stood before the copied ones; 0: none
};

// Each gives k tokens, or none where nothing matches. index: of `tokens`.
//
// `prompt_lookup`: copies what followed the latest earlier occurrence of the context's last tokens
// (the longest match of at most 4; Leviathan et al. 2023, section 3.6), then that again.
CopiedDraft prompt_lookup(std::span<const int32_t> tokens, const TokenIndex& index, int k);

// `ngram`: what most often followed the context's last tokens in the context itself, of the longest
// run of at most 3 tokens that came before; then the same behind that (Leviathan et al. 2023,
// section 3.6).
CopiedDraft ngram(std::span<const int32_t> tokens, const TokenIndex& index, int k);

// Of the copy drafter `kind`.
CopiedDraft copied_draft(DrafterKind kind, std::span<const int32_t> tokens, const TokenIndex& index,
                         int k);

}  // namespace outrider
