// Verification of drafted tokens: what the kernels of both sides decide sequence by sequence, in
// the same functions, so that they cannot differ.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/distribution.h"
#include "kernels/host_device.h"
#include "kernels/verify_types.h"

namespace outrider {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// This rank's part of row i of the draft's logits.
OUTRIDER_HOST_DEVICE inline const float* draft_shard(const SequenceRows& sequence, int i) {
  return sequence.draft_logits + int64_t{i} * sequence.vocab_size + sequence.first_token;
}

// Greedy rows with lenience l: a token passes whose logit is at least the largest one + ln l.
OUTRIDER_HOST_DEVICE inline bool passes_leniently(const RowDistribution& p, float lenience) {
  const double below = static_cast<double>(p.draft_logit) - static_cast<double>(p.max);
  return lenience < 1.0f && below >= log_f64(lenience);
}

// What is known of a drafted token before its row of the target's is.
struct DraftedToken {
  int32_t token;
  float q_logit;      // the draft's, where it has logits …
  RowDistribution q;  // … and their distribution
};

OUTRIDER_HOST_DEVICE inline DraftedToken drafted_token(const SequenceRows& sequence,
                                                       const Processors& processors, int i) {
  DraftedToken drafted{.token = sequence.drafted[i], .q_logit = 0.0f, .q = {}};
  if (processors.mode != VerifyMode::rejection || sequence.draft_logits == nullptr) return drafted;
  drafted.q = sequence.q[i];
  drafted.q_logit = sequence.draft_logits[int64_t{i} * sequence.vocab_size + drafted.token];
  return drafted;
}

// The probabilities of drafted token i that verify_accept compares, q times the lenience. p is NaN
// for a row that is unresolved or not finite, q for a row that is not finite; a NaN refuses. A
// refusal for the row's sake alone, whatever was drafted, keeps the output exact: the extra token
// is then drawn from max(p - 0, 0) = p. Greedy and coupled rows accept the target's own choice
// alone, whatever q is; greedy ones with lenience what comes near it.
OUTRIDER_HOST_DEVICE inline void draft_probability(const SequenceRows& sequence,
                                                   const Processors& processors, int i,
                                                   const DraftedToken& drafted, double& p_draft,
                                                   double& q_draft) {
  const int32_t token = drafted.token;
  const RowDistribution& p = sequence.p[i];
  const bool usable = p.resolved != 0 && p.non_finite == 0;
  q_draft = 1.0;
  if (processors.mode != VerifyMode::rejection) {
    const bool accepted = token == p.choice || (processors.mode == VerifyMode::greedy &&
                                                passes_leniently(p, processors.lenience));
    p_draft = usable ? (accepted ? 1.0 : 0.0) : kNaN;
    return;
  }
  p_draft = usable ? probability(p, p.draft_logit, token) : kNaN;
  q_draft = processors.lenience;
  if (sequence.draft_logits == nullptr) return;
  q_draft = drafted.q.non_finite == 0
                ? probability(drafted.q, drafted.q_logit, token) * processors.lenience
                : kNaN;
}

// Of all of them. p_draft, q_draft: [K]
inline void draft_probabilities(const SequenceRows& sequence, const Processors& processors,
                                double* p_draft, double* q_draft) {
  for (int i = 0; i < sequence.num_drafted; ++i) {
    draft_probability(sequence, processors, i, drafted_token(sequence, processors, i), p_draft[i],
                      q_draft[i]);
  }
}

// Of what the measured α is made, over positions up to and including the first refusal.
struct Overlap {
  double sum;    // Σ min(p / lenience, q)
  double shift;  // of it what lenience added: Σ [min(p / lenience, q) - min(p, q)]
};

// min(p / lenience, q) of a copied token, whose q is 1: its part of the measured α.
OUTRIDER_HOST_DEVICE inline double copied_overlap(double p, float lenience) {
  return lenience < 1.0f ? std::min(p * (1.0 / lenience), 1.0) : p;
}

// Whether a drafted token of probabilities p and q is accepted. u: uniform in [0, 1). No division.
OUTRIDER_HOST_DEVICE inline bool accepts(double p, double q, double u) {
  return u * q < p;  // NaN refuses
}

// Modified rejection sampling (Chen et al. 2023, Algorithm 2; Leviathan et al. 2023, Algorithm 1),
// first half: every rank holds the same p(x_i), q(x_i), so all agree on n, the length of the
// accepted prefix. p_draft, q_draft, u: [K]
inline int verify_accept(const double* p_draft, const double* q_draft, const double* u,
                         int num_drafted) {
  int n = 0;
  while (n < num_drafted && accepts(p_draft[n], q_draft[n], u[n])) ++n;
  return n;
}

// All of a verdict that the accepted length decides; `extra_token` is the row's choice. Lenience
// moved a greedy row by as much as what was accepted is not its arg max.
OUTRIDER_HOST_DEVICE inline Verdict verdict_of(const SequenceRows& sequence, int num_accepted) {
  const RowDistribution& p = sequence.p[num_accepted];
  Verdict verdict{};
  verdict.num_accepted = num_accepted;
  verdict.extra_token = p.choice;
  verdict.extra_logit = p.choice_logit;
  verdict.non_finite = p.non_finite;
  for (int i = num_accepted; p.resolved == 0 && i <= sequence.num_drafted; ++i) {
    verdict.unresolved |= sequence.p[i].resolved == 0 ? 1 << i : 0;
  }
  if (p.non_finite != 0) return verdict;
  verdict.alpha_rows = std::min(num_accepted + 1, sequence.num_drafted);
  verdict.alpha_sum = num_accepted;
  for (int i = 0; i < num_accepted; ++i) {
    verdict.shift_sum += sequence.drafted[i] == sequence.p[i].choice ? 0.0 : 1.0;
  }
  return verdict;
}

// What the token behind the n accepted ones is drawn from, over this rank's shard: max(p - q, 0) of
// row n after a refusal (p without x_n where q is one-hot), p of row K where all were accepted.
OUTRIDER_HOST_DEVICE inline RaceRow extra_token_row(const SequenceRows& sequence,
                                                    int num_accepted) {
  const int n = num_accepted;
  RaceRow row{.p_logits = sequence.target_logits + int64_t{n} * sequence.shard_size,
              .q_logits = nullptr,
              .p = sequence.p[n],
              .q = sequence.p[n],
              .excluded = -1,
              .first_token = sequence.first_token,
              .size = sequence.shard_size};
  if (n == sequence.num_drafted) return row;
  if (sequence.draft_logits == nullptr) {
    row.excluded = sequence.drafted[n];
  } else {
    row.q_logits = draft_shard(sequence, n);
    row.q = sequence.q[n];
  }
  return row;
}

// The extra token, from exchange B: results[r * stride] is rank r's. Where no rank has a token of
// weight (p <= q everywhere, within rounding), it is the refused token itself.
OUTRIDER_HOST_DEVICE inline int32_t verify_commit(const RaceResult* results, int ranks,
                                                  int64_t stride, const SequenceRows& sequence,
                                                  int num_accepted) {
  RaceResult best = results[0];
  for (int r = 1; r < ranks; ++r) {  // ranks own ascending tokens: a tie stays with the smaller
    if (results[r * stride].time < best.time) best = results[r * stride];
  }
  if (best.time < std::numeric_limits<double>::infinity()) return best.token;
  return num_accepted < sequence.num_drafted ? sequence.drafted[num_accepted]
                                             : sequence.p[num_accepted].choice;
}

// The rest of a verdict that a race decides. The sums for α are added in rank order.
OUTRIDER_HOST_DEVICE inline void commit_race(const RaceResult* results, int ranks, int64_t stride,
                                             const SequenceRows& sequence, Verdict& verdict) {
  const int n = verdict.num_accepted;
  verdict.extra_token = verify_commit(results, ranks, stride, sequence, n);
  // Where no rank had a token of weight, the refused one (or the arg max) came back.
  verdict.extra_logit = n < sequence.num_drafted ? sequence.p[n].draft_logit : sequence.p[n].max;
  verdict.alpha_sum = verdict.shift_sum = 0.0;
  for (int r = 0; r < ranks; ++r) {
    const RaceResult& result = results[r * stride];
    verdict.alpha_sum += result.overlap;
    verdict.shift_sum += result.shift;
    const bool won = result.time < std::numeric_limits<double>::infinity();
    if (won && result.token == verdict.extra_token) verdict.extra_logit = result.logit;
  }
}

// Whether a race behind the verdict decides its extra token.
OUTRIDER_HOST_DEVICE inline bool races(const SequenceToVerify& sequence, const Verdict& verdict) {
  return sequence.rows.num_drafted >= 0 && sequence.processors.mode == VerifyMode::rejection &&
         verdict.non_finite == 0 && verdict.unresolved == 0;
}

}  // namespace outrider
