// Coupled rows: the token of position t is arg max_v (log p_t(v) + Gumbel_v) with noise that is a
// function of (seed, choice, t, v) alone, and the draft proposes the same arg max over its own row.
// It is a race of exponentials (kernels/cpu/sample.h) run in logarithms: token v arrives at
// log E_v - logit_v / temperature, and the first to arrive is the arg max. So a token's time needs
// neither a maximum nor a sum, and no shard, rank, batch or drafter can change it.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/distribution.h"
#include "kernels/host_device.h"
#include "kernels/math_f64.h"
#include "kernels/randomness.h"
#include "kernels/verify_types.h"

namespace outrider {

constexpr Runner kNobody{std::numeric_limits<double>::infinity(), -1, 0.0f};

// The earlier one, then the smaller token.
OUTRIDER_HOST_DEVICE inline Runner first_of(const Runner& a, const Runner& b) {
  if (a.time != b.time) return a.time < b.time ? a : b;
  return static_cast<uint32_t>(a.token) <= static_cast<uint32_t>(b.token) ? a : b;
}

// What a logit is multiplied with.
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline double per_temperature(float temperature) {
  return 1.0 / static_cast<double>(temperature);
}

// When a token of uniform u arrives; pace: its logit times per_temperature.
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline double coupled_time(double u, double pace) {
  return log_f64(neg_log1p_f64(u)) - pace;
}

// A row that keeps every token of its shard.
OUTRIDER_HOST_DEVICE inline RaceRow coupled_shard(const float* logits, int32_t first_token,
                                                  int32_t size, float temperature) {
  const RowDistribution whole{.sum = 1.0,
                              .max = 0.0f,
                              .choice = -1,
                              .choice_logit = 0.0f,
                              .temperature = temperature,
                              .cut_logit = -kInfinity,
                              .cut_token = INT32_MAX,
                              .draft_logit = -kInfinity,
                              .non_finite = 0,
                              .resolved = 1};
  return {.p_logits = logits,
          .q_logits = nullptr,
          .p = whole,
          .q = whole,
          .excluded = -1,
          .first_token = first_token,
          .size = size};
}

// A candidate of a filtered row, where the row keeps it.
OUTRIDER_HOST_DEVICE inline Runner coupled_candidate(const RowDistribution& p, const RandomKey& key,
                                                     const Candidate& candidate) {
  if (!is_kept(p, candidate.logit, candidate.token)) return kNobody;
  const auto token = static_cast<uint32_t>(candidate.token);
  const double u = race_uniform(random_word(key, 0, Purpose::coupled, token), [&] {
    return random_word(key, 0, Purpose::coupled_refined, token);
  });
  return {coupled_time(u, candidate.logit * per_temperature(p.temperature)), candidate.token,
          candidate.logit};
}

OUTRIDER_HOST_DEVICE inline bool chooses_coupled(const VerifyRow& row, const RowDistribution& p) {
  return row.processors.mode == VerifyMode::coupled && p.resolved != 0 && p.non_finite == 0;
}

// The first of row `row` over all ranks: of their shards' races, or of the candidates, every one of
// which the row's resolved distribution has among them. One of `lanes` that share the work.
OUTRIDER_HOST_DEVICE inline Runner coupled_runner(const SummaryMessages& all, const VerifyRow& of,
                                                  int64_t row, const RowDistribution& p, int lane,
                                                  int lanes) {
  Runner best = kNobody;
  for (int r = 0; r < all.ranks; ++r) {
    const ShardSummary& summary = all.of(r).summaries()[row];
    if (of.races != 0) {
      best = first_of(best, summary.runner);
      continue;
    }
    const Candidate* const candidates =
        all.of(r).candidates() + int64_t{of.candidates_slot} * kCandidates;
    for (int c = lane; c < summary.num_candidates; c += lanes) {
      best = first_of(best, coupled_candidate(p, of.key, candidates[c]));
    }
  }
  return best;
}

OUTRIDER_HOST_DEVICE inline void choose(RowDistribution& p, const Runner& first) {
  p.choice = first.token;
  p.choice_logit = first.logit;
}

}  // namespace outrider
