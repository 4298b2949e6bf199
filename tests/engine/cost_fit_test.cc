#include "engine/cost_fit.h"

#include <gtest/gtest.h>

#include <random>

#include "spec/speedup.h"

namespace outrider {
namespace {

TEST(CostFit, ATableIsRightUntilStepsSayOtherwise) {
  const CostFit fit;
  EXPECT_EQ(fit.plain_factor(), 1);
  EXPECT_EQ(fit.added_factor(), 1);
  EXPECT_EQ(fit.num_plain(), 0);
}

TEST(CostFit, TellsPlainStepsFromDraftedRows) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> noise(1, 0.1);
  CostFit fit;
  for (int i = 0; i < 3000; ++i) {
    const double added = i % 64 == 0 ? 0 : 2;
    fit.observe(10, added, noise(random) * (1.2 * 10 + 2.5 * added));
  }
  EXPECT_NEAR(fit.plain_factor(), 1.2, 0.06);
  EXPECT_NEAR(fit.added_factor(), 2.5, 0.3);
  EXPECT_EQ(fit.num_plain(), 3000 / 64 + 1);
}

// A machine that slows down slows all steps down; drafted rows are not to blame.
TEST(CostFit, ASlowMachineIsNotTheDraftedRowsFault) {
  CostFit fit;
  for (int i = 0; i < 200; ++i) fit.observe(10, i % 64 == 0 ? 0 : 1, i % 64 == 0 ? 10 : 11);
  for (int i = 0; i < 100; ++i) fit.observe(10, 1, 1.3 * 11);
  EXPECT_GT(fit.plain_factor(), 1.2);
  EXPECT_LT(fit.added_factor(), 2);
}

TEST(CostFit, AnAccidentIsNoNews) {
  CostFit fit;
  for (int i = 0; i < 50; ++i) fit.observe(10, 0, 10);
  fit.observe(10, 0, 10'000);
  EXPECT_LT(fit.plain_factor(), 1.05);
  fit.observe(0, 0, 5);  // nothing to compare with
  fit.observe(5, 0, 0);
  EXPECT_LT(fit.plain_factor(), 1.05);
}

TEST(SpeedupRecord, PredictsByTheoryAndMeasuresByTokens) {
  SpeedupRecord record;
  EXPECT_EQ(record.predicted(0.5), 1);
  EXPECT_EQ(record.measured(), 1);
  record.add(3, 4, {});  // was not timed
  EXPECT_EQ(record.measured(), 1);
  record.add(3, 4, {.plain_ms = 10, .expected_ms = 12, .ms = 13});
  record.add(0, 1, {.plain_ms = 10, .expected_ms = 10, .ms = 11});
  EXPECT_NEAR(record.predicted(0.5), (1.875 + 1) / 2 * 20 / 22, 1e-12);
  EXPECT_NEAR(record.measured(), 2.5 * 20 / 24, 1e-12);
  EXPECT_EQ(record.steps[3], 1);
  EXPECT_NEAR(record.predicted(1 + 1e-12), (4.0 + 1) / 2 * 20 / 22, 1e-9);  // a rounding beyond
}

}  // namespace
}  // namespace outrider
