// Drawing a token by a race of exponentials over a vocabulary shard: token v with weight w arrives
// at E_v / w, E_v = -log(1 - u_v) with u_v as kernels/randomness.h says; the first to arrive is v
// with probability w / sum of all weights (Efraimidis and Spirakis 2006). The race needs no
// normaliser, and the smallest time of several shards is that of their union: sharding cannot
// change its outcome.
#pragma once

#include <cstdint>

#include "kernels/coupled.h"
#include "kernels/cpu/multiversion.h"
#include "kernels/randomness.h"
#include "kernels/verify_types.h"

namespace outrider::cpu {

// Weights of the row's tokens [begin, begin + count) of its shard. w: [count]
void race_weights(const RaceRow& row, int32_t begin, int32_t count, double* w);

// The smallest time, then the smallest token; time is +infinity where no token has weight. Leaves
// `overlap` 0. Twins: weighted_first (../cuda/race.cuh), of a draft's own row, and race_chunk
// (../cuda/verify.cu), of the target's.
// Bound: compute, ~50 instructions a token. No sums, so no order.
RaceResult race(const RaceRow& row, const RandomKey& key, int offset, Purpose purpose, Isa isa);

// The first of a coupled row's race over the tokens that row.p keeps (its temperature and cut are
// all that is read of row.p): the smallest time, then the smallest token. key: coupled_key of the
// row. Twin: ../cuda/race.cuh.
// Bound: compute, ~50 instructions a token. No sums, so no order.
Runner coupled_race(const RaceRow& row, const RandomKey& key, Isa isa);

// Draws a drafted token from the whole row; greedy: its arg max. Token 0 where the row has a NaN or
// an infinity (its q is then no distribution, and verification refuses the token unseen).
// offset: the token's position within the step, from 0
int32_t sample_draft(const float* logits,                           // [vocab_size]
                     int64_t vocab_size, const RowDistribution& q,  // process_row of it
                     VerifyMode mode, const RandomKey& key, int offset, Isa isa);

// Both for many rows: the token and its distribution of row r go to drafted[rows[r].drafted] and
// q[rows[r].drafted]; where it is drawn by rejection, so that verification reads all of q, its
// logits to q_logits [rows[r].drafted, vocab_size]. Twin: ../cuda/sample.cu.
void sample_drafts(const float* logits,  // [num_rows, vocab_size]
                   int64_t vocab_size,
                   const DraftRow* rows,  // [num_rows]
                   int64_t num_rows, int32_t* drafted, RowDistribution* q, float* q_logits,
                   Isa isa);

// What sample_draft draws from, for a row that is not greedy.
RaceRow draft_row(const float* logits,  // [vocab_size]
                  int64_t vocab_size, const RowDistribution& q);

}  // namespace outrider::cpu
