// Speculative sampling emits the target's distribution, exactly (Chen et al. 2023, Theorem 1).
#include "exactness.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

namespace outrider::exactness {
namespace {

// p is good to exp_f32's 1.1e-7 and the rounding of its argument, relatively, in each of at most
// four rows; acceptance is integrated to 2^-32.
constexpr double kTolerance = 1e-6;

TEST(Exactness, RecoversTheTargetOverShards) {
  const std::vector<Pair> pairs = random_pairs(8, 1);
  ASSERT_GE(pairs.size(), 3000u);
  double worst = 0.0;
  for (const int ranks : {1, 2, 3}) {
    for (const Pair& pair : pairs) {
      const double distance = total_variation(pair, ranks, Steps{});
      worst = std::max(worst, distance);
      EXPECT_LE(distance, kTolerance)
          << "vocabulary " << pair.vocab << ", K " << pair.num_drafted << ", ranks " << ranks;
    }
  }
  RecordProperty("worst_total_variation", std::to_string(worst * 1e9) + "e-9");
  std::printf("worst total variation over %zu pairs: %.2e\n", 3 * pairs.size(), worst);
}

// The same of bias, penalties, min_tokens and min_p, over prefixes of which the drafted tokens are
// a part.
TEST(Exactness, RecoversTheEditedTargetOverShards) {
  const std::vector<Pair> pairs = edited_pairs(6, 5);
  ASSERT_GE(pairs.size(), 1000u);
  double worst = 0.0;
  for (const int ranks : {1, 2, 3}) {
    for (const Pair& pair : pairs) {
      const double distance = total_variation(pair, ranks, Steps{});
      worst = std::max(worst, distance);
      EXPECT_LE(distance, kTolerance)
          << "vocabulary " << pair.vocab << ", K " << pair.num_drafted << ", ranks " << ranks;
    }
  }
  std::printf("worst total variation over %zu edited pairs: %.2e\n", 3 * pairs.size(), worst);
}

// A rank may own no token at all, or all but one.
TEST(Exactness, RecoversTheTargetOverMoreRanksThanTokens) {
  for (const Pair& pair : random_pairs(1, 2)) {
    EXPECT_LE(total_variation(pair, 7, Steps{}), kTolerance);
  }
}

// A draft row with a NaN is refused whatever was drafted from it, and p is drawn from afresh.
TEST(Exactness, RecoversTheTargetBehindABrokenDraft) {
  for (Pair pair : random_pairs(1, 3)) {
    if (pair.num_drafted == 0 || pair.one_hot) continue;
    for (size_t i = 0; i < pair.draft.size(); i += 2) pair.draft[i][1] = NAN;
    EXPECT_LE(total_variation(pair, 2, Steps{}), kTolerance);
  }
}

// What the ranks measure of the first row: Σ [min(q, p / l) - min(q, p)].
double measured_shift(const Pair& pair, int ranks) {
  const cpu::Isa isa = cpu::select_isa();
  RowDistribution p = cpu::process_row(pair.target[0].data(), pair.vocab, pair.processors, isa);
  const RowDistribution q =
      cpu::process_row(pair.draft[0].data(), pair.vocab, pair.processors, isa);
  const int32_t drafted = q.choice;
  p.draft_logit = pair.target[0][drafted];
  double shift = 0;
  for (const Shard& shard : make_shards(pair.vocab, ranks)) {
    const SequenceRows rows{pair.target[0].data() + shard.first,
                            pair.one_hot ? nullptr : pair.draft[0].data(),
                            &drafted,
                            &p,
                            &q,
                            1,
                            shard.first,
                            shard.size,
                            pair.vocab};
    shift += cpu::shard_overlap(rows, 0, pair.processors.lenience, isa).shift;
  }
  return shift;
}

// No token comes with more than p(x) / l, and the measured shift is the first token's distance.
TEST(Lenience, MovesTheOutputByWhatIsMeasuredAndNoFurther) {
  double largest = 0.0;
  for (Pair pair : random_pairs(2, 6)) {
    if (pair.num_drafted == 0 || pair.processors.mode == VerifyMode::greedy) continue;
    const auto p = reference_distribution(pair.target[0], pair.processors);
    for (const float lenience : {0.9f, 0.5f, 0.1f}) {
      pair.processors.lenience = lenience;
      for (const int ranks : {1, 3}) {
        const auto first = ExactOutput(pair, ranks, Steps{}).first_token();
        double distance = 0.0;
        for (int v = 0; v < pair.vocab; ++v) {
          EXPECT_LE(first[v], p[v] / lenience * (1 + kTolerance) + 1e-9);
          distance += std::abs(first[v] - p[v]) / 2;
        }
        EXPECT_NEAR(measured_shift(pair, ranks), distance, kTolerance);
        largest = std::max(largest, distance);
      }
    }
    pair.processors.lenience = 1.0f;
    EXPECT_EQ(measured_shift(pair, 2), 0.0);
  }
  EXPECT_GT(largest, 0.3);  // it does something
}

// q is zero outside a trimmed head's tokens, at any temperature and under any filter that a request
// may ask for; greedy drafts are of its tokens too.
TEST(Exactness, DraftsNothingOutsideATrimmedHead) {
  const std::vector<float> logits = {kUnscoredLogit, -3.0f, kUnscoredLogit, 1.0f, kUnscoredLogit};
  for (const float temperature : {1e-5f, 0.5f, 1.0f, 2.0f, 1e6f}) {
    for (const int32_t top_k : {0, 1, 4}) {
      for (const float top_p : {0.3f, 0.999999f, 1.0f}) {
        const Processors processors{VerifyMode::rejection, temperature, top_k, top_p};
        const auto q = cpu::process_row(logits.data(), 5, processors, cpu::select_isa());
        double w[5];
        cpu::race_weights(cpu::draft_row(logits.data(), 5, q), 0, 5, w);
        for (const int unscored : {0, 2, 4}) EXPECT_EQ(w[unscored], 0.0) << temperature;
        EXPECT_NEAR(w[1] + w[3], 1.0, 1e-6) << temperature << ", " << top_k << ", " << top_p;
      }
    }
  }
  EXPECT_EQ(cpu::process_row(logits.data(), 5, {}, cpu::select_isa()).choice, 3);
}

}  // namespace
}  // namespace outrider::exactness
