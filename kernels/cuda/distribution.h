// How logits become a distribution, on the device. Twin: ../cpu/distribution.h, which says what
// each computes; what is decided row by row is the same function (../distribution.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/verify_types.h"

namespace outrider::cuda {

// Scratch that the functions of distribution.h, sample.h and verify.h share: of steps of at most
// `rows` rows (or sequences) over `vocab_size` tokens.
size_t verify_workspace_bytes(int64_t rows, int64_t vocab_size);
size_t verify_arrivals_bytes(int64_t rows);

struct VerifyScratch {
  void* parts;         // verify_workspace_bytes: what blocks find, for the last of a row to merge
  unsigned* arrivals;  // verify_arrivals_bytes: blocks of a row that are done; 0 between kernels
};

// Order of a sum: chunks of kChunk tokens from a multiple of four of the vocabulary; in each,
// thread i adds groups of four tokens i, i + 128, relative to the chunk's largest logit, and
// threads fold as block.cuh says; then thread i adds chunks i, i + 128, …, and they fold likewise.
// Bound: rows * shard_size * 4 bytes, once; where there are num_slots > 0 rows that want
// candidates, these read their logits from the second-level cache, once for each digit of their
// rank that must be looked at (at most six, three as a rule) and once more. A kernel, or two.
void verify_summary(const float* logits, int64_t shard_size, int32_t first_token,
                    const VerifyRow* rows, int64_t num_rows, int64_t num_slots,
                    ShardSummary* summaries, Candidate* candidates, const VerifyScratch& scratch,
                    cudaStream_t stream);

// Masses are in fixed point, so their order is free.
// Bound: three passes over each row in the second-level cache by a block of its own, twice with
// top_k and top_p.
void resolve_rows(const RowToResolve* rows, int64_t num_rows, int64_t vocab_size,
                  cudaStream_t stream);

}  // namespace outrider::cuda
