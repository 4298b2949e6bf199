// Modified rejection sampling over vocabulary shards: what stands between the exchanges of a step.
//   verify_summary -> exchange A -> combine_summaries (distribution.h)
//   -> verify_accept -> extra_token_race over the shard -> exchange B -> verify_commit
// Greedy rows take the same way with p one-hot at the arg max, and need no exchange B.
#pragma once

#include <cstdint>

#include "kernels/cpu/multiversion.h"
#include "kernels/randomness.h"
#include "kernels/verify_types.h"

namespace outrider::cpu {

// The probabilities of the drafted tokens that verify_accept compares. p is NaN for a row that is
// unresolved or not finite, q for a row that is not finite; a NaN refuses. A refusal for the row's
// sake alone, whatever was drafted, keeps the output exact: the extra token is then drawn from
// max(p - 0, 0) = p. A greedy row accepts its arg max alone, whatever q is.
void draft_probabilities(const SequenceRows& sequence, const Processors& processors,
                         double* p_draft,   // [K]
                         double* q_draft);  // [K]

// Modified rejection sampling (Chen et al. 2023, Algorithm 2; Leviathan et al. 2023, Algorithm 1),
// first half: every rank holds the same p(x_i), q(x_i), so all agree on n, the length of the
// accepted prefix. No division. Twin: ../cuda/verify_accept.cu.
int verify_accept(const double* p_draft,  // [K]
                  const double* q_draft,  // [K]
                  const double* u,        // [K], in [0, 1)
                  int num_drafted);

// What the token behind the n accepted ones is drawn from, over this rank's shard: max(p - q, 0) of
// row n after a refusal (p without x_n where q is one-hot), p of row K where all were accepted.
RaceRow extra_token_row(const SequenceRows& sequence, int num_accepted);

// Second half: this shard's best token in the race for the extra token.
RaceResult extra_token_race(const SequenceRows& sequence, int num_accepted, const RandomKey& key,
                            Isa isa);

// The extra token, from exchange B. Where no rank has a token of weight (p <= q everywhere, within
// rounding), it is the refused token itself.
int32_t verify_commit(const RaceResult* results,  // [ranks]
                      int ranks, const SequenceRows& sequence, int num_accepted);

// This shard's part of the sum of Σ min(p, q) over positions 0 … min(n, K - 1): what the measured α
// is made of. 16 fp64 lanes, as in verify_summary.
double shard_overlap(const SequenceRows& sequence, int num_accepted, Isa isa);

}  // namespace outrider::cpu
