#include "kernels/cpu/verify.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/distribution.h"
#include "kernels/cpu/sample.h"

namespace outrider::cpu {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Σ min(p, q) over n tokens.
[[gnu::always_inline]] inline double overlap_body(const float* p_logits, const RowDistribution& p,
                                                  const float* q_logits, const RowDistribution& q,
                                                  int32_t first_token, int32_t n) {
  constexpr int kLanes = 16;
  constexpr int32_t kBlock = 512;
  const double p_scale = 1.0 / p.sum, q_scale = 1.0 / q.sum;
  double lanes[kLanes] = {};
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
        lanes[lane] += a < b ? a : b;
      }
    }
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

OUTRIDER_MULTIVERSION(double, overlap,
                      (const float* p_logits, const RowDistribution& p, const float* q_logits,
                       const RowDistribution& q, int32_t first_token, int32_t n),
                      (p_logits, p, q_logits, q, first_token, n));

// This rank's part of row i of the draft's logits.
const float* draft_shard(const SequenceRows& sequence, int i) {
  return sequence.draft_logits + i * sequence.draft_stride + sequence.first_token;
}

}  // namespace

void draft_probabilities(const SequenceRows& sequence, const Processors& processors,
                         double* p_draft, double* q_draft) {
  const bool sampled = sequence.draft_logits != nullptr && processors.mode == VerifyMode::rejection;
  for (int i = 0; i < sequence.num_drafted; ++i) {
    const int32_t token = sequence.drafted[i];
    const RowDistribution& p = sequence.p[i];
    const bool usable = p.resolved != 0 && p.non_finite == 0;
    p_draft[i] = usable ? probability(p, p.draft_logit, token) : kNaN;
    q_draft[i] = 1.0;
    if (!sampled) continue;
    const RowDistribution& q = sequence.q[i];
    const float logit = sequence.draft_logits[i * sequence.draft_stride + token];
    q_draft[i] = q.non_finite == 0 ? probability(q, logit, token) : kNaN;
  }
}

int verify_accept(const double* p_draft, const double* q_draft, const double* u, int num_drafted) {
  for (int i = 0; i < num_drafted; ++i) {
    if (!(u[i] * q_draft[i] < p_draft[i])) return i;  // NaN refuses
  }
  return num_drafted;
}

RaceRow extra_token_row(const SequenceRows& sequence, int num_accepted) {
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

RaceResult extra_token_race(const SequenceRows& sequence, int num_accepted, const RandomKey& key,
                            Isa isa) {
  return race(extra_token_row(sequence, num_accepted), key, num_accepted, Purpose::extra, isa);
}

int32_t verify_commit(const RaceResult* results, int ranks, const SequenceRows& sequence,
                      int num_accepted) {
  RaceResult best = results[0];
  for (int r = 1; r < ranks; ++r) {  // ranks own ascending tokens: a tie stays with the smaller
    if (results[r].time < best.time) best = results[r];
  }
  if (best.time < std::numeric_limits<double>::infinity()) return best.token;
  return num_accepted < sequence.num_drafted ? sequence.drafted[num_accepted]
                                             : sequence.p[num_accepted].argmax;
}

double shard_overlap(const SequenceRows& sequence, int num_accepted, Isa isa) {
  double sum = 0.0;
  for (int i = 0; i <= num_accepted && i < sequence.num_drafted; ++i) {
    const RowDistribution& p = sequence.p[i];
    if (sequence.draft_logits == nullptr) {
      const int64_t owned = int64_t{sequence.drafted[i]} - sequence.first_token;
      if (owned < 0 || owned >= sequence.shard_size) continue;
      sum += probability(p, p.draft_logit, sequence.drafted[i]);
    } else {
      const float* p_logits = sequence.target_logits + int64_t{i} * sequence.shard_size;
      sum += OUTRIDER_DISPATCH(isa, overlap,
                               (p_logits, p, draft_shard(sequence, i), sequence.q[i],
                                sequence.first_token, sequence.shard_size));
    }
  }
  return sum;
}

}  // namespace outrider::cpu
