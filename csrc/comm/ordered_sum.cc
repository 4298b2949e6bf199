// Vectorised by the compiler, over i: the order in which an element's parts are added stays.
#include "comm/ordered_sum.h"

#include <algorithm>

namespace outrider {

void ordered_sum(const float* parts, int ranks, int64_t n, float* sum) {
  constexpr int64_t kBlock = 4096;  // `sum` stays in the first-level cache between ranks
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n);
    for (int64_t i = begin; i < end; ++i) sum[i] = parts[i] + parts[n + i];
    for (int rank = 2; rank < ranks; ++rank) {
      const float* part = parts + rank * n;
      for (int64_t i = begin; i < end; ++i) sum[i] += part[i];
    }
  }
}

}  // namespace outrider
