// sample_draft: what it draws, and what it never draws.
#include "kernels/cpu/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/distribution.h"

namespace outrider::cpu {
namespace {

constexpr Processors kSampled{.mode = VerifyMode::rejection};

int32_t draw(const std::vector<float>& logits, const Processors& processors, uint32_t base,
             int offset = 0) {
  const auto size = static_cast<int64_t>(logits.size());
  return sample_draft(
      logits.data(), size, process_row(logits.data(), size, processors, select_isa()),
      {.processors = processors, .key = {.seed = 3, .choice = 0, .base = base}, .offset = offset},
      select_isa());
}

TEST(SampleDraft, GreedyTakesTheSmallestTokenOfTheLargestLogit) {
  EXPECT_EQ(draw({-3.0f, 2.0f, 1.0f, 2.0f}, {}, 0), 1);
  EXPECT_EQ(draw({-0.0f, 0.0f}, {}, 0), 0);
  EXPECT_EQ(draw({-5.0f}, {}, 0), 0);
}

TEST(SampleDraft, NeverDrawsWhatTheFiltersDrop) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> logits(300);
  for (float& x : logits) x = normal(random);
  const Processors processors{
      .mode = VerifyMode::rejection, .temperature = 1.3f, .top_k = 20, .top_p = 0.8f};
  const RowDistribution q = process_row(logits.data(), 300, processors, select_isa());
  for (uint32_t base = 0; base < 5000; ++base) {
    const int32_t token = draw(logits, processors, base);
    EXPECT_GT(probability(q, logits[token], token), 0.0);
  }
}

// 40,000 draws of three tokens: the binomial's standard deviation is at most 0.0025; five of them.
TEST(SampleDraft, DrawsInProportion) {
  const std::vector<float> logits{std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  const double expected[] = {0.5, 0.3, 0.2};
  constexpr int kDraws = 40'000;
  for (const VerifyMode mode : {VerifyMode::rejection, VerifyMode::coupled}) {
    int counts[3] = {};
    for (uint32_t base = 0; base < kDraws; ++base) ++counts[draw(logits, {.mode = mode}, base)];
    for (int v = 0; v < 3; ++v) EXPECT_NEAR(counts[v] / double{kDraws}, expected[v], 0.0125);
  }
}

TEST(SampleDraft, IsAFunctionOfKeyAndOffset) {
  const std::vector<float> logits(64, 0.0f);
  int same_offset = 0, other_offset = 0;
  for (uint32_t base = 0; base < 200; ++base) {
    same_offset += draw(logits, kSampled, base) == draw(logits, kSampled, base);
    other_offset += draw(logits, kSampled, base) == draw(logits, kSampled, base, 1);
  }
  EXPECT_EQ(same_offset, 200);
  EXPECT_LT(other_offset, 20);  // expected 200 / 64
}

TEST(SampleDraft, BrokenRowGivesATokenAll) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    EXPECT_EQ(draw({1.0f, bad, 2.0f}, kSampled, 0), 0);
    EXPECT_EQ(draw({bad, bad}, {}, 0), 0);
  }
}

}  // namespace
}  // namespace outrider::cpu
