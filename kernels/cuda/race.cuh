// Races of exponentials over a row of logits, by chunks; ../cpu/sample.h says what they are. No
// sums, so no order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/coupled.h"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/summary.cuh"
#include "kernels/distribution.h"
#include "kernels/math_f64.h"
#include "kernels/randomness.h"

namespace outrider::cuda {

// The first of a warp's runners; lane 0 gets it.
__device__ inline Runner warp_first(Runner mine) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Runner other{__shfl_down_sync(kAllLanes, mine.time, distance),
                       __shfl_down_sync(kAllLanes, mine.token, distance),
                       __shfl_down_sync(kAllLanes, mine.logit, distance)};
    mine = first_of(mine, other);
  }
  return mine;
}

// The first of a block's; every thread gets it.
__device__ inline Runner block_first(Runner mine) {
  __shared__ Runner of_warps[kMaxWarps];
  mine = warp_first(mine);
  __syncthreads();  // the call before is over
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = mine;
  __syncthreads();
  Runner first = of_warps[0];
  for (unsigned w = 1; w < blockDim.x / kWarp; ++w) first = first_of(first, of_warps[w]);
  return first;
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

// Tokens [begin, end) of the row's shard, a block together. A thread takes four neighbours at a
// time, since they share a call of Philox.
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
      const auto token = static_cast<uint32_t>(row.first_token + i);
      const double u = race_uniform(
          words[word], [&] { return random_word(key, offset, refined(purpose), token); });
      // E = -log(1 - u) > u: who cannot win needs no logarithm; nor does who has no weight.
      if (!(u * (1.0 - 0x1p-40) < best.time * w)) continue;
      const double time = neg_log1p_f64(u) / w;
      if (time < best.time) best = {time, static_cast<int32_t>(token), row.p_logits[i]};
    }
  }
  return block_first(best);
}

// The same of a coupled row. key: coupled_key of it.
__device__ inline Runner coupled_chunk(const RaceRow& row, const RandomKey& key, int64_t begin,
                                       int64_t end) {
  const double per = per_temperature(row.p.temperature);
  Runner best = kNobody;
  const int64_t first = row.first_token + begin;
  for (int64_t group = first / 4 + threadIdx.x; 4 * group < row.first_token + end;
       group += blockDim.x) {
    const auto words =
        philox4x32(philox_counter(key, 0, Purpose::coupled, static_cast<uint32_t>(4 * group)),
                   philox_key(key));
    for (int word = 0; word < 4; ++word) {
      const int64_t i = 4 * group + word - row.first_token;
      if (i < begin || i >= end) continue;
      const float logit = row.p_logits[i];
      const auto token = static_cast<int32_t>(row.first_token + i);
      const double u = race_uniform(words[word], [&] {
        return random_word(key, 0, Purpose::coupled_refined, static_cast<uint32_t>(token));
      });
      const double pace = logit * per;
      if (!(coupled_time_bound(u, pace) < best.time) || !is_kept(row.p, logit, token)) continue;
      const double time = coupled_time(u, pace);
      if (time < best.time) best = {time, token, logit};
    }
  }
  return block_first(best);
}

}  // namespace outrider::cuda
