#include "kernels/cpu/sample.h"

#include <algorithm>

#include "kernels/cpu/distribution.h"
#include "kernels/cpu/lanes_kernels.h"
#include "kernels/distribution.h"
#include "kernels/math_f64.h"

namespace outrider::cpu {

namespace {

constexpr int kBlock = 4 * kPhiloxBlock;  // tokens: a word each
constexpr double kNever = kNobody.time;

using PhiloxBlock = decltype(scalar::philox_block);

PhiloxBlock* philox_of(Isa isa) {
  return isa == Isa::scalar ? scalar::philox_block
         : isa == Isa::avx2 ? avx2::philox_block
                            : avx512::philox_block;
}

// words[i] = random_word(key, offset, purpose, first_token + i); first_token is a multiple of 4.
[[gnu::always_inline]] inline void random_block(PhiloxBlock* philox, const RandomKey& key,
                                                int offset, Purpose purpose, uint32_t first_token,
                                                uint32_t* words) {
  const auto counter = philox_counter(key, offset, purpose, first_token);
  const PhiloxKey halves = philox_key(key);
  philox(counter.data(), halves.low, halves.high, words);
}

[[gnu::always_inline]] inline void weights(const RaceRow& row, int32_t begin, int32_t count,
                                           double* w) {
  const RowDistribution p = row.p, q = row.q;
  const double p_scale = 1.0 / p.sum, q_scale = 1.0 / q.sum;  // as in probability()
  const int32_t first_token = row.first_token + begin;
  float e[kBlock];
  const float* logits = row.p_logits + begin;
  for (int32_t i = 0; i < count; ++i) e[i] = kept_exp(p, logits[i], first_token + i);
  for (int32_t i = 0; i < count; ++i) w[i] = e[i] * p_scale;
  if (row.q_logits != nullptr) {
    logits = row.q_logits + begin;
    for (int32_t i = 0; i < count; ++i) e[i] = kept_exp(q, logits[i], first_token + i);
    for (int32_t i = 0; i < count; ++i) {
      const double left = w[i] - e[i] * q_scale;
      w[i] = left > 0.0 ? left : 0.0;
    }
  }
  const int64_t excluded = int64_t{row.excluded} - first_token;
  if (row.excluded >= 0 && 0 <= excluded && excluded < count) w[excluded] = 0.0;
}

// u[i] = race_uniform of words[i], which is token first_token + i's.
[[gnu::always_inline]] inline void uniforms(const RandomKey& key, int offset, Purpose purpose,
                                            int32_t first_token, const uint32_t* words,
                                            int32_t count, double* u) {
  uint32_t smallest = UINT32_MAX;
  for (int32_t i = 0; i < count; ++i) {
    u[i] = (static_cast<double>(words[i]) + 0.5) * 0x1p-32;
    smallest = words[i] < smallest ? words[i] : smallest;
  }
  if (smallest >= kRefineBelow) return;
  for (int32_t i = 0; i < count; ++i) {
    u[i] = race_uniform(words[i], [&] {
      return random_word(key, offset, refined(purpose), static_cast<uint32_t>(first_token + i));
    });
  }
}

// The index of the smallest time below `best`, then the smallest index; -1: none is. time has room
// for a multiple of 8.
[[gnu::always_inline]] inline int32_t first_arrival(double* time, int32_t count, double best) {
  constexpr int kLanes = 8;
  int32_t padded = count;
  while (padded % kLanes != 0) time[padded++] = kNever;
  double lanes[kLanes];
  std::fill_n(lanes, kLanes, kNever);
  for (int32_t i = 0; i < padded; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = time[i + lane] < lanes[lane] ? time[i + lane] : lanes[lane];
    }
  }
  const double smallest = *std::min_element(lanes, lanes + kLanes);
  if (!(smallest < best)) return -1;
  return static_cast<int32_t>(std::find(time, time + count, smallest) - time);
}

// Whether one of the tokens may be kept by the row's cut. The others never arrive, and few blocks
// of a filtered row have one.
[[gnu::always_inline]] inline bool may_keep(const float* logits, int32_t count,
                                            const RowDistribution& row) {
  int32_t may = 0;
  for (int32_t i = 0; i < count; ++i) may |= logits[i] >= row.cut_logit ? 1 : 0;
  return may != 0;
}

// Whether one of the tokens, of pace (logit - max) * per, may have log E - pace below `limit`. Few
// blocks have one: the others need no logarithm, and no weights.
[[gnu::always_inline]] inline bool can_win(const float* logits, int32_t count,
                                           const uint32_t* words, float max, float per,
                                           float limit) {
  int32_t can = 0;
  for (int32_t i = 0; i < count; ++i) {
    can |= arrival_bound(words[i], (logits[i] - max) * per) < limit ? 1 : 0;
  }
  return can != 0;
}

[[gnu::always_inline]] inline RaceResult race_body(const RaceRow& row, const RandomKey& key,
                                                   int offset, Purpose purpose,
                                                   PhiloxBlock* philox) {
  RaceResult best{.time = kNever, .overlap = 0.0, .shift = 0.0, .token = -1, .logit = 0.0f};
  const auto per = static_cast<float>(per_temperature(row.p.temperature));
  float limit = kInfinity;
  const bool filtered = row.p.cut_logit > -kInfinity;
  const int32_t skipped = row.first_token % 4;  // blocks of random words start at multiples of 4
  for (int32_t block = -skipped; block < row.size; block += kBlock) {
    const int32_t begin = std::max(block, 0);
    const int32_t count = std::min(block + kBlock, row.size) - begin;
    if (filtered && !may_keep(row.p_logits + begin, count, row.p)) continue;
    uint32_t of_block[kBlock];
    const auto first_word = static_cast<uint32_t>(row.first_token + block);
    random_block(philox, key, offset, purpose, first_word, of_block);
    const uint32_t* const words = of_block + (begin - block);
    if (!can_win(row.p_logits + begin, count, words, row.p.max, per, limit)) continue;
    double w[kBlock], u[kBlock], time[kBlock];
    weights(row, begin, count, w);
    uniforms(key, offset, purpose, row.first_token + begin, words, count, u);
    // Tokens of weight 0 never arrive: E > 0.
    for (int32_t i = 0; i < count; ++i) time[i] = neg_log1p_f64(u[i]) / w[i];
    const int32_t i = first_arrival(time, count, best.time);
    if (i < 0) continue;
    best.time = time[i];
    best.token = row.first_token + begin + i;
    best.logit = row.p_logits[begin + i];
    // E / w < time only where log E - pace < log(time / sum): w <= e^pace / sum.
    limit = static_cast<float>(log_f64(best.time / row.p.sum));
  }
  return best;
}

OUTRIDER_MULTIVERSION(RaceResult, race,
                      (const RaceRow& row, const RandomKey& key, int offset, Purpose purpose,
                       PhiloxBlock* philox),
                      (row, key, offset, purpose, philox));

[[gnu::always_inline]] inline Runner coupled_race_body(const RaceRow& row, const RandomKey& key,
                                                       Purpose purpose, PhiloxBlock* philox) {
  const double per = per_temperature(row.p.temperature);
  Runner best = kNobody;
  const bool filtered = row.p.cut_logit > -kInfinity;
  const int32_t skipped = row.first_token % 4;
  for (int32_t block = -skipped; block < row.size; block += kBlock) {
    const int32_t begin = std::max(block, 0);
    const int32_t count = std::min(block + kBlock, row.size) - begin;
    const float* const logits = row.p_logits + begin;
    if (filtered && !may_keep(logits, count, row.p)) continue;
    uint32_t of_block[kBlock];
    const auto first_word = static_cast<uint32_t>(row.first_token + block);
    random_block(philox, key, 0, purpose, first_word, of_block);
    const uint32_t* const words = of_block + (begin - block);
    const auto limit = static_cast<float>(best.time);
    if (!can_win(logits, count, words, 0.0f, static_cast<float>(per), limit)) continue;
    double u[kBlock], time[kBlock];
    uniforms(key, 0, purpose, row.first_token + begin, words, count, u);
    for (int32_t i = 0; i < count; ++i) {
      const double arrival = coupled_time(u[i], logits[i] * per);
      time[i] = is_kept(row.p, logits[i], row.first_token + begin + i) ? arrival : kNever;
    }
    const int32_t i = first_arrival(time, count, best.time);
    if (i >= 0) best = {time[i], row.first_token + begin + i, logits[i]};
  }
  return best;
}

OUTRIDER_MULTIVERSION(Runner, coupled_race,
                      (const RaceRow& row, const RandomKey& key, Purpose purpose,
                       PhiloxBlock* philox),
                      (row, key, purpose, philox));

}  // namespace

