#include <algorithm>
#include <array>
#include <vector>

#include "spec/drafter.h"

namespace outrider {

namespace {

constexpr int kOrder = 3;  // tokens of the longest run that is counted

struct Count {
  int32_t token;
  int count;
  size_t seen_last;  // where it followed, the last time
};

// What follows the runs of tokens that end like `last` (newest first, `size` of them): of the
// longest such runs alone.
class Followers {
 public:
  Followers(std::span<const int32_t> tokens, const std::array<int32_t, kOrder>& last, int size) {
    for (size_t end = 1; end < tokens.size(); ++end) {
      if (tokens[end - 1] != last[0]) continue;
      int match = 1;
      while (match < std::min<int>(size, static_cast<int>(end)) &&
             tokens[end - 1 - match] == last[match]) {
        ++match;
      }
      if (match < order_) continue;
      if (match > order_) counts_.clear();
      order_ = match;
      count(tokens[end], end);
    }
  }

  int order() const { return order_; }  // of those runs; 0: there are none
  // The most frequent one; among equals the one that came last.
  int32_t best() const {
    return std::max_element(counts_.begin(), counts_.end(),
                            [](const Count& a, const Count& b) {
                              return a.count != b.count ? a.count < b.count
                                                        : a.seen_last < b.seen_last;
                            })
        ->token;
  }

 private:
  void count(int32_t token, size_t where) {
    auto at = std::find_if(counts_.begin(), counts_.end(),
                           [&](const Count& c) { return c.token == token; });
    if (at == counts_.end()) at = counts_.insert(at, {token, 0, 0});
    ++at->count;
    at->seen_last = where;
  }

  int order_ = 0;
  std::vector<Count> counts_;
};

}  // namespace

CopiedDraft ngram(std::span<const int32_t> tokens, int k) {
  CopiedDraft draft;
  if (tokens.empty()) return draft;
  std::array<int32_t, kOrder> last{};
  int size = 0;
  for (; size < kOrder && size < static_cast<int>(tokens.size()); ++size) {
    last[size] = tokens[tokens.size() - 1 - size];
  }
  while (static_cast<int>(draft.tokens.size()) < k) {
    const Followers followers(tokens, last, size);
    if (followers.order() == 0) break;
    if (draft.tokens.empty()) draft.matched = followers.order();
    draft.tokens.push_back(followers.best());
    std::copy_backward(last.begin(), last.end() - 1, last.end());
    last[0] = draft.tokens.back();
    size = std::min(size + 1, kOrder);
  }
  return draft;
}

}  // namespace outrider
