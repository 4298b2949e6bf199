// The race of exponentials against its definition, token by token, in long double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <iterator>
#include <random>
#include <vector>

#include "kernels/cpu/distribution.h"
#include "kernels/cpu/lanes_kernels.h"
#include "kernels/cpu/sample.h"
#include "kernels/math_f64.h"

namespace outrider::cpu {
namespace {

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (isa_available(isa)) isas.push_back(isa);
  }
  return isas;
}

// Every logit kept, temperature 1.
RowDistribution unfiltered(double sum) {
  return {.sum = sum,
          .max = 0.0f,
          .choice = 0,
          .choice_logit = 0.0f,
          .temperature = 1.0f,
          .cut_logit = -INFINITY,
          .cut_token = INT32_MAX,
          .draft_logit = -INFINITY,
          .non_finite = 0,
          .resolved = 1};
}

RaceRow bonus_row(const std::vector<float>& logits, int32_t first_token) {
  return {.p_logits = logits.data(),
          .q_logits = nullptr,
          .p = unfiltered(1.0),
          .q = unfiltered(1.0),
          .excluded = -1,
          .first_token = first_token,
          .size = static_cast<int32_t>(logits.size())};
}

// u as kernels/randomness.h writes it down.
long double reference_uniform(const RandomKey& key, int offset, Purpose purpose, uint32_t token) {
  const uint32_t k = random_word(key, offset, purpose, token);
  if (k >= 256) return (k + 0.5L) * 0x1p-32L;
  const uint32_t second = random_word(key, offset, refined(purpose), token);
  return (k * 0x1p32L + second + 0.5L) * 0x1p-64L;
}

RaceResult reference_race(const RaceRow& row, const RandomKey& key, int offset, Purpose purpose) {
  std::vector<double> w(row.size);
  race_weights(row, 0, row.size, w.data());
  long double best = INFINITY;
  int32_t winner = -1;
  for (int32_t i = 0; i < row.size; ++i) {
    if (w[i] == 0.0) continue;
    const auto token = static_cast<uint32_t>(row.first_token + i);
    const long double time = -log1pl(-reference_uniform(key, offset, purpose, token)) / w[i];
    if (time < best) best = time, winner = row.first_token + i;
  }
  return {static_cast<double>(best), 0.0, 0.0, winner, 0.0f};
}

// The promised bounds are four roundings (2^-53 each) of the last operations: above the series'
// remainder, below what a term too few would give (9e-16).
TEST(MathF64, LogIsAccurateDownToTheSmallestUniform) {
  std::mt19937_64 random(1);
  double worst = 0.0;
  const auto check = [&](double u) {
    const long double exact = -log1pl(-static_cast<long double>(u));
    worst = std::max(worst, static_cast<double>(fabsl((neg_log1p_f64(u) - exact) / exact)));
  };
  for (int i = 0; i < 1'000'000; ++i) {
    const auto k = static_cast<uint32_t>(random());
    check((k + 0.5) * 0x1p-32);
    check((random() % (uint64_t{1} << 40) + 0.5) * 0x1p-64);
  }
  for (const double u : {0x1p-65, 0.25, std::nextafter(0.25, 0.0), 0.5, 1 - std::sqrt(0.5),
                         1.0 - 0x1p-33, 0.29289321, 0.2928932}) {
    check(u);
  }
  EXPECT_LT(worst, 5e-16);
}

TEST(MathF64, NaturalLogIsAccurate) {
  std::mt19937_64 random(6);
  std::uniform_real_distribution<double> exponent(-66.0, 5.0);
  double worst = 0.0;
  const auto check = [&](double x) {
    const long double exact = logl(x);
    worst = std::max(worst, static_cast<double>(fabsl((log_f64(x) - exact) / exact)));
  };
  for (int i = 0; i < 1'000'000; ++i) check(std::exp2(exponent(random)));
  for (const double x :
       {0x1p-66, 0.5, std::sqrt(0.5), std::nextafter(std::sqrt(0.5), 0.0), std::nextafter(1.0, 0.0),
        std::nextafter(1.0, 2.0), std::sqrt(2.0), 22.9}) {
    check(x);
  }
  EXPECT_LT(worst, 5e-16);
  EXPECT_EQ(log_f64(1.0), 0.0);
}

