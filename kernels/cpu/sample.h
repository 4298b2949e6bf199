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

// log E - pace or less, for a token with this first word, in a few instructions of fp32, by which
// the races pass over what cannot win. E > u >= 2^-31 (word / 2), halved since signed numbers are
// what AVX2 converts; and log2 of a float is at least what its bits say, read as a fixed-point
// number. Finite for a pace of -infinity, too, which an unscored logit has over a temperature below
// 1/4. The slack is more than is rounded: of |pace| its own two, one in the weight, one in each
// difference here and one in what this is compared with (6 * 2^-24 in all); beside that 1.3e-5.
[[gnu::always_inline]] inline float arrival_bound(uint32_t word, float pace) {
  const auto half = static_cast<float>(static_cast<int32_t>(word >> 1));
  const float log2 = static_cast<float>(__builtin_bit_cast(int32_t, half)) * 0x1p-23f;
  const float within = pace > -0x1p100f ? pace : -0x1p100f;
  const float slack = 1e-4f + __builtin_fabsf(within) * 0x1p-20f;
  return (log2 - (127.0f + 31.0f)) * 0.69314718f - within - slack;
}

// Weights of the row's tokens [begin, begin + count) of its shard. w: [count]
void race_weights(const RaceRow& row, int32_t begin, int32_t count, double* w);

// The smallest time, then the smallest token; time is +infinity where no token has weight. Leaves
// `overlap` 0. Twins: weighted_first (../cuda/race.cuh), of a draft's own row, and race_chunk
// (../cuda/verify.cu), of the target's.
// Bound: compute, ~50 instructions for 16 tokens with AVX-512, half of them Philox's, where the row
// keeps one of 256 tokens around them; elsewhere it is read. No sums, so no order.
RaceResult race(const RaceRow& row, const RandomKey& key, int offset, Purpose purpose, Isa isa);

// The first of a coupled row's race over the tokens that row.p keeps (its temperature and cut are
// all that is read of row.p): the smallest time, then the smallest token. key: coupled_key of the
// row. purpose: coupled, or coupled_purpose of a draft's row. Twin: ../cuda/race.cuh.
// Bound: as race's. No sums, so no order.
Runner coupled_race(const RaceRow& row, const RandomKey& key, Purpose purpose, Isa isa);

// Draws a drafted token from the whole row; greedy: its arg max. Token 0 where the row has a NaN or
// an infinity (its q is then no distribution, and verification refuses the token unseen).
int32_t sample_draft(const float* logits,                           // [vocab_size]
                     int64_t vocab_size, const RowDistribution& q,  // process_row of it
                     const DraftRow& row, Isa isa);

// Both for many rows: the token and its distribution of row r go to drafted[rows[r].drafted] and
// q[rows[r].drafted]; where it is drawn by rejection, so that verification reads all of q, its
// logits to q_logits [rows[r].drafted, vocab_size]. Logits change where rows[r].masked says so.
// Twin: ../cuda/sample.cu.
void sample_drafts(float* logits,  // [num_rows, vocab_size]
                   int64_t vocab_size,
                   const DraftRow* rows,  // [num_rows]
                   int64_t num_rows, int32_t* drafted, RowDistribution* q, float* q_logits,
                   Isa isa);

// What sample_draft draws from, for a row that is not greedy.
RaceRow draft_row(const float* logits,  // [vocab_size]
                  int64_t vocab_size, const RowDistribution& q);

}  // namespace outrider::cpu
