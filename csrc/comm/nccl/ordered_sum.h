// The sum of all ranks' parts on a GPU: the twin of ../ordered_sum.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace outrider::cuda {

// sum[i] = ((part_0[i] + part_1[i]) + part_2[i]) + …, fp32.
// parts: [ranks, n], ranks >= 2, apart from `sum`; sum: [n].
// Bound: (ranks + 1) * n * 4 bytes.
void ordered_sum(const float* parts, int ranks, int64_t n, float* sum, cudaStream_t stream);

}  // namespace outrider::cuda