TEST(MathF64, ExpIsAccurate) {
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> uniform(-700.0, 0.0);
  double worst = 0.0;
  for (int i = 0; i < 1'000'000; ++i) {
    const double x = i % 2 == 0 ? uniform(random) : uniform(random) / 300.0;
    const long double exact = expl(x);
    worst = std::max(worst, static_cast<double>(fabsl((exp_f64(x) - exact) / exact)));
  }
  EXPECT_LT(worst, 4e-16);
  EXPECT_EQ(exp_f64(0.0), 1.0);
  EXPECT_EQ(exp_f64(-1e9), 0.0);
  EXPECT_EQ(exp_f64(-INFINITY), 0.0);
}

TEST(Philox, ABlockIsItsCalls) {
  std::mt19937 random(16);
  const auto word = [&] { return static_cast<uint32_t>(random()); };
  for (int i = 0; i < 100; ++i) {
    // The first counter passes 2^32.
    const std::array<uint32_t, 4> counter{i == 0 ? 0xffffffe0u : word(), word(), word(), word()};
    const PhiloxKey key{word(), word()};
    std::vector<uint32_t> expected;
    for (uint32_t call = 0; call < kPhiloxBlock; ++call) {
      const auto words = philox4x32({counter[0] + call, counter[1], counter[2], counter[3]}, key);
      expected.insert(expected.end(), words.begin(), words.end());
    }
    for (const Isa isa : available_isas()) {
      std::vector<uint32_t> words(4 * kPhiloxBlock);
      const auto block = isa == Isa::scalar ? scalar::philox_block
                         : isa == Isa::avx2 ? avx2::philox_block
                                            : avx512::philox_block;
      block(counter.data(), key.low, key.high, words.data());
      EXPECT_EQ(words, expected) << isa_name(isa);
    }
  }
}

// Sizes around the blocks of random words, shards that start anywhere in a group of four; the large
// one has blocks in which nobody can win.
TEST(Race, FollowsItsDefinitionOnEveryInstructionSet) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(-3.0f, 3.0f);
  for (const int size : {1, 2, 3, 5, 16, 255, 256, 257, 1000, 10000}) {
    for (const int first_token : {0, 1, 2, 3, 4, 1027}) {
      std::vector<float> logits(size), draft(size);
      for (float& x : logits) x = normal(random);
      for (float& x : draft) x = normal(random);
      RaceRow row = bonus_row(logits, first_token);
      for (int variant = 0; variant < 4; ++variant) {
        if (variant == 1) row.excluded = first_token + size / 2;
        if (variant == 2) row.q_logits = draft.data();
        if (variant == 3) row.p.cut_logit = logits[0];
        for (uint32_t base = 0; base < 4; ++base) {
          const RandomKey key{.seed = 0x123456789abcdefu, .choice = 2, .base = base};
          const RaceResult expected = reference_race(row, key, variant, Purpose::extra);
          const RaceResult scalar = race(row, key, variant, Purpose::extra, Isa::scalar);
          EXPECT_EQ(scalar.token, expected.token);
          if (expected.token < 0) {
            EXPECT_EQ(scalar.time, INFINITY);
            continue;
          }
          EXPECT_NEAR(scalar.time / expected.time, 1.0, 1e-15);  // the log's 5e-16, a quotient's
          EXPECT_EQ(scalar.logit, logits[expected.token - first_token]);
          for (const Isa isa : available_isas()) {
            const RaceResult result = race(row, key, variant, Purpose::extra, isa);
            EXPECT_EQ(result.token, scalar.token);
            EXPECT_EQ(result.time, scalar.time) << isa_name(isa);
          }
        }
      }
    }
  }
}

// About one word in 2^24 is below 256: look for one, and let its token run alone.
TEST(Race, RefinesTheSmallestUniforms) {
  const std::vector<float> logits(1, 0.0f);
  int found = 0;
  for (uint32_t token = 0; token < (1u << 26) && found < 3; token += 4) {
    const RandomKey key{.seed = 5};
    const auto words = philox4x32(philox_counter(key, 0, Purpose::draft, token), philox_key(key));
    for (uint32_t i = 0; i < 4; ++i) {
      if (words[i] >= kRefineBelow) continue;
      ++found;
      const auto first = static_cast<int32_t>(token + i);
      const double time = race(bonus_row(logits, first), key, 0, Purpose::draft, Isa::scalar).time;
      const double coarse = (words[i] + 0.5) * 0x1p-32;
      const auto fine = static_cast<double>(reference_uniform(key, 0, Purpose::draft, token + i));
      EXPECT_NEAR(time / fine, 1.0, 1e-6);  // E = u (1 + u / 2 + …), u < 2^-24
      EXPECT_NE(time, coarse);
      EXPECT_LE(std::abs(fine - coarse), 0x1p-33);
    }
  }
  EXPECT_EQ(found, 3);
}

