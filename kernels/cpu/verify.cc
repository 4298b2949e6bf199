#include "kernels/cpu/verify.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/distribution.h"
#include "kernels/cpu/sample.h"

namespace outrider::cpu {

namespace {

// Over n tokens.
[[gnu::always_inline]] inline Overlap overlap_body(const float* p_logits, const RowDistribution& p,
                                                   const float* q_logits, const RowDistribution& q,
                                                   int32_t first_token, int32_t n, float lenience) {
  constexpr int kLanes = 16;
  constexpr int32_t kBlock = 512;
  const double p_scale = 1.0 / p.sum, q_scale = 1.0 / q.sum;
  const double per_lenience = 1.0 / lenience;
  double lanes[kLanes] = {}, exact[kLanes] = {};
  for (int32_t begin = 0; begin < n; begin += kBlock) {
    float p_exp[kBlock], q_exp[kBlock];
    const int32_t count = std::min(kBlock, n - begin);
    for (int32_t i = 0; i < count; ++i) {
      p_exp[i] = kept_exp(p, p_logits[begin + i], first_token + begin + i);
    }
    for (int32_t i = 0; i < count; ++i) {
      q_exp[i] = kept_exp(q, q_logits[begin + i], first_token + begin + i);
    }
    int32_t padded = count;
    while (padded % kLanes != 0) {
      p_exp[padded] = 0.0f;
      q_exp[padded++] = 0.0f;
    }
    for (int32_t i = 0; i < padded; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const double a = p_exp[i + lane] * p_scale, b = q_exp[i + lane] * q_scale;
        const double lenient = a * per_lenience;
        lanes[lane] += lenient < b ? lenient : b;
        exact[lane] += a < b ? a : b;
      }
    }
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) {
      lanes[lane] += lanes[lane + width];
      exact[lane] += exact[lane + width];
    }
  }
  return {lanes[0], lanes[0] - exact[0]};
}

OUTRIDER_MULTIVERSION(Overlap, overlap,
                      (const float* p_logits, const RowDistribution& p, const float* q_logits,
                       const RowDistribution& q, int32_t first_token, int32_t n, float lenience),
                      (p_logits, p, q_logits, q, first_token, n, lenience));

}  // namespace

RaceResult extra_token_race(const SequenceRows& sequence, int num_accepted, const RandomKey& key,
                            Isa isa) {
  return race(extra_token_row(sequence, num_accepted), key, num_accepted, Purpose::extra, isa);
}

Overlap shard_overlap(const SequenceRows& sequence, int num_accepted, float lenience, Isa isa) {
  Overlap total{};
  for (int i = 0; i <= num_accepted && i < sequence.num_drafted; ++i) {
    const RowDistribution& p = sequence.p[i];
    if (sequence.draft_logits == nullptr) {
      const int64_t owned = int64_t{sequence.drafted[i]} - sequence.first_token;
      if (owned < 0 || owned >= sequence.shard_size) continue;
      const double exact = probability(p, p.draft_logit, sequence.drafted[i]);
      const double lenient = copied_overlap(exact, lenience);
      total.sum += lenient;
      total.shift += lenient - exact;
    } else {
      const float* p_logits = sequence.target_logits + int64_t{i} * sequence.shard_size;
      const Overlap of_row =
          OUTRIDER_DISPATCH(isa, overlap,
                            (p_logits, p, draft_shard(sequence, i), sequence.q[i],
                             sequence.first_token, sequence.shard_size, lenience));
      total.sum += of_row.sum;
      total.shift += of_row.shift;
    }
  }
  return total;
}

void copy_tokens(const TokenCopy* copies, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (copies[i].from != nullptr) *copies[i].to = *copies[i].from;
  }
}

void accept_step(const SequenceToVerify* sequences, int64_t n, Verdict* verdicts) {
  for (int64_t s = 0; s < n; ++s) {
    const SequenceToVerify& sequence = sequences[s];
    const int k = sequence.rows.num_drafted;
    if (k < 0) continue;
    double u[kMaxDraftTokens], p_draft[kMaxDraftTokens], q_draft[kMaxDraftTokens];
    const bool samples = sequence.processors.mode == VerifyMode::rejection;
    for (int i = 0; i < k; ++i) u[i] = samples ? accept_uniform(sequence.key, i) : 0.0;
    draft_probabilities(sequence.rows, sequence.processors, p_draft, q_draft);
    const int accepted = verify_accept(p_draft, q_draft, u, k);
    verdicts[s] = verdict_of(sequence.rows, accepted);
  }
}

void race_step(const SequenceToVerify* sequences, int64_t n, const Verdict* verdicts,
               RaceResult* results, Isa isa) {
  for (int64_t s = 0; s < n; ++s) {
    results[s] = {std::numeric_limits<double>::infinity(), 0.0, 0.0, -1, 0.0f};
    if (!races(sequences[s], verdicts[s])) continue;
    const int accepted = verdicts[s].num_accepted;
    results[s] = extra_token_race(sequences[s].rows, accepted, sequences[s].key, isa);
    const Overlap overlap =
        shard_overlap(sequences[s].rows, accepted, sequences[s].processors.lenience, isa);
    results[s].overlap = overlap.sum;
    results[s].shift = overlap.shift;
  }
}

void commit_step(const SequenceToVerify* sequences, int64_t n, const RaceResult* results, int ranks,
                 Verdict* verdicts) {
  for (int64_t s = 0; s < n; ++s) {
    if (!races(sequences[s], verdicts[s])) continue;
    commit_race(results + s, ranks, n, sequences[s].rows, verdicts[s]);
  }
}

}  // namespace outrider::cpu
