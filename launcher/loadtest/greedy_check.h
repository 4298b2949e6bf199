// Greedy answers to one prompt are the same, whatever else the server is doing.
#pragma once

#include <cstdint>
#include <vector>

#include "launcher/loadtest/request_record.h"

namespace outrider {

// An answer that is not what another answer to its prompt is.
struct GreedyDifference {
  int prompt;
  int64_t request, other;  // indices of the two
  int64_t position;        // of the first token that differs
};

struct GreedyCheck {
  int64_t num_compared = 0;  // answers that were held against another one
  std::vector<GreedyDifference> differences;
};

// Every answer is compared with the longest to its prompt: the shorter must be its beginning, all
// of it where the shorter came to its own end. What a failed call had already said counts too.
GreedyCheck check_greedy(const std::vector<RequestRecord>& records);

}  // namespace outrider