TEST(Race, PurposesAndPositionsHaveCountersOfTheirOwn) {
  const RandomKey key{.seed = 1, .choice = 0, .base = 10};
  std::vector<uint32_t> words;
  for (const Purpose purpose :
       {Purpose::draft, Purpose::accept, Purpose::extra, Purpose::draft_refined,
        Purpose::extra_refined, Purpose::coupled, Purpose::coupled_refined}) {
    for (int offset = 0; offset <= kMaxDraftTokens; ++offset) {
      for (uint32_t token = 0; token < 8; ++token) {
        words.push_back(random_word(key, offset, purpose, token));
      }
    }
  }
  for (const RandomKey& other :
       {RandomKey{2, 0, 10}, {1, 1, 10}, {1, 0, 11}, {1ull << 32, 0, 10}}) {
    words.push_back(random_word(other, 0, Purpose::draft, 0));
  }
  // 900 words: two of 2^32 values agree by chance in one run of 10,000.
  std::sort(words.begin(), words.end());
  EXPECT_EQ(std::adjacent_find(words.begin(), words.end()), words.end());
}

// What the races pass over tokens by, with the roundings that they make. Not late, and for u <= 1/2
// early by no more than log(E / u) = 0.33, the chord of log2 (0.06), half of word 257 (0.01) and
// the slack.
TEST(Race, TheBoundIsNeverLate) {
  std::mt19937_64 random(14);
  const float logits[] = {0.0f, 0.37f, -19.0f, 46.5f, -0x1p30f, 0x1p30f};
  const float temperatures[] = {1e-5f, 0.1f, 0.7f, 1.0f, 3.0f, 1e30f};
  const auto check = [&](uint32_t word, uint32_t second) {
    const double u = race_uniform(word, [&] { return second; });
    const float logit = logits[random() % std::size(logits)];
    const double per = per_temperature(temperatures[random() % std::size(temperatures)]);
    const float pace = logit * static_cast<float>(per);
    const auto time = static_cast<float>(coupled_time(u, logit * per));
    const float bound = arrival_bound(word, pace);
    EXPECT_LT(bound, time) << word << ' ' << pace;
    if (word >= kRefineBelow && u <= 0.5) {
      EXPECT_GT(bound, time - 0.41 - std::abs(pace) * 2e-6) << word << ' ' << pace;
    }
  };
  for (int i = 0; i < 300'000; ++i) {
    const auto word = static_cast<uint32_t>(random());
    check(word, 0);
    check(word % kRefineBelow, static_cast<uint32_t>(random()));
  }
  for (int n = 0; n < 32; ++n) {
    for (const uint32_t around : {0u, 1u, UINT32_MAX}) check((1u << n) + around, 0);
  }
  check(UINT32_MAX, UINT32_MAX);
  for (const float temperature : {1e-5f, 0.1f, 1.0f}) {
    const float bound = arrival_bound(0, kUnscoredLogit / temperature);
    EXPECT_GT(bound, 1e29f);
    EXPECT_LT(bound, INFINITY);
  }
}

// Rows with blocks in which nobody can win, of maxima, sums and temperatures that are not 1.
TEST(Race, FollowsItsDefinitionAtEveryScale) {
  constexpr int kSize = 10000;
  std::mt19937 random(17);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> draft(kSize);
  for (float& x : draft) x = normal(random);
  const RowDistribution q =
      process_row(draft.data(), kSize, {.mode = VerifyMode::rejection}, Isa::scalar);
  for (const float shift : {-40.0f, 0.0f, 40.0f}) {
    std::vector<float> logits(kSize);
    for (float& x : logits) x = shift + normal(random);
    for (const float temperature : {0.01f, 0.3f, 1.0f, 5.0f}) {
      for (const int32_t top_k : {0, 50}) {
        const Processors processors{
            .mode = VerifyMode::rejection, .temperature = temperature, .top_k = top_k};
        RaceRow row = draft_row(logits.data(), kSize,
                                process_row(logits.data(), kSize, processors, Isa::scalar));
        for (const bool residual : {false, true}) {
          if (residual) row.q = q, row.q_logits = draft.data();
          for (uint32_t base = 0; base < 8; ++base) {
            const RandomKey key{.seed = 4, .choice = 0, .base = base};
            const RaceResult expected = reference_race(row, key, 0, Purpose::extra);
            for (const Isa isa : available_isas()) {
              const RaceResult result = race(row, key, 0, Purpose::extra, isa);
              EXPECT_EQ(result.token, expected.token) << isa_name(isa);
              EXPECT_NEAR(result.time / expected.time, 1.0, 1e-15);
            }
          }
        }
      }
    }
  }
}

