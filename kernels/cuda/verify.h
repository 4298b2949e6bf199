// Modified rejection sampling on the device. Twin: ../cpu/verify.h, which says what each computes;
// what is decided sequence by sequence is the same function (../verify.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/verify_types.h"

namespace outrider::cuda {

// Bound of all but race_step: launch.
void copy_tokens(const TokenCopy* copies, int64_t n, cudaStream_t stream);

void accept_step(const SequenceToVerify* sequences, int64_t n, Verdict* verdicts,
                 cudaStream_t stream);

// Order of the sums for α: chunks as in verify_summary; in each, positions one after the other.
// Bound: (2 + accepted) rows of the shard, and ~60 instructions a token of the last.
void race_step(const SequenceToVerify* sequences, int64_t n, int64_t shard_size,
               const Verdict* verdicts, RaceResult* results, void* workspace, cudaStream_t stream);

void commit_step(const SequenceToVerify* sequences, int64_t n, const RaceResult* results, int ranks,
                 Verdict* verdicts, cudaStream_t stream);

}  // namespace outrider::cuda
