// The sum that every communicator of the host uses: fp32, in rank order.
#pragma once

#include <cstdint>

namespace outrider {

// sum[i] = ((part_0[i] + part_1[i]) + part_2[i]) + …
// parts: [ranks, n], ranks >= 2, apart from `sum`; sum: [n].
// Bound: (ranks + 1) * n * 4 bytes.
void ordered_sum(const float* parts, int ranks, int64_t n, float* sum);

}  // namespace outrider
