// Steps take what they shall, whatever the tables say.
#include "engine/prefill_pacer.h"

#include <gtest/gtest.h>

#include <random>

namespace outrider {
namespace {

constexpr double kSlowdown = 1.5;
constexpr double kPlainMs = 10;

// What steps take in the mean, in plain ones, once 300 have been seen; prompt rows take `factor` of
// what the tables say, and a step varies by a quarter.
double settled_slowdown(double factor, PrefillPacer& pacer) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> noise(0, 0.25);
  constexpr int kSettling = 300, kSteps = 2000;
  double sum = 0;
  for (int i = 0; i < kSteps; ++i) {
    const double ms = kPlainMs * (1 + factor * (pacer.slowdown() - 1)) * noise(random);
    pacer.observe(kPlainMs, ms);
    if (i >= kSettling) sum += ms / kPlainMs;
  }
  return sum / (kSteps - kSettling);
}

TEST(PrefillPacer, AsksTheTablesForWhatStepsShallTakeAtFirst) {
  EXPECT_EQ(PrefillPacer(kSlowdown).slowdown(), kSlowdown);
}

TEST(PrefillPacer, FindsThePaceWhateverTheTablesSay) {
  for (const double factor : {0.6, 1.0, 2.0, 5.0}) {
    PrefillPacer pacer(kSlowdown);
    EXPECT_NEAR(settled_slowdown(factor, pacer), kSlowdown, 0.05) << factor;
  }
}

TEST(PrefillPacer, GoesOnWhateverHappens) {
  PrefillPacer pacer(kSlowdown);
  for (int i = 0; i < 1000; ++i) pacer.observe(kPlainMs, 1e6 * kPlainMs);
  EXPECT_GT(pacer.slowdown(), 1);  // some row finds its place
  EXPECT_NEAR(settled_slowdown(1, pacer), kSlowdown, 0.05);
  for (int i = 0; i < 1000; ++i) pacer.observe(kPlainMs, kPlainMs);
  EXPECT_LE(pacer.slowdown(), 1 + 2 * (kSlowdown - 1));
}

TEST(PrefillPacer, AnAccidentIsNoNews) {
  PrefillPacer pacer(kSlowdown);
  pacer.observe(kPlainMs, 1000 * kPlainMs);
  EXPECT_GT(pacer.slowdown(), 1 + 0.95 * (kSlowdown - 1));
}

}  // namespace
}  // namespace outrider
