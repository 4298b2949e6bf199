#include "spec/copy_drafters.h"

#include "core/error.h"

namespace outrider {

void TokenIndex::extend(std::span<const int32_t> tokens) {
  CHECK(tokens.size() >= before_.size());
  for (size_t i = before_.size(); i < tokens.size(); ++i) {
    const auto [at, is_new] = last_.try_emplace(tokens[i], -1);
    before_.push_back(at->second);
    at->second = static_cast<int32_t>(i);
  }
}

int64_t TokenIndex::last(int32_t token) const {
  const auto at = last_.find(token);
  return at == last_.end() ? -1 : at->second;
}

CopiedDraft copied_draft(DrafterKind kind, std::span<const int32_t> tokens, const TokenIndex& index,
                         int k) {
  CHECK(index.size() == static_cast<int64_t>(tokens.size()));
  if (kind == DrafterKind::ngram) return ngram(tokens, index, k);
  CHECK(kind == DrafterKind::prompt_lookup);
  return prompt_lookup(tokens, index, k);
}

}  // namespace outrider
