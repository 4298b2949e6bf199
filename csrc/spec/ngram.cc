#include <algorithm>
#include <array>
#include <vector>

#include "spec/copy_drafters.h"

namespace outrider {

namespace {

constexpr int kOrder = 3;  // tokens of the longest run that is counted

struct Count {
  int32_t token;
  int count;
};

// What follows the runs of tokens that end like `last` (newest first, `size` of them): of the
// longest such runs alone.
class Followers {
 public:
  // at: the last place of last[0] that something follows, or -1.
  Followers(std::span<const int32_t> tokens, const TokenIndex& index, int64_t at,
            const std::array<int32_t, kOrder>& last, int size) {
    for (int place = 0; place < kMostPlaces && at >= 0; ++place, at = index.before(at)) {
      int match = 1;
      while (match < size && match <= at && tokens[at - match] == last[match]) ++match;
      if (match < order_) continue;
      if (match > order_) counts_.clear();
      order_ = match;
      count(tokens[at + 1]);
    }
  }

  int order() const { return order_; }  // of those runs; 0: there are none
  // The most frequent one; among equals the one that came last.
  int32_t best() const {
    return std::max_element(counts_.begin(), counts_.end(),
                            [](const Count& a, const Count& b) { return a.count < b.count; })
        ->token;
  }

 private:
  void count(int32_t token) {
    auto at = std::find_if(counts_.begin(), counts_.end(),
                           [&](const Count& c) { return c.token == token; });
    if (at == counts_.end()) at = counts_.insert(at, {token, 0});
    ++at->count;
  }

  int order_ = 0;
  std::vector<Count> counts_;  // those that came later first
};

}  // namespace

CopiedDraft ngram(std::span<const int32_t> tokens, const TokenIndex& index, int k) {
  CopiedDraft draft;
  if (tokens.empty()) return draft;
  std::array<int32_t, kOrder> last{};
  int size = 0;
  for (; size < kOrder && size < static_cast<int>(tokens.size()); ++size) {
    last[size] = tokens[tokens.size() - 1 - size];
  }
  int64_t at = index.before(index.size() - 1);
  while (static_cast<int>(draft.tokens.size()) < k) {
    const Followers followers(tokens, index, at, last, size);
    if (followers.order() == 0) break;
    if (draft.tokens.empty()) draft.matched = followers.order();
    draft.tokens.push_back(followers.best());
    std::copy_backward(last.begin(), last.end() - 1, last.end());
    last[0] = draft.tokens.back();
    size = std::min(size + 1, kOrder);
    at = index.last(last[0]);
    if (at == index.size() - 1) at = index.before(at);  // nothing follows the last one yet
  }
  return draft;
}

}  // namespace outrider
