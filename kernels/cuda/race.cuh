// A race of exponentials over a row of logits, by chunks; ../cpu/sample.h says what it is. No sums,
// so no order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/summary.cuh"
#include "kernels/distribution.h"
#include "kernels/math_f64.h"
#include "kernels/randomness.h"

namespace outrider::cuda {

struct Runner {
  double time;
  int32_t token;
  float logit;
};

constexpr Runner kNobody{std::numeric_limits<double>::infinity(), -1, 0.0f};

// The earlier one, then the smaller token.
__device__ inline Runner first_of(const Runner& a, const Runner& b) {
  if (a.time != b.time) return a.time < b.time ? a : b;
  return static_cast<uint32_t>(a.token) <= static_cast<uint32_t>(b.token) ? a : b;
}

// What a token's weight in a race is made of.
__device__ inline double race_weight(const RaceRow& row, int32_t i, double p_scale,
                                     double q_scale) {
  const int32_t token = row.first_token + i;
  if (token == row.excluded) return 0.0;
  const double p = kept_exp(row.p, row.p_logits[i], token) * p_scale;
  if (row.q_logits == nullptr) return p;
  const double left = p - kept_exp(row.q, row.q_logits[i], token) * q_scale;
  return left > 0.0 ? left : 0.0;
}

// Tokens [begin, end) of the row's shard, a block together; thread 0 gets the winner. A thread
// takes four neighbours at a time, since they share a call of Philox.
__device__ inline Runner race_chunk(const RaceRow& row, const RandomKey& key, int offset,
                                    Purpose purpose, int64_t begin, int64_t end) {
  const double p_scale = 1.0 / row.p.sum, q_scale = 1.0 / row.q.sum;  // as in probability()
  Runner best = kNobody;
  const int64_t first = row.first_token + begin;
  for (int64_t group = first / 4 + threadIdx.x; 4 * group < row.first_token + end;
       group += blockDim.x) {
    const auto words = philox4x32(
        philox_counter(key, offset, purpose, static_cast<uint32_t>(4 * group)), philox_key(key));
    for (int word = 0; word < 4; ++word) {
      const int64_t i = 4 * group + word - row.first_token;
      if (i < begin || i >= end) continue;
      const double w = race_weight(row, static_cast<int32_t>(i), p_scale, q_scale);
      const uint32_t k = words[word];
      double u = (static_cast<double>(k) + 0.5) * 0x1p-32;
      const auto token = static_cast<uint32_t>(row.first_token + i);
      if (k < kRefineBelow) {
        const uint64_t second = random_word(key, offset, refined(purpose), token);
        u = (static_cast<double>(uint64_t{k} << 32 | second) + 0.5) * 0x1p-64;
      }
      // E = -log(1 - u) > u: who cannot win needs no logarithm; nor does who has no weight.
      if (!(u * (1.0 - 0x1p-40) < best.time * w)) continue;
      const double time = neg_log1p_f64(u) / w;
      if (time < best.time) best = {time, static_cast<int32_t>(token), row.p_logits[i]};
    }
  }
  __shared__ Runner of_threads[kChunkThreads];
  __syncthreads();  // the call before is over
  of_threads[threadIdx.x] = best;
  __syncthreads();
  for (unsigned width = blockDim.x / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) {
      of_threads[threadIdx.x] = first_of(of_threads[threadIdx.x], of_threads[threadIdx.x + width]);
    }
    __syncthreads();
  }
  return of_threads[0];
}

}  // namespace outrider::cuda
