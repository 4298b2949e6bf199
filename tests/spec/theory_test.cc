// Against values that were computed with exact fractions (Python's fractions.Fraction): sums of
// powers, divided at the end.
#include "spec/theory.h"

#include <gtest/gtest.h>

#include <cmath>

namespace outrider {
namespace {

struct Case {
  double alpha;
  int k;
  double c, tokens, speedup, operations;
};

constexpr Case kCases[] = {
    {0.5, 3, 0.01, 1.875, 1.8203883495145632, 2.1493333333333333},
    {0.6, 6, 0.05, 2.430016, 1.869243076923077, 3.0040954462851275},
    {0.7, 4, 0.01, 2.7731, 2.6664423076923076, 1.8174606036565577},
    {0.8, 6, 0.05, 3.951424, 3.039556923076923, 1.8474352537211902},
    {0.9, 10, 0, 6.8618940391, 6.8618940391, 1.6030559401413826},
    {0.95, 15, 0.1, 11.197466626964687, 4.478986650785874, 1.5628535081192514},
    {1, 4, 0.25, 5, 2.5, 1.2},
    {0, 7, 0.1, 1, 0.5882352941176471, 8.7},
};

TEST(Theory, FormulasAreThoseOfThePaper) {
  for (const Case& expected : kCases) {
    SCOPED_TRACE(testing::Message() << "alpha " << expected.alpha << " K " << expected.k);
    EXPECT_NEAR(expected_tokens(expected.alpha, expected.k), expected.tokens, 1e-12);
    EXPECT_NEAR(expected_speedup(expected.alpha, expected.k, expected.c), expected.speedup, 1e-12);
    EXPECT_NEAR(operations_growth(expected.alpha, expected.k, expected.c), expected.operations,
                1e-12);
  }
}

// Two tables that were printed in notes on the paper, cut to three digits: tokens a step for
// K = 3 … 9, and the speed-up for K = 3 … 6 where c is 0.01 and 0.05.
struct PrintedTokens {
  double alpha, tokens[7];
};
constexpr PrintedTokens kPrintedTokens[] = {
    {0.1, {1.111, 1.111, 1.111, 1.111, 1.111, 1.111, 1.111}},
    {0.3, {1.417, 1.425, 1.427, 1.428, 1.428, 1.428, 1.428}},
    {0.5, {1.875, 1.937, 1.968, 1.984, 1.992, 1.996, 1.998}},
    {0.7, {2.532, 2.773, 2.941, 3.058, 3.141, 3.198, 3.239}},
    {0.8, {2.952, 3.361, 3.689, 3.951, 4.161, 4.328, 4.463}},
};
struct PrintedSpeedups {
  double alpha, at_c_001[4], at_c_005[4];
};
constexpr PrintedSpeedups kPrintedSpeedups[] = {
    {0.5, {1.820, 1.862, 1.875, 1.872}, {1.630, 1.614, 1.575, 1.526}},
    {0.6, {2.112, 2.216, 2.269, 2.292}, {1.892, 1.921, 1.906, 1.869}},
    {0.7, {2.459, 2.666, 2.801, 2.885}, {2.202, 2.310, 2.352, 2.352}},
    {0.8, {2.866, 3.232, 3.513, 3.727}, {2.566, 2.801, 2.951, 3.039}},
};

TEST(Theory, TablesAreThoseThatWerePrinted) {
  for (const auto& [alpha, tokens] : kPrintedTokens) {
    for (int k = 3; k <= 9; ++k) {
      EXPECT_NEAR(expected_tokens(alpha, k), tokens[k - 3], 1e-3) << alpha << " " << k;
    }
  }
  for (const auto& [alpha, at_c_001, at_c_005] : kPrintedSpeedups) {
    for (int k = 3; k <= 6; ++k) {
      EXPECT_NEAR(expected_speedup(alpha, k, 0.01), at_c_001[k - 3], 1e-3) << alpha << " " << k;
      EXPECT_NEAR(expected_speedup(alpha, k, 0.05), at_c_005[k - 3], 1e-3) << alpha << " " << k;
    }
  }
}

// Leviathan et al. 2023, table 1, with two digits: of drafts that cost nothing.
TEST(Theory, SpeedAndOperationsAreThePapers) {
  struct Printed {
    double alpha;
    int k;
    double operations, speedup;
  };
  constexpr Printed kPrinted[] = {{0.6, 2, 1.53, 1.96}, {0.7, 3, 1.58, 2.53},
                                  {0.8, 2, 1.23, 2.44}, {0.8, 5, 1.63, 3.69},
                                  {0.9, 2, 1.11, 2.71}, {0.9, 10, 1.60, 6.86}};
  for (const auto& [alpha, k, operations, speedup] : kPrinted) {
    EXPECT_NEAR(operations_growth(alpha, k, 0), operations, 0.005) << alpha << " " << k;
    EXPECT_NEAR(expected_speedup(alpha, k, 0), speedup, 0.005) << alpha << " " << k;
  }
}

TEST(Theory, PlainDecodingIsTheMeasure) {
  for (const double alpha : {0.0, 0.3, 1.0}) {
    EXPECT_EQ(expected_tokens(alpha, 0), 1);
    EXPECT_EQ(expected_speedup(alpha, 0, 0.7), 1);
    EXPECT_EQ(operations_growth(alpha, 0, 0.7), 1);
  }
}

TEST(Theory, DearRowsSlowDown) {
  EXPECT_NEAR(expected_speedup(0.5, 3, 0.01, 1.25), 1.875 / 1.28, 1e-12);
}

TEST(Theory, BestHasTheLargestSpeedup) {
  for (const double alpha : {0.05, 0.3, 0.5, 0.8, 0.95, 1.0}) {
    for (const double c : {0.01, 0.05, 0.2, 0.5, 1.0}) {
      for (const double target_cost : {1.0, 1.2, 1.7, 3.0}) {
        const auto speedup = [&](int k) {
          return expected_speedup(alpha, k, c, k == 0 ? 1 : target_cost);
        };
        const double best = speedup(best_num_draft_tokens(alpha, c, 64, target_cost));
        for (int k = 0; k <= 64; ++k) {
          EXPECT_LE(speedup(k), best * (1 + 1e-12)) << alpha << ", " << c << ", " << target_cost;
        }
      }
    }
  }
}

TEST(Theory, BestOfExamples) {
  EXPECT_EQ(best_num_draft_tokens(0.5, 0.01, 64), 5);
  EXPECT_EQ(best_num_draft_tokens(0.5, 0.05, 64), 3);
  EXPECT_EQ(best_num_draft_tokens(0.8, 0.05, 64), 8);
  EXPECT_EQ(best_num_draft_tokens(0.8, 0.2, 64), 4);
  EXPECT_EQ(best_num_draft_tokens(0.9, 0.01, 64), 24);
  EXPECT_EQ(best_num_draft_tokens(0.9, 0.01, 15), 15);
  EXPECT_EQ(best_num_draft_tokens(1, 0.5, 64), 64);
  // The speed-ups of K = 53 and beyond are 2 but for rounding; each is larger than the last.
  EXPECT_EQ(best_num_draft_tokens(0.5, 0, 64), 64);
  EXPECT_EQ(best_num_draft_tokens(0.1, 0, 15), 15);
  // A draft as dear as its tokens are rarely right brings nothing.
  EXPECT_EQ(best_num_draft_tokens(0.05, 0.1, 64), 0);
  EXPECT_EQ(best_num_draft_tokens(0.3, 0.3, 64), 0);
  EXPECT_EQ(best_num_draft_tokens(0, 0, 64), 0);
  EXPECT_EQ(best_num_draft_tokens(0.8, 0.05, 0), 0);
  // Where drafted rows are dear one token does not pay, and yet four may: 1.5 / 1.75 of the speed
  // without drafts, and 1.9375 / 1.9.
  EXPECT_EQ(best_num_draft_tokens(0.5, 0.05, 64, 1.7), 4);
  EXPECT_EQ(best_num_draft_tokens(0.5, 0.05, 64, 1.8), 0);
}

// The corollary behind theorem 3.8: one drafted token emits 1 + alpha in 1 + c passes, and without
// any speed is what it is. 1.8 / 1.05, 1.2 / 1.3; 1.8 / 1.55 where two rows cost 1.5.
TEST(Theory, SomeKIsWorthAtLeastOneToken) {
  EXPECT_NEAR(least_speedup(0.8, 0.05), 1.7142857142857142, 1e-12);
  EXPECT_EQ(least_speedup(0.2, 0.3), 1);
  EXPECT_NEAR(least_speedup(0.8, 0.05, 1.5), 1.1612903225806452, 1e-12);
}

// 1 + alpha + alpha^2 + … of drafts that are free: 5 at 0.8.
TEST(Theory, NoKIsWorthMoreThanEndlessFreeDrafts) {
  EXPECT_NEAR(most_speedup(0.8), 5, 1e-12);
  EXPECT_NEAR(expected_speedup(0.8, 64, 0), most_speedup(0.8), 1e-5);
  EXPECT_EQ(most_speedup(1), INFINITY);
}

// Steps in which n tokens would be accepted, alpha^n (1 - alpha) of them, emit n + 1 and take n c
// and a pass: both summed for n = 0 … 3999 in Python. By hand, at 0.8 and 0.05: 5 tokens, 4 of them
// drafted, in 1 + 4 * 0.05.
TEST(Theory, AnOracleDraftsWhatIsAccepted) {
  EXPECT_NEAR(oracle_speedup(0.8, 0.05), 4.166666666666667, 1e-12);
  EXPECT_NEAR(oracle_speedup(0.5, 0.2), 1.666666666666667, 1e-12);
  EXPECT_NEAR(oracle_speedup(0.6, 1), 1, 1e-12);  // a draft as dear as the target
  EXPECT_EQ(oracle_speedup(1, 0), INFINITY);
  for (const double alpha : {0.05, 0.5, 0.9}) {
    for (const double c : {0.0, 0.05, 0.5}) {
      const int best = best_num_draft_tokens(alpha, c, 64);
      EXPECT_GE(oracle_speedup(alpha, c) * (1 + 1e-12), expected_speedup(alpha, best, c))
          << alpha << ", " << c;
    }
  }
}

// Once a step: 1 / 3.68928 of plain decoding's where 1 + 0.8 + … + 0.8^5 tokens come of one.
TEST(Theory, WeightsAreReadOnceAStep) {
  EXPECT_NEAR(target_reads_growth(0.8, 5), 0.27105559892445136, 1e-12);
  EXPECT_EQ(target_reads_growth(0.8, 0), 1);
}

}  // namespace
}  // namespace outrider
