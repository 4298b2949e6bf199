// See greedy_check.h.
#include "launcher/loadtest/greedy_check.h"

#include <algorithm>
#include <map>

namespace outrider {
namespace {

constexpr int64_t kSame = -1;

// The first position at which `answer` is not the longest one; kSame where there is none.
int64_t first_difference(const RequestRecord& answer, const RequestRecord& longest) {
  const auto [mine, other] = std::mismatch(answer.token_ids.begin(), answer.token_ids.end(),
                                           longest.token_ids.begin(), longest.token_ids.end());
  const bool ends_early = answer.stopped && other != longest.token_ids.end();
  if (mine == answer.token_ids.end() && !ends_early) return kSame;
  return mine - answer.token_ids.begin();
}

}  // namespace

GreedyCheck check_greedy(const std::vector<RequestRecord>& records) {
  std::map<int, const RequestRecord*> longest;  // by prompt; the first of equals
  for (const RequestRecord& record : records) {
    const RequestRecord*& best = longest.try_emplace(record.prompt, &record).first->second;
    if (record.token_ids.size() > best->token_ids.size()) best = &record;
  }
  GreedyCheck check;
  for (const RequestRecord& record : records) {
    const RequestRecord& other = *longest.at(record.prompt);
    if (&record == &other || record.token_ids.empty()) continue;
    ++check.num_compared;
    const int64_t position = first_difference(record, other);
    if (position == kSame) continue;
    check.differences.push_back({record.prompt, record.index, other.index, position});
  }
  return check;
}

}  // namespace outrider
