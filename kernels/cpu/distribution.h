// How logits become a distribution, for target and draft alike: summaries of a vocabulary shard,
// their combination in rank order, and the processed row that comes of it.
#pragma once

#include <cstdint>

#include "kernels/cpu/math.h"
#include "kernels/cpu/multiversion.h"
#include "kernels/verify_types.h"

namespace outrider::cpu {

// What this rank knows of each row of target logits; for rows with a candidates_slot, also the best
// kCandidates (logit, token) in order of (logit descending, token ascending).
// Bound: rows * shard_size * 4 bytes, read once for greedy rows, from cache once more for the sum
// and twice more for candidates. The sum: 16 fp64 lanes, lane i adds elements i, i + 16, …; lanes
// are added in a fixed tree. Twin: ../cuda/verify_summary.cu.
void verify_summary(const float* logits,  // [logits_rows, shard_size]
                    int64_t shard_size,
                    int32_t first_token,      // token of a row's first logit
                    const VerifyRow* rows,    // [num_rows]
                    int64_t num_rows,         //
                    ShardSummary* summaries,  // [num_rows]
                    Candidate* candidates,    // [slots, kCandidates]
                    Isa isa);

// One row over all ranks, in rank order: the same bits on every rank. Where the row is filtered and
// the union of the candidates does not hold what top_k and top_p keep, it is left unresolved, with
// `sum` the mass of the whole row. The union is exact down to the best of the last offers of those
// ranks that have more tokens than they offered.
RowDistribution combine_summaries(const ShardSummary* summaries,       // [ranks]
                                  const Candidate* const* candidates,  // [ranks][num_candidates]
                                  int ranks,                           // at most kMaxRanks
                                  const Processors& processors);

// Finishes an unresolved row from all of its logits: the same distribution, bit for bit, that
// enough candidates would have given. Masses are summed in fixed point, so their order is free.
// Bound: one pass for each of three radix levels, twice with both top_k and top_p.
RowDistribution resolve_row(const RowDistribution& unresolved,
                            const float* logits,  // [vocab_size]
                            int64_t vocab_size, const Processors& processors, Isa isa);

// A row that this rank holds whole: the three above, over a single shard.
RowDistribution process_row(const float* logits,  // [vocab_size]
                            int64_t vocab_size, const Processors& processors, Isa isa);

// exp((logit - max) / temperature) for the tokens that the row keeps, 0 for the others.
[[gnu::always_inline]] inline float kept_exp(const RowDistribution& row, float logit,
                                             int32_t token) {
  const bool kept = (logit > row.cut_logit) | ((logit == row.cut_logit) & (token <= row.cut_token));
  const float e = exp_f32((logit - row.max) / row.temperature);
  return kept ? e : 0.0f;
}

// The probability of a token with this logit. p and q both come from here. A multiplication by
// 1 / sum, since the races do it for every token of the vocabulary.
[[gnu::always_inline]] inline double probability(const RowDistribution& row, float logit,
                                                 int32_t token) {
  return static_cast<double>(kept_exp(row, logit, token)) * (1.0 / row.sum);
}

}  // namespace outrider::cpu