void race_weights(const RaceRow& row, int32_t begin, int32_t count, double* w) {
  for (int32_t done = 0; done < count; done += kBlock) {
    weights(row, begin + done, std::min(kBlock, count - done), w + done);
  }
}

RaceResult race(const RaceRow& row, const RandomKey& key, int offset, Purpose purpose, Isa isa) {
  return OUTRIDER_DISPATCH(isa, race, (row, key, offset, purpose, philox_of(isa)));
}

Runner coupled_race(const RaceRow& row, const RandomKey& key, Purpose purpose, Isa isa) {
  return OUTRIDER_DISPATCH(isa, coupled_race, (row, key, purpose, philox_of(isa)));
}

RaceRow draft_row(const float* logits, int64_t vocab_size, const RowDistribution& q) {
  return {.p_logits = logits,
          .q_logits = nullptr,
          .p = q,
          .q = q,
          .excluded = -1,
          .first_token = 0,
          .size = static_cast<int32_t>(vocab_size)};
}

int32_t sample_draft(const float* logits, int64_t vocab_size, const RowDistribution& q,
                     const DraftRow& row, Isa isa) {
  if (q.non_finite != 0) return 0;
  const RaceRow race_row = draft_row(logits, vocab_size, q);
  switch (row.processors.mode) {
    case VerifyMode::greedy:
      return q.choice;
    case VerifyMode::rejection:
      return race(race_row, row.key, row.offset, Purpose::draft, isa).token;
    case VerifyMode::coupled:
      return coupled_race(race_row, coupled_key(row.key, row.offset), coupled_purpose(row), isa)
          .token;
  }
  return q.choice;
}

void sample_drafts(float* logits, int64_t vocab_size, const DraftRow* rows, int64_t num_rows,
                   int32_t* drafted, RowDistribution* q, float* q_logits, Isa isa) {
  for (int64_t r = 0; r < num_rows; ++r) {
    float* const row_logits = logits + r * vocab_size;
    const DraftRow& row = rows[r];
    if (row.masked >= 0) row_logits[drafted[row.masked]] = kUnscoredLogit;
    q[row.drafted] = process_row(row_logits, vocab_size, row.processors, isa);
    drafted[row.drafted] = sample_draft(row_logits, vocab_size, q[row.drafted], row, isa);
    if (row.processors.mode == VerifyMode::rejection) {
      std::copy_n(row_logits, vocab_size, q_logits + row.drafted * vocab_size);
    }
  }
}

}  // namespace outrider::cpu
