// DrafterKind: which drafters there are, and their names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace outrider {

enum class DrafterKind : int32_t {
  none,
  prompt_lookup,
  ngram,
  random,
  model,
  head,
  bigram,
  unigram
};
constexpr int kNumDrafterKinds = static_cast<int>(DrafterKind::unigram) + 1;

// "none" for none.
std::string drafter_name(DrafterKind kind);
// nullopt: none has that name.
std::optional<DrafterKind> drafter_from_name(const std::string& name);
// All but none's, by alphabet.
std::vector<std::string> drafter_names();
// Proposes from the context, on rank 0's host: its drafts travel in the plan.
bool drafts_by_copying(DrafterKind kind);

}  // namespace outrider