TEST(Race, WithoutWeightNobodyArrives) {
  const std::vector<float> logits{1.0f, 2.0f, 3.0f};
  RaceRow row = bonus_row(logits, 7);
  row.q_logits = logits.data();  // p = q
  for (const Isa isa : available_isas()) {
    const RaceResult result = race(row, {}, 0, Purpose::extra, isa);
    EXPECT_EQ(result.time, INFINITY);
    EXPECT_EQ(result.token, -1);
  }
}

// The smallest time of shards is that of their union, bit for bit.
TEST(Race, ShardingCannotChangeTheOutcome) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(1001);
  for (float& x : logits) x = normal(random);
  for (uint32_t base = 0; base < 200; ++base) {
    const RandomKey key{.seed = 9, .choice = 0, .base = base};
    const RaceResult whole = race(bonus_row(logits, 0), key, 1, Purpose::extra, Isa::scalar);
    for (const int cut : {1, 255, 256, 333, 1000}) {
      const std::vector<float> left(logits.begin(), logits.begin() + cut);
      const std::vector<float> right(logits.begin() + cut, logits.end());
      const RaceResult a = race(bonus_row(left, 0), key, 1, Purpose::extra, Isa::scalar);
      const RaceResult b = race(bonus_row(right, cut), key, 1, Purpose::extra, Isa::scalar);
      EXPECT_EQ((b.time < a.time ? b : a).token, whole.token);
      EXPECT_EQ(std::min(a.time, b.time), whole.time);
    }
  }
}

// Behind the scenes of coupled rows: arg max (logit / T + Gumbel) in long double.
Runner reference_coupled(const RaceRow& row, const RandomKey& key, Purpose purpose) {
  Runner best = kNobody;
  long double time = INFINITY;
  for (int32_t i = 0; i < row.size; ++i) {
    const int32_t token = row.first_token + i;
    if (!is_kept(row.p, row.p_logits[i], token)) continue;
    const long double u = reference_uniform(key, 0, purpose, static_cast<uint32_t>(token));
    const long double gumbel = -logl(-log1pl(-u));
    const long double t = -(static_cast<long double>(row.p_logits[i]) / row.p.temperature + gumbel);
    if (t >= time) continue;
    time = t;
    best = {static_cast<double>(t), token, row.p_logits[i]};
  }
  return best;
}

TEST(CoupledRace, FollowsItsDefinitionOnEveryInstructionSet) {
  std::mt19937 random(13);
  std::normal_distribution<float> normal(-3.0f, 3.0f);
  for (const int size : {1, 2, 3, 5, 16, 255, 256, 257, 1000, 10000}) {
    for (const int first_token : {0, 1, 2, 3, 4, 1027}) {
      std::vector<float> logits(size);
      for (float& x : logits) x = normal(random);
      for (int variant = 0; variant < 4; ++variant) {
        const float temperatures[] = {1.0f, 0.3f, 5.0f, 1.0f};
        RaceRow row = coupled_shard(logits.data(), first_token, size, temperatures[variant]);
        if (variant == 3) {
          row.p.cut_logit = logits[size / 2];
          row.p.cut_token = first_token + size / 2;
        }
        for (uint32_t position = 0; position < 4; ++position) {
          const RandomKey key{.seed = 0x123456789abcdefu, .choice = 2, .base = position};
          const Purpose purpose = position == 3 ? Purpose::extra : Purpose::coupled;
          const Runner expected = reference_coupled(row, key, purpose);
          const Runner scalar = coupled_race(row, key, purpose, Isa::scalar);
          EXPECT_EQ(scalar.token, expected.token);
          EXPECT_EQ(scalar.logit, expected.logit);
          EXPECT_NEAR(scalar.time, expected.time, 1e-13);  // of at most 64, in four roundings
          for (const Isa isa : available_isas()) {
            const Runner result = coupled_race(row, key, purpose, isa);
            EXPECT_EQ(result.token, scalar.token);
            EXPECT_EQ(result.time, scalar.time) << isa_name(isa);
          }
          if (purpose != Purpose::coupled) continue;
          // A candidate's time is the race's, bit for bit.
          const Runner candidate = coupled_candidate(row.p, key, {scalar.logit, scalar.token});
          EXPECT_EQ(candidate.time, scalar.time);
        }
      }
    }
  }
}

