// Races of exponentials over a row of logits; ../cpu/sample.h says what they are. No sums, so no
// order. What a race costs is logarithms in fp64: a warp first finds, in fp32, about when each of
// its tokens arrives, and computes exactly for those alone that may be the first, most often one.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>

#include "kernels/coupled.h"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/summary.cuh"
#include "kernels/distribution.h"
#include "kernels/math_f64.h"
#include "kernels/randomness.h"

namespace outrider::cuda {

// The first of a warp's runners; lane 0 gets it.
__device__ inline Runner warp_first(Runner mine, int count = kWarp) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    if (distance >= count) break;
    const Runner other{__shfl_down_sync(kAllLanes, mine.time, distance),
                       __shfl_down_sync(kAllLanes, mine.token, distance),
                       __shfl_down_sync(kAllLanes, mine.logit, distance)};
    if (lane + distance < count) mine = first_of(mine, other);
  }
  return mine;
}

// The first of a block's; lane 0 of every warp gets it.
__device__ inline Runner block_first(Runner mine) {
  __shared__ Runner of_warps[kMaxWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  mine = warp_first(mine);
  __syncthreads();  // the call before is over
  if (lane == 0) of_warps[threadIdx.x / kWarp] = mine;
  __syncthreads();
  return warp_first(of_warps[lane < warps ? lane : 0], warps);
}

// Element j, from registers: an index would send them to memory.
template <class Values>
__device__ inline auto pick(const Values& of, int j) {
  return j == 0 ? of[0] : j == 1 ? of[1] : j == 2 ? of[2] : of[3];
}

// When a token arrives: not before `low`, and not behind `high`. A NaN says nothing.
struct Arrival {
  float low, high;
};

constexpr float kNear = 0x1p-10f;  // more than the fp32 below errs, relatively; of a log, at all

// -log(1 - u) for u = (word + 1/2) 2^-32, within 2^-12 of it, relatively.
__device__ inline float near_exponential(uint32_t word) {
  const float u = (static_cast<float>(word) + 0.5f) * 0x1p-32f;
  const float left = (static_cast<float>(~word) + 0.5f) * 0x1p-32f;  // 1 - u
  return u < 0x1p-5f ? u + u * u * (0.5f + u * 0.33333333f) : -__logf(left);
}

// Of a word below kRefineBelow no more is known than that u is below (word + 1) 2^-32.
__device__ inline Arrival arrival(uint32_t word, double weight) {
  constexpr float kLeast = 0x1p-100f;
  const auto w = static_cast<float>(weight);
  const float time = near_exponential(word) / (w < kLeast ? kLeast : w);
  const bool refined = word < kRefineBelow;
  return {refined ? 0.0f : time * (1.0f - kNear),
          w < kLeast ? kInfinity : time * (1.0f + kNear) * (refined ? 2.0f : 1.0f)};
}

__device__ inline Arrival coupled_arrival(uint32_t word, float logit, float per) {
  const float pace = logit * per;
  if (pace < -0x1p100f) return {0x1p99f, kInfinity};
  const float time = __logf(near_exponential(word)) - pace;
  const float error = kNear + fabsf(pace) * 0x1p-20f;
  const bool refined = word < kRefineBelow;
  return {refined ? -kInfinity : time - error, time + error + (refined ? 0.7f : 0.0f)};
}

// A race as a warp sees it.
struct Race {
  Runner best = kNobody;    // of this lane's tokens
  float bound = kInfinity;  // the same in all lanes: who arrives later has not won

  // Takes a group in, of which the bits of `there` take part. exact(j): token j of it. All lanes
  // call.
  template <class Exact>
  __device__ void enter(const Arrival (&arrivals)[kGroup], unsigned there, const Exact& exact) {
    float first = bound;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if ((there >> j & 1) != 0 && arrivals[j].high < first) first = arrivals[j].high;
    }
    bound = logit_of_key(__reduce_min_sync(kAllLanes, order_key(first)));
    unsigned left = 0;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if ((there >> j & 1) != 0 && !(arrivals[j].low > bound)) left |= 1u << j;
    }
#pragma unroll 1
    while (left != 0) {
      const int j = __ffs(static_cast<int>(left)) - 1;
      left &= left - 1;
      best = first_of(best, exact(j));
    }
  }
};

// What all words of a group are drawn with.
struct GroupDraw {
  const RandomKey& key;
  int offset;
  Purpose purpose;
  uint32_t token;  // the group's first: a multiple of kGroup

