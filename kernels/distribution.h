// How logits become a distribution: what the kernels of both sides compute row by row, in the same
// functions, so that they cannot differ.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/host_device.h"
#include "kernels/math.h"
#include "kernels/math_f64.h"
#include "kernels/verify_types.h"

namespace outrider {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The logit of a token that a trimmed LM head does not score: finite, as those of a sound row are,
// and of probability 0 at any temperature below 1e35.
constexpr float kUnscoredLogit = -0x1p126f;

// Logits in an order that integers share: a < b as floats iff key(a) < key(b). Zeros are equal.
// NaNs come somewhere; rows that have one are never used.
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline int32_t order_key(float logit) {
  const int32_t bits = __builtin_bit_cast(int32_t, logit + 0.0f);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

OUTRIDER_HOST_DEVICE inline float logit_of_key(int32_t key) {
  return __builtin_bit_cast(float, key ^ ((key >> 31) & 0x7fffffff));
}

OUTRIDER_HOST_DEVICE inline bool is_finite(float x) {
  return (__builtin_bit_cast(uint32_t, x) & 0x7fffffffu) < 0x7f800000u;
}

// (key, token) as one integer, larger for what comes first.
OUTRIDER_HOST_DEVICE inline uint64_t rank_of(int32_t key, int64_t token) {
  return static_cast<uint64_t>(static_cast<uint32_t>(key) ^ 0x80000000u) << 32 |
         (0xffffffffu - static_cast<uint32_t>(token));
}

[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline bool is_kept(const RowDistribution& row,
                                                                float logit, int32_t token) {
  return (logit > row.cut_logit) | ((logit == row.cut_logit) & (token <= row.cut_token));
}

// exp((logit - max) / temperature) for the tokens that the row keeps, 0 for the others.
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline float kept_exp(const RowDistribution& row,
                                                                  float logit, int32_t token) {
  const float e = exp_f32((logit - row.max) / row.temperature);
  return is_kept(row, logit, token) ? e : 0.0f;
}

// The probability of a token with this logit. p and q both come from here. A multiplication by
// 1 / sum, since the races do it for every token of the vocabulary.
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline double probability(const RowDistribution& row,
                                                                      float logit, int32_t token) {
  return static_cast<double>(kept_exp(row, logit, token)) * (1.0 / row.sum);
}

// Mass in units of 2^-43, rounded down: sums over up to 2^20 tokens of mass at most 1 are exact,
// whatever their order, and lose less than 2^-23 of the largest token's mass.
constexpr double kMassUnit = 0x1p-43;
OUTRIDER_HOST_DEVICE inline uint64_t mass_of(float e) { return static_cast<uint64_t>(e * 0x1p43f); }

// The lowest logit that min_p keeps, in a row with this maximum: one rounding, of processed logits,
// so that every rank and both sides cut alike.
OUTRIDER_HOST_DEVICE inline float min_p_logit(const Processors& processors, float max) {
  return processors.has_min_p() ? max - processors.min_p_reach : -kInfinity;
}

// The shortest prefix of a row's tokens, best first, that has max_count tokens or holds max_mass;
// all of those with a logit of at least min_logit where they do not.
struct Prefix {
  bool crossed = false;  // false: the candidates, or the row down to min_logit, ended before either
  bool complete = true;  // false: the candidates ended before the row
  uint64_t mass = 0;     // of its tokens
  Candidate last{-kInfinity, INT32_MAX};
};

// What every rank says of one row: here in arrays, below in messages.
struct RowSummaries {
  const ShardSummary* summaries;
  const Candidate* const* lists;
  int ranks;

  OUTRIDER_HOST_DEVICE const ShardSummary& summary(int rank) const { return summaries[rank]; }
  OUTRIDER_HOST_DEVICE const Candidate* candidates(int rank) const { return lists[rank]; }
};

// Read where it stands: copies of 64 ranks' would be some KiB of stack, which a GPU sets aside for
// every thread that it has room for.
struct RowMessages {
  SummaryMessages all;
  int64_t row;
  int64_t slot;  // of its candidates
  int ranks;

  OUTRIDER_HOST_DEVICE RowMessages(const SummaryMessages& all, const VerifyRow& of, int64_t row)
      : all(all),
        row(row),
        slot(of.candidates_slot > 0 ? of.candidates_slot : 0),
        ranks(all.ranks) {}
  OUTRIDER_HOST_DEVICE const ShardSummary& summary(int rank) const {
    return all.of(rank).summaries()[row];
  }
  OUTRIDER_HOST_DEVICE const Candidate* candidates(int rank) const {
    return all.of(rank).candidates() + slot * kCandidates;
  }
};

template <typename Summaries>
OUTRIDER_HOST_DEVICE Prefix find_prefix(const Summaries& all, const RowDistribution& row,
                                        float min_logit, int64_t max_count, double max_mass) {
  static_assert(kCandidates <= UINT8_MAX);
  uint8_t next[kMaxRanks] = {};
  Prefix prefix;
  for (int r = 0; r < all.ranks; ++r) {
    const ShardSummary& summary = all.summary(r);
    if (summary.num_candidates == 0 && summary.shard_size > 0) prefix.complete = false;
  }
  if (!prefix.complete) return prefix;
  for (int64_t count = 0;;) {
    int best = -1;
    for (int r = 0; r < all.ranks; ++r) {
      if (next[r] == all.summary(r).num_candidates) continue;
      const Candidate& c = all.candidates(r)[next[r]];
      const Candidate& b = best < 0 ? c : all.candidates(best)[next[best]];
      if (best < 0 || c.logit > b.logit || (c.logit == b.logit && c.token < b.token)) best = r;
    }
    if (best < 0 || all.candidates(best)[next[best]].logit < min_logit) return prefix;
    const ShardSummary& summary = all.summary(best);
    prefix.last = all.candidates(best)[next[best]++];
    prefix.mass += mass_of(exp_f32((prefix.last.logit - row.max) / row.temperature));
    prefix.crossed = ++count >= max_count || static_cast<double>(prefix.mass) >= max_mass;
    if (prefix.crossed) return prefix;
    if (next[best] == summary.num_candidates && summary.num_candidates < summary.shard_size) {
      prefix.complete = false;
      return prefix;
    }
  }
}

// min_p, then top_k, then top_p of what they left. Where top_p asks for it, `row` has the mass of
// the whole row in `sum`.
template <typename Tokens>
OUTRIDER_HOST_DEVICE RowDistribution filter(const Tokens& tokens, int64_t vocab_size,
                                            RowDistribution row, const Processors& processors) {
  const bool top_k = processors.top_k > 0 && processors.top_k < vocab_size;
  const bool min_p = processors.has_min_p();
  if (!top_k && !min_p && !(processors.top_p < 1.0f)) return row;
  row.resolved = 0;
  const float min_logit = min_p_logit(processors, row.max);
  const int64_t max_count = top_k ? processors.top_k : INT64_MAX;
  Prefix kept;
  double mass = row.sum / kMassUnit;
  if (top_k || min_p) {
    kept = find_prefix(tokens, row, min_logit, max_count, kInfinity);
    if (!kept.complete) return row;
    mass = static_cast<double>(kept.mass);
  }
  if (processors.top_p < 1.0f) {
    kept = find_prefix(tokens, row, min_logit, max_count, double{processors.top_p} * mass);
    if (!kept.complete) return row;
  }
  // A prefix that never crosses (top_p next to 1, and rounding; min_p alone) is all that min_p
  // left.
  row.cut_logit = kept.crossed ? kept.last.logit : min_logit;
  row.cut_token = kept.crossed ? kept.last.token : INT32_MAX;
  row.sum = static_cast<double>(kept.mass) * kMassUnit;
  row.resolved = 1;
  return row;
}

// One row over all ranks, in rank order: the same bits on every rank. Where the row is filtered and
// the union of the candidates does not hold what min_p, top_k and top_p keep, it is left
// unresolved (`sum`: the mass of the whole row, if needed). The union is exact down to the best of
// the last offers of those ranks that have more tokens than they offered.
template <typename Summaries>
OUTRIDER_HOST_DEVICE RowDistribution combine_row(const Summaries& all,
                                                 const Processors& processors) {
  RowDistribution row{.sum = 1.0,
                      .max = -kInfinity,
                      .choice = -1,
                      .choice_logit = -kInfinity,
                      .temperature = processors.temperature,
                      .cut_logit = kInfinity,
                      .cut_token = -1,
                      .draft_logit = -kInfinity,
                      .non_finite = 0,
                      .resolved = 1};
  int64_t vocab_size = 0;
  for (int r = 0; r < all.ranks; ++r) {
    const ShardSummary& s = all.summary(r);
    vocab_size += s.shard_size;
    row.non_finite |= s.non_finite;
    row.draft_logit = std::max(row.draft_logit, s.draft_logit);
    if (s.shard_size > 0 && (row.choice < 0 || s.max > row.max)) {  // ranks own ascending tokens
      row.max = row.choice_logit = s.max;
      row.choice = s.argmax;
    }
  }
  if (row.non_finite != 0) return row;
  if (processors.mode == VerifyMode::greedy) {
    row.temperature = 1.0f;
    row.cut_logit = row.max;
    row.cut_token = row.choice;
    return row;
  }
  row.cut_logit = -kInfinity;
  row.cut_token = INT32_MAX;
  row.sum = 0.0;
  for (int r = 0; r < all.ranks; ++r) {
    const ShardSummary& s = all.summary(r);
    if (s.shard_size == 0) continue;
    const double below = static_cast<double>(s.max) - row.max;
    row.sum += below == 0.0 ? s.sum_exp : s.sum_exp * exp_f64(below / row.temperature);
  }
  return filter(all, vocab_size, row, processors);
}

OUTRIDER_HOST_DEVICE inline RowDistribution combine_summaries(const ShardSummary* summaries,
                                                              const Candidate* const* candidates,
                                                              int ranks,
                                                              const Processors& processors) {
  return combine_row(RowSummaries{summaries, candidates, ranks}, processors);
}

}  // namespace outrider
