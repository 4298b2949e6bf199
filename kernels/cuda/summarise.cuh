// The summary of a row of logits, by a block a chunk, of which the last merges what all have found:
// what the kernels of verify_summary and sample_drafts share. distribution.h says in which order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/race.cuh"
#include "kernels/cuda/summary.cuh"
#include "kernels/distribution.h"

namespace outrider::cuda {

constexpr int kGroupsAThread = kChunk / (kGroup * kChunkThreads);
static_assert(kGroupsAThread * kGroup * kChunkThreads == kChunk);

__device__ inline float logit_of_rank(unsigned long long rank) {
  return logit_of_key(static_cast<int32_t>(static_cast<uint32_t>(rank >> 32) ^ 0x80000000u));
}

__device__ inline int32_t token_of_rank(unsigned long long rank) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(rank));
}

// This rank's part of a row.
struct RowToSummarise {
  const float* logits;  // [size]
  int32_t size;
  int32_t first_token;
  bool needs_sum;
  float temperature;
};

// What this block knows of its chunk. race: coupled_key of the row, or null: there is none. A race
// alone reads the logits again: registers are few.
__device__ inline ChunkSummary summarise_chunk(const RowToSummarise& row, const RandomKey* race) {
  const int32_t begin = chunk_begin(blockIdx.x, row.first_token);
  const auto first_of_group = [&](int g) {
    return begin + kGroup * static_cast<int32_t>(threadIdx.x + g * kChunkThreads);
  };
  float logits[kGroupsAThread][kGroup];
#pragma unroll
  for (int g = 0; g < kGroupsAThread; ++g) {
    load_group(row.logits, row.size, first_of_group(g), logits[g]);
  }
  unsigned long long best = 0;
  bool non_finite = false;
#pragma unroll
  for (int g = 0; g < kGroupsAThread; ++g) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const int32_t i = first_of_group(g) + j;
      if (!has_token(row.size, i)) continue;
      const unsigned long long rank = rank_of(order_key(logits[g][j]), i);
      best = rank > best ? rank : best;
      non_finite = non_finite || !is_finite(logits[g][j]);
    }
  }
  non_finite = __syncthreads_or(non_finite ? 1 : 0) != 0;
  best = block_max(best);
  if (non_finite) return {std::numeric_limits<double>::quiet_NaN(), best, kNobody};
  double sum = 0.0;
  if (row.needs_sum) {
    const float max = logit_of_rank(best);
#pragma unroll
    for (int g = 0; g < kGroupsAThread; ++g) {
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        const float e = exp_of(logits[g][j] - max, row.temperature);
        sum += has_token(row.size, first_of_group(g) + j) ? e : 0.0f;
      }
    }
    sum = block_sum(sum);
  }
  if (race == nullptr) return {sum, best, kNobody};
  const RaceRow shard = coupled_shard(row.logits, row.first_token, row.size, row.temperature);
  return {sum, best, coupled_first(shard, *race, Purpose::coupled, begin, kChunk)};
}

// The chunks of a row, by the block that ended last. Thread 0 gets the summary.
__device__ inline ShardSummary merge_chunks(const RowToSummarise& row, bool races,
                                            int32_t draft_token, const ChunkSummary* chunks,
                                            int64_t count) {
  const int32_t drafted = draft_token - row.first_token;
  const bool owned = draft_token >= 0 && has_token(row.size, drafted);
  const float draft_logit = owned ? row.logits[drafted] : -kInfinity;
  unsigned long long best = 0;
  bool non_finite = false;
  for (int64_t c = threadIdx.x; c < count; c += blockDim.x) {
    best = chunks[c].best > best ? chunks[c].best : best;
    non_finite = non_finite || chunks[c].sum_exp != chunks[c].sum_exp;
  }
  non_finite = __syncthreads_or(non_finite ? 1 : 0) != 0;
  best = block_max(best);
  const float max = best != 0 ? logit_of_rank(best) : -kInfinity;
  double sum = 0.0;
  if (row.needs_sum && !non_finite) {
    for (int64_t c = threadIdx.x; c < count; c += blockDim.x) {
      if (chunks[c].best == 0) continue;  // no token of the shard
      const double below = static_cast<double>(logit_of_rank(chunks[c].best)) - max;
      sum += chunks[c].sum_exp * exp_f64(below / row.temperature);
    }
    sum = block_sum(sum);
  }
  Runner runner = kNobody;
  if (races && !non_finite) {
    for (int64_t c = threadIdx.x; c < count; c += blockDim.x) {
      runner = first_of(runner, chunks[c].runner);
    }
    runner = block_first(runner);
  }
  return {.sum_exp = sum,
          .runner = runner,
          .max = max,
          .argmax = row.first_token + (best != 0 ? token_of_rank(best) : 0),
          .draft_logit = draft_logit,
          .num_candidates = 0,
          .non_finite = non_finite ? 1 : 0,
          .shard_size = row.size,
          .draft_token = draft_token};
}

}  // namespace outrider::cuda
