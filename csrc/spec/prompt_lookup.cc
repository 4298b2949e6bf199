#include <algorithm>

#include "spec/copy_drafters.h"

namespace outrider {

CopiedDraft prompt_lookup(std::span<const int32_t> tokens, const TokenIndex& index, int k) {
  constexpr int64_t kLongestMatch = 4;
  const auto length = static_cast<int64_t>(tokens.size());
  if (length == 0) return {};
  int64_t best_match = 0, best_end = 0;
  // `end`: where an earlier occurrence of the last tokens would end. Latest first, so that a tie
  // goes to it.
  int64_t at = index.before(length - 1);
  for (int place = 0; place < kMostPlaces && at >= best_match && best_match < kLongestMatch;
       ++place, at = index.before(at)) {
    const int64_t end = at + 1;
    int64_t match = 1;
    while (match < std::min(end, kLongestMatch) &&
           tokens[end - 1 - match] == tokens[length - 1 - match]) {
      ++match;
    }
    if (match > best_match) {
      best_match = match;
      best_end = end;
    }
  }
  if (best_match == 0) return {};
  // What follows reaches to the context's end, and from there is what it has just drafted.
  CopiedDraft draft{.tokens = {}, .matched = static_cast<int>(best_match)};
  const int64_t period = length - best_end;
  for (int64_t i = 0; i < k; ++i) draft.tokens.push_back(tokens[best_end + i % period]);
  return draft;
}

}  // namespace outrider