// A trimmed head's shard may score nothing.
TEST(CoupledRace, TokensThatNobodyScoresArriveLate) {
  const std::vector<float> logits(1000, kUnscoredLogit);
  for (const float temperature : {0.1f, 1.0f}) {
    const RaceRow row = coupled_shard(logits.data(), 0, 1000, temperature);
    for (const Isa isa : available_isas()) {
      const Runner result = coupled_race(row, {.seed = 3}, Purpose::coupled, isa);
      EXPECT_GE(result.token, 0);
      EXPECT_GT(result.time, 1e30);
      EXPECT_LT(result.time, INFINITY);
    }
  }
}

TEST(CoupledRace, ShardsTiesAndDraftsCannotChangeTheOutcome) {
  std::mt19937 random(15);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(1001);
  for (float& x : logits) x = normal(random);
  for (uint32_t position = 0; position < 200; ++position) {
    const RandomKey key{.seed = 9, .choice = 0, .base = position};
    const auto race_of = [&](int begin, int end) {
      return coupled_race(coupled_shard(&logits[begin], begin, end - begin, 0.8f), key,
                          Purpose::coupled, select_isa());
    };
    const Runner whole = race_of(0, 1001);
    for (const int cut : {1, 255, 256, 333, 1000}) {
      const Runner first = first_of(race_of(0, cut), race_of(cut, 1001));
      EXPECT_EQ(first.token, whole.token);
      EXPECT_EQ(first.time, whole.time);
    }
    // A draft of the same row, at whatever offset of whatever step, proposes the same token.
    const Processors processors{.mode = VerifyMode::coupled, .temperature = 0.8f};
    const RowDistribution q = process_row(logits.data(), 1001, processors, select_isa());
    for (const uint32_t offset : {0u, 1u, 7u}) {
      if (offset > position) break;
      const RandomKey step{.seed = 9, .choice = 0, .base = position - offset};
      EXPECT_EQ(sample_draft(
                    logits.data(), 1001, q,
                    {.processors = processors, .key = step, .offset = static_cast<int32_t>(offset)},
                    select_isa()),
                whole.token);
    }
  }
  const Runner a{1.0, 5, 0.0f}, b{1.0, 3, 0.0f};
  EXPECT_EQ(first_of(a, b).token, 3);
  EXPECT_EQ(first_of(b, a).token, 3);
  EXPECT_EQ(first_of(a, kNobody).token, 5);
}

// Tokens of total mass 1e-8 must not win. Were the uniform of 24 bits and could be 0, some token's
// E would be 0 in 131071 / 2^24 = 0.8 % of the draws, and it would win whatever its weight is:
// these draws have such words.
// Beside it, a race as many write it, with uniforms of 24 bits: where one is 0, so is its time, and
// the most unlikely token wins.
TEST(Race, TailsDoNotWinByAGrainOfTheUniform) {
  constexpr int kVocab = 131072, kDraws = 2000;
  constexpr double kTail = 1e-8 / kVocab;
  std::vector<float> logits(kVocab, static_cast<float>(std::log(kTail)));
  logits[0] = 0.0f;
  int tail_wins = 0, tail_wins_of_24_bits = 0;
  for (uint32_t base = 0; base < kDraws; ++base) {
    const RandomKey key{.seed = 77, .choice = 0, .base = base};
    tail_wins += race(bonus_row(logits, 0), key, 0, Purpose::extra, select_isa()).token != 0;
    const auto time_of_24_bits = [](uint32_t word) { return -std::log1p(-0x1p-24 * (word >> 8)); };
    double first = 0;
    bool tail_wins_this = false;
    for (uint32_t token = 0; token < kVocab; token += 4) {
      const auto words = philox4x32(philox_counter(key, 0, Purpose::extra, token), philox_key(key));
      if (token == 0) first = time_of_24_bits(words[0]);
      for (uint32_t i = token == 0 ? 1 : 0; i < 4; ++i) {
        if (words[i] < 1u << 16) tail_wins_this |= time_of_24_bits(words[i]) / kTail < first;
      }
    }
    tail_wins_of_24_bits += tail_wins_this;
  }
  EXPECT_EQ(tail_wins, 0);             // expected 2e-5
  EXPECT_GE(tail_wins_of_24_bits, 3);  // expected 15.6
}

}  // namespace
}  // namespace outrider::cpu
