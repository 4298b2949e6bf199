// How logits become a distribution, for target and draft alike: summaries of a vocabulary shard,
// their combination in rank order, and the processed row that comes of it.
#pragma once

#include <cstdint>

#include "kernels/cpu/multiversion.h"
#include "kernels/distribution.h"
#include "kernels/verify_types.h"

namespace outrider::cpu {

// What this rank knows of each row of target logits; for rows with a candidates_slot, also the best
// kCandidates (logit, token) in order of (logit descending, token ascending); for rows that ask for
// it, the first of the shard's coupled race.
// Bound: rows * shard_size * 4 bytes, read once, from cache once more for a sum, where one is
// needed, and twice more for candidates; a race is compute. The sum: 16 fp64 lanes, lane i adds
// elements i, i + 16, …; lanes are added in a fixed tree. Twin: ../cuda/distribution.cu.
void verify_summary(const float* logits,  // [logits_rows, shard_size]
                    int64_t shard_size,
                    int32_t first_token,      // token of a row's first logit
                    const VerifyRow* rows,    // [num_rows]
                    int64_t num_rows,         //
                    ShardSummary* summaries,  // [num_rows]
                    Candidate* candidates,    // [slots, kCandidates]
                    Isa isa);

// The rows of a step, from every rank's message, with the choices of coupled ones. Returns the
// ranks (bit r: rank r) whose digest or drafted tokens differ from rank 0's. Twin:
// ../cuda/distribution.cu.
uint64_t combine_rows(const SummaryMessages& all,
                      const VerifyRow* rows,  // [num_rows], num_rows <= all.num_rows
                      int64_t num_rows,
                      RowDistribution* p);  // [num_rows]

// Finishes an unresolved row from all of its logits: the same distribution, bit for bit, that
// enough candidates would have given. Masses are summed in fixed point, so their order is free.
// Bound: one pass for each of three radix levels, twice with both top_k and top_p; a coupled row's
// race. key: coupled_key of a coupled row.
RowDistribution resolve_row(const RowDistribution& unresolved,
                            const float* logits,  // [vocab_size]
                            int64_t vocab_size, const Processors& processors, const RandomKey& key,
                            Isa isa);

// The same for the rows of a step, in place. Twin: ../cuda/distribution.cu.
void resolve_rows(const RowToResolve* rows, int64_t num_rows, int64_t vocab_size, Isa isa);

// A row that this rank holds whole: the three above, over a single shard. Whatever the mode,
// `choice` is the arg max: sample_draft runs the races.
RowDistribution process_row(const float* logits,  // [vocab_size]
                            int64_t vocab_size, const Processors& processors, Isa isa);

}  // namespace outrider::cpu
