// What a step is expected to take, from a few measured points.
#include "engine/step_costs.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

const StepCosts kCosts = {
    .steps = {{1, 10}, {5, 12}, {9, 20}}, .ms_per_position = 0.01, .ms_per_row_position = 0.001};

TEST(StepCosts, LieBetweenTheMeasuredPointsAndGoOnBeyondThem) {
  EXPECT_DOUBLE_EQ(kCosts.rows_ms(1), 10);
  EXPECT_DOUBLE_EQ(kCosts.rows_ms(3), 11);
  EXPECT_DOUBLE_EQ(kCosts.rows_ms(5), 12);
  EXPECT_DOUBLE_EQ(kCosts.rows_ms(7), 16);
  EXPECT_DOUBLE_EQ(kCosts.rows_ms(19), 40);
  EXPECT_DOUBLE_EQ(kCosts.rows_ms(0), 9.5);
}

TEST(StepCosts, AContextIsReadOnceAndComputedWithForEachRow) {
  EXPECT_DOUBLE_EQ(kCosts.context_ms(1, 1000), 11);
  EXPECT_DOUBLE_EQ(kCosts.context_ms(4, 1000), 14);
  EXPECT_DOUBLE_EQ(kCosts.context_ms(0, 1000), 0);
  EXPECT_DOUBLE_EQ(kCosts.added_ms(3, 4, 1000), 5 + 14);
}

TEST(StepCosts, AContextIsFoundFromTwoPasses) {
  StepCosts costs = {.steps = kCosts.steps};
  const auto pass = [](int64_t rows) {
    return StepCosts::Point{rows, kCosts.rows_ms(rows) + kCosts.context_ms(rows, 4000)};
  };
  costs.set_context(pass(1), pass(8), 4000);
  EXPECT_NEAR(costs.ms_per_position, kCosts.ms_per_position, 1e-12);
  EXPECT_NEAR(costs.ms_per_row_position, kCosts.ms_per_row_position, 1e-12);
  // Noise may have it that a context costs nothing, or several rows no more than one; never less.
  costs.set_context({1, 9}, {8, 12}, 4000);
  EXPECT_EQ(costs.context_ms(8, 4000), 0);
  costs.set_context({1, 30}, {8, 31}, 4000);
  EXPECT_DOUBLE_EQ(costs.context_ms(1, 4000), 20);
  EXPECT_DOUBLE_EQ(costs.context_ms(8, 4000), 20);
}

TEST(StepCosts, FindTheMostRowsThatFit) {
  for (const int64_t position : {0, 100, 1000}) {
    for (const int64_t others : {1, 4, 20}) {
      for (double ms = 0; ms < 30; ms += 0.7) {
        const int64_t rows = kCosts.rows_within(ms, others, position, 12);
        EXPECT_TRUE(rows == 0 || kCosts.added_ms(others, rows, position) <= ms);
        EXPECT_TRUE(rows == 12 || kCosts.added_ms(others, rows + 1, position) > ms);
      }
    }
  }
}

TEST(StepCosts, KnowWhatAlternativesTake) {
  StepCosts costs = kCosts;
  costs.set_alternatives({3, 0.6}, {8, 2.1});
  EXPECT_EQ(costs.alternatives_ms(0), 0);
  EXPECT_DOUBLE_EQ(costs.alternatives_ms(1), 0.6);
  EXPECT_DOUBLE_EQ(costs.alternatives_ms(3), 0.6 + 2 * 0.3);
  costs.set_alternatives({3, -0.1}, {8, -0.2});  // noise
  EXPECT_EQ(costs.alternatives_ms(6), 0);
  const double context_ms = costs.context_ms(8, 1000);
  costs.set_segment_context({8, 12}, {8, 12 + context_ms + 7}, 1000);
  EXPECT_NEAR(costs.ms_per_segment_position, 0.001, 1e-9);
  costs.set_segment_context({8, 12}, {8, 12}, 1000);
  EXPECT_EQ(costs.ms_per_segment_position, 0);
}

TEST(StepCosts, AreNotKnownFromOnePoint) {
  EXPECT_FALSE(StepCosts().known());
  EXPECT_FALSE((StepCosts{.steps = {{1, 10}}}.known()));
  EXPECT_TRUE(kCosts.known());
}

}  // namespace
}  // namespace outrider