  __device__ std::array<uint32_t, kGroup> words(Purpose of) const {
    return philox4x32(philox_counter(key, offset, of, token), philox_key(key));
  }
  __device__ double uniform(const std::array<uint32_t, kGroup>& words, int j) const {
    return race_uniform(pick(words, j), [&] { return pick(this->words(refined(purpose)), j); });
  }
};

// A group of tokens that arrive at E / weight; there: those of some weight. Registers are few: the
// race knows no logits.
__device__ inline void enter_group(Race& race, const GroupDraw& draw, unsigned there,
                                   const double (&weights)[kGroup]) {
  const auto words = draw.words(draw.purpose);
  Arrival arrivals[kGroup];
#pragma unroll
  for (int j = 0; j < kGroup; ++j) arrivals[j] = arrival(words[j], weights[j]);
  race.enter(arrivals, there, [&](int j) {
    const double time = neg_log1p_f64(draw.uniform(words, j)) / pick(weights, j);
    return Runner{time, static_cast<int32_t>(draw.token) + j, 0.0f};
  });
}

// A group of a coupled row. logits, loaded: its logits; who may win reads its own again.
__device__ inline void enter_coupled_group(Race& race, const GroupDraw& draw, unsigned there,
                                           const float* logits, const float (&loaded)[kGroup],
                                           double per) {
  const auto words = draw.words(draw.purpose);
  Arrival arrivals[kGroup];
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    arrivals[j] = coupled_arrival(words[j], loaded[j], static_cast<float>(per));
  }
  race.enter(arrivals, there, [&](int j) {
    const double time = coupled_time(draw.uniform(words, j), logits[j] * per);
    return Runner{time, static_cast<int32_t>(draw.token) + j, logits[j]};
  });
}

// The tokens of a group that a shard has, a bit each.
__device__ inline unsigned group_bits(int32_t size, int32_t first) {
  unsigned bits = 0;
#pragma unroll
  for (int j = 0; j < kGroup; ++j) bits |= has_token(size, first + j) ? 1u << j : 0u;
  return bits;
}

// exp(below / temperature), without a division where that is all the same.
__device__ inline float exp_of(float below, float temperature) {
  return exp_f32(temperature == 1.0f ? below : below / temperature);
}

// kept_exp with it.
__device__ inline float kept_exp_of(const RowDistribution& row, float logit, int32_t token) {
  return is_kept(row, logit, token) ? exp_of(logit - row.max, row.temperature) : 0.0f;
}

// The first of a whole row's tokens [begin, begin + count) that p keeps, by a block together; lane
// 0 of every warp gets it. begin: of a group. key: coupled_key of the row. purpose: coupled, or
// coupled_purpose of a draft's row.
__device__ inline Runner coupled_first(const RaceRow& row, const RandomKey& key, Purpose purpose,
                                       int32_t begin, int32_t count) {
  const double per = per_temperature(row.p.temperature);
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarp;
  Race race;
  for (int32_t g = static_cast<int32_t>(threadIdx.x); kGroup * (g - lane) < count;
       g += static_cast<int32_t>(blockDim.x)) {
    const int32_t first = begin + kGroup * g;
    float logits[kGroup];
    load_group(row.p_logits, row.size, first, logits);
    unsigned there = group_bits(row.size, first);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (!is_kept(row.p, logits[j], row.first_token + first + j)) there &= ~(1u << j);
    }
    const auto token = static_cast<uint32_t>(row.first_token + first);
    enter_coupled_group(race, {key, 0, purpose, token}, there, row.p_logits + first, logits, per);
  }
  return block_first(race.best);
}

// The same of a drafted token's race by weights p, without the logit.
__device__ inline Runner weighted_first(const RaceRow& row, const RandomKey& key, int offset,
                                        int32_t begin, int32_t count) {
  const double scale = 1.0 / row.p.sum;  // as in probability()
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarp;
  Race race;
  for (int32_t g = static_cast<int32_t>(threadIdx.x); kGroup * (g - lane) < count;
       g += static_cast<int32_t>(blockDim.x)) {
    const int32_t first = begin + kGroup * g;
    const int32_t token = row.first_token + first;
    float logits[kGroup];
    double weights[kGroup];
    load_group(row.p_logits, row.size, first, logits);
    unsigned there = group_bits(row.size, first);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      weights[j] = kept_exp_of(row.p, logits[j], token + j) * scale;
      if (!(weights[j] > 0.0)) there &= ~(1u << j);
    }
    enter_group(race, {key, offset, Purpose::draft, static_cast<uint32_t>(token)}, there, weights);
  }
  return block_first(race.best);
}

}  // namespace outrider::cuda
