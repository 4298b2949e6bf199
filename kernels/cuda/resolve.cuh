// Finishes a filtered row from all of its logits, by a whole block. What ../cpu/distribution.cc
// does in resolve_row: radix selection on the logits' keys, in fixed-point masses.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/block.cuh"
#include "kernels/distribution.h"

namespace outrider::cuda {

constexpr int kRadixBits = 11;
constexpr int kBuckets = 1 << kRadixBits;
constexpr int kLogitsAhead = 4;  // that a thread loads together, before it counts the first

// A row in global memory, looked at by all threads of the block together.
struct BlockRow {
  const float* logits;
  int64_t size;
};

// Masses in halves: shared memory adds 32 bits at a time; 64 are compared and swapped in a loop.
struct Histogram {
  uint32_t low[kBuckets];
  uint32_t high[kBuckets];
  int counts[kBuckets];

  __device__ void clear(int bucket) { low[bucket] = high[bucket] = counts[bucket] = 0; }

  // Whatever the order, an overflow of the lower half is carried by the addition that made it.
  __device__ void add(uint32_t bucket, uint64_t mass) {
    atomicAdd(&counts[bucket], 1);
    if (mass == 0) return;
    const auto part = static_cast<uint32_t>(mass);
    const uint32_t before = atomicAdd(&low[bucket], part);
    const auto further = static_cast<uint32_t>(mass >> 32) + (before + part < before ? 1 : 0);
    if (further != 0) atomicAdd(&high[bucket], further);
  }

  // Behind a barrier.
  __device__ uint64_t mass(int bucket) const {
    return static_cast<uint64_t>(high[bucket]) << 32 | low[bucket];
  }
};

// The bucket in which a prefix that comes from above ends, or -1; `count` and `mass` become those
// of the buckets above it. By one warp, in lane 0's order: 32 groups of buckets, then one group.
__device__ inline int find_bucket(const Histogram& histogram, int64_t max_count, double max_mass,
                                  int64_t& count, uint64_t& mass) {
  constexpr int kGroup = kBuckets / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int top = kBuckets - 1 - lane * kGroup;  // this lane's group, from above
  int group_count = 0;
  unsigned long long group_mass = 0;
  for (int i = 0; i < kGroup; ++i) {
    group_count += histogram.counts[top - i];
    group_mass += histogram.mass(top - i);
  }
  const auto ends = [&](int64_t c, uint64_t m) {
    return count + c >= max_count || static_cast<double>(mass + m) >= max_mass;
  };
  for (int group = 0; group < kWarp; ++group) {
    const int c = __shfl_sync(kAllLanes, group_count, group);
    const unsigned long long m = __shfl_sync(kAllLanes, group_mass, group);
    if (!ends(c, m)) {
      count += c;
      mass += m;
      continue;
    }
    for (int bucket = kBuckets - 1 - group * kGroup;; --bucket) {
      if (ends(histogram.counts[bucket], histogram.mass(bucket))) return bucket;
      count += histogram.counts[bucket];
      mass += histogram.mass(bucket);
    }
  }
  return -1;
}

// The token of the row's `nth` logit (from 1) that equals `logit`, in order of tokens.
__device__ inline int32_t find_nth(const BlockRow& whole, float logit, int64_t nth) {
  __shared__ int32_t found;
  int64_t before = 0;
  for (int64_t begin = 0; begin < whole.size && before < nth; begin += blockDim.x) {
    const int64_t i = begin + threadIdx.x;
    const bool equal = i < whole.size && whole.logits[i] == logit;
    int total = 0;
    const int rank = block_rank(equal, total);
    if (equal && before + rank + 1 == nth) found = static_cast<int32_t>(i);
    before += total;
  }
  __syncthreads();
  return found;
}

__device__ inline Prefix find_prefix(const BlockRow& whole, const RowDistribution& row,
                                     float min_logit, int64_t max_count, double max_mass) {
  __shared__ Histogram histogram;
  __shared__ int64_t shared_count;
  __shared__ uint64_t shared_mass;
  __shared__ int shared_bucket;
  const uint32_t least = static_cast<uint32_t>(order_key(min_logit)) ^ 0x80000000u;
  Prefix prefix;
  int64_t count = 0;
  uint32_t above = 0;                    // the bits of the key that earlier levels have fixed
  uint32_t fixed = 0;                    // which bits these are
  int num_equal = 0;                     // of the last bucket
  for (const int shift : {21, 10, 0}) {  // the last level sees one bit again
    for (int b = static_cast<int>(threadIdx.x); b < kBuckets; b += static_cast<int>(blockDim.x)) {
      histogram.clear(b);
    }
    __syncthreads();
    for (int64_t begin = threadIdx.x; begin < whole.size; begin += kLogitsAhead * blockDim.x) {
      float logits[kLogitsAhead];
#pragma unroll
      for (int j = 0; j < kLogitsAhead; ++j) {
        const int64_t i = begin + j * blockDim.x;
        logits[j] = i < whole.size ? whole.logits[i] : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < kLogitsAhead; ++j) {
        if (begin + j * blockDim.x >= whole.size) break;
        const uint32_t key = static_cast<uint32_t>(order_key(logits[j])) ^ 0x80000000u;
        if (key < least || (key & fixed) != above) continue;
        const float e = exp_f32((logits[j] - row.max) / row.temperature);
        histogram.add(key >> shift & (kBuckets - 1), mass_of(e));
      }
    }
    __syncthreads();
    if (threadIdx.x < kWarp) {
      int64_t c = count;
      uint64_t m = prefix.mass;
      const int bucket = find_bucket(histogram, max_count, max_mass, c, m);
      if (threadIdx.x == 0) {
        shared_bucket = bucket;
        shared_count = c;
        shared_mass = m;
      }
    }
    __syncthreads();
    const int bucket = shared_bucket;
    count = shared_count;
    prefix.mass = shared_mass;
    if (bucket < 0) return prefix;  // the whole row, down to min_logit
    num_equal = histogram.counts[bucket];
    __syncthreads();  // before the histogram is cleared
    above |= static_cast<uint32_t>(bucket) << shift;
    fixed |= static_cast<uint32_t>(kBuckets - 1) << shift;
  }
  prefix.crossed = true;
  prefix.last.logit = logit_of_key(static_cast<int32_t>(above ^ 0x80000000u));
  // How many of the equal ones, by halves: what they add up to only grows.
  const uint64_t mass = mass_of(exp_f32((prefix.last.logit - row.max) / row.temperature));
  int64_t low = 1, high = num_equal;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    const bool enough =
        count + middle >= max_count || static_cast<double>(prefix.mass + middle * mass) >= max_mass;
    (enough ? high : low) = enough ? middle : middle + 1;
  }
  prefix.mass += low * mass;
  prefix.last.token = find_nth(whole, prefix.last.logit, low);
  return prefix;
}

}  // namespace outrider::cuda
