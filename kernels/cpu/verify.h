// Modified rejection sampling over vocabulary shards: what stands between the exchanges of a step.
//   verify_summary -> exchange A -> combine_rows (distribution.h)
//   -> verify_accept -> extra_token_race over the shard -> exchange B -> verify_commit
// Greedy and coupled rows take the same way with p one-hot at the target's choice, and need no
// exchange B. The *_step
// functions do it for the sequences of a step; they are made of the others.
#pragma once

#include <cstdint>

#include "kernels/cpu/multiversion.h"
#include "kernels/randomness.h"
#include "kernels/verify.h"

namespace outrider::cpu {

// Second half: this shard's best token in the race for the extra token.
RaceResult extra_token_race(const SequenceRows& sequence, int num_accepted, const RandomKey& key,
                            Isa isa);

// This shard's part of the sums over positions 0 … min(n, K - 1). 16 fp64 lanes, as in
// verify_summary.
Overlap shard_overlap(const SequenceRows& sequence, int num_accepted, float lenience, Isa isa);

// *copies[i].to = *copies[i].from, where there is a `from`. Twin: ../cuda/verify.cu.
void copy_tokens(const TokenCopy* copies, int64_t n);

// Everything of the verdicts but what the races decide; `extra_token` is the row's choice. A
// sequence whose num_drafted is -1 is not there. Twin: ../cuda/verify.cu.
void accept_step(const SequenceToVerify* sequences, int64_t n, Verdict* verdicts);

// This shard's races of the `rejection` sequences that are resolved; the others' results have no
// weight. Twin: ../cuda/verify.cu.
void race_step(const SequenceToVerify* sequences, int64_t n, const Verdict* verdicts,
               RaceResult* results, Isa isa);

// The extra tokens of the `rejection` sequences that are resolved, from exchange B, and their sums
// for α in rank order. Twin: ../cuda/verify.cu.
void commit_step(const SequenceToVerify* sequences, int64_t n,
                 const RaceResult* results,  // [ranks, n]
                 int ranks, Verdict* verdicts);

}  // namespace outrider::cpu
