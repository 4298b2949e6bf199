// Summaries of rows of logits: the kernels that verify_summary and sample_drafts share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/verify_types.h"

namespace outrider::cuda {

constexpr int64_t kChunk = 4096;  // tokens that a block looks at
constexpr unsigned kChunkThreads = 256;

constexpr int64_t num_chunks(int64_t tokens) { return (tokens + kChunk - 1) / kChunk; }

// Threads of a block that looks at a whole row.
constexpr unsigned row_threads(int64_t tokens) {
  return tokens >= 16384 ? 1024 : tokens >= 4096 ? 512 : kCandidates;
}

// What a block knows of its chunk of a row.
struct ChunkSummary {
  double sum_exp;           // of exp((logit - the chunk's max) / temperature)
  unsigned long long best;  // rank_of its best token
  Runner runner;            // the first of its coupled race, where the row asks for one
  int32_t non_finite;
};

// Enqueues the summaries of all rows; chunks: [num_rows, num_chunks(shard_size)].
void summarise(const float* logits, int64_t shard_size, int32_t first_token, const VerifyRow* rows,
               int64_t num_rows, ChunkSummary* chunks, ShardSummary* summaries,
               cudaStream_t stream);

}  // namespace outrider::cuda
