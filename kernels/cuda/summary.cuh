// The chunks of a row of logits that blocks look at, and what they find.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/verify_types.h"

namespace outrider::cuda {

constexpr int kGroup = 4;         // neighbouring tokens, which share a call of Philox
constexpr int64_t kChunk = 1024;  // tokens that a block looks at
constexpr unsigned kChunkThreads = 128;

// At most, wherever in the vocabulary a shard of so many tokens begins.
constexpr int64_t num_chunks(int64_t tokens) { return (tokens + kGroup - 1 + kChunk - 1) / kChunk; }

// Threads of a block that looks at a whole row.
constexpr unsigned row_threads(int64_t tokens) {
  return tokens >= 16384 ? 1024 : tokens >= 4096 ? 512 : kCandidates;
}

// Where chunk `index` begins in a shard. All begin at a multiple of kGroup of the vocabulary: the
// first of a shard may begin up to three tokens before it.
__device__ inline int32_t chunk_begin(int64_t index, int32_t first_token) {
  return static_cast<int32_t>(index * kChunk) - first_token % kGroup;
}

// Whether a shard of `size` tokens has token i.
__device__ inline bool has_token(int32_t size, int32_t i) {
  return static_cast<uint32_t>(i) < static_cast<uint32_t>(size);
}

// Tokens [first, first + kGroup) of a shard, 0 where it has none.
__device__ inline void load_group(const float* logits, int32_t size, int32_t first,
                                  float (&group)[kGroup]) {
  const bool whole = first >= 0 && first + kGroup <= size;
  if (whole && reinterpret_cast<uintptr_t>(logits + first) % sizeof(float4) == 0) {
    const float4 four = *reinterpret_cast<const float4*>(logits + first);
    group[0] = four.x, group[1] = four.y, group[2] = four.z, group[3] = four.w;
    return;
  }
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    group[j] = has_token(size, first + j) ? logits[first + j] : 0.0f;
  }
}

// What a block knows of its chunk of a row.
struct ChunkSummary {
  double sum_exp;           // of exp((logit - the chunk's max) / temperature); NaN: not all finite
  unsigned long long best;  // rank_of its best token
  Runner runner;            // the first of its coupled race, where the row asks for one
};

}  // namespace outrider::cuda
