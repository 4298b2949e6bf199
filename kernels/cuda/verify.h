// Modified rejection sampling on the device. Twin: ../cpu/verify.h, which says what each computes;
// what is decided sequence by sequence is the same function (../verify.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/distribution.h"
#include "kernels/cuda/stream.h"
#include "kernels/verify_types.h"

namespace outrider::cuda {

// Bound of all but the races: launch.
void copy_tokens(const TokenCopy* copies, int64_t n, cudaStream_t stream);

// combine_rows and accept_step in one kernel. The rows that count are those that `p` of a
// sequence points to. Bound: launch; a filtered row merges its candidates in one thread, and where
// it is coupled a warp runs its race.
void combine_and_accept(const SummaryMessages& all, const VerifyRow* rows, int64_t num_rows,
                        RowDistribution* p, uint64_t* disagreeing,
                        const SequenceToVerify* sequences, int64_t n, Verdict* verdicts,
                        cudaStream_t stream);

void accept_step(const SequenceToVerify* sequences, int64_t n, Verdict* verdicts,
                 cudaStream_t stream);

// Order of the sums for α: chunks as in verify_summary; in each, thread i adds group i, positions
// one after the other, and threads fold as block.cuh says; chunks likewise.
// Bound: (1 + accepted) rows of the shard of target and draft each, ~80 instructions a token of
// them, and ~60 a token of the last.
void race_step(const SequenceToVerify* sequences, int64_t n, int64_t shard_size,
               const Verdict* verdicts, RaceResult* results, const VerifyScratch& scratch,
               cudaStream_t stream);

// race_step and the commit_step of a rank alone, in one kernel.
void race_and_commit(const SequenceToVerify* sequences, int64_t n, int64_t shard_size,
                     Verdict* verdicts, RaceResult* results, const VerifyScratch& scratch,
                     cudaStream_t stream);

void commit_step(const SequenceToVerify* sequences, int64_t n, const RaceResult* results, int ranks,
                 Verdict* verdicts, cudaStream_t stream);

}  // namespace outrider::cuda
