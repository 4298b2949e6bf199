// What is expected of drafts, by what was accepted.
#include "spec/acceptance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

TEST(Acceptance, UnreachedPositionsInheritTheOneBefore) {
  AcceptanceCounts server(256);
  for (int i = 0; i < 200; ++i) server.observe(2, i % 2);
  const Hazard hazard = hazard_of(server);
  EXPECT_NEAR(hazard[0], 0.5, 0.01);
  EXPECT_NEAR(hazard[1], 0, 0.02);  // reached a hundred times, accepted never
  EXPECT_EQ(hazard[2], hazard[1]);
  EXPECT_EQ(hazard[kMaxDraftTokens - 1], hazard[1]);
}

TEST(Acceptance, NothingIsLearntBehindARefusal) {
  AcceptanceCounts counts(256);
  counts.observe(5, 2);
  EXPECT_EQ(counts.reached(0), 1);
  EXPECT_EQ(counts.accepted(1), 1);
  EXPECT_EQ(counts.reached(2), 1);
  EXPECT_EQ(counts.accepted(2), 0);
  EXPECT_EQ(counts.reached(3), 0);
  counts.observe(3, 3);
  EXPECT_EQ(counts.reached(2), 2);
  EXPECT_EQ(counts.reached(3), 0);
}

TEST(Acceptance, WhatLiesBehindAnEndIsNobodys) {
  const VerifiedDrafts counted{
      .num_drafted = 6, .num_accepted = 4, .alpha_sum = 4, .alpha_rows = 5, .alpha_counts = true};
  EXPECT_EQ(counted.within(5).num_drafted, 6);  // the refusal is within
  EXPECT_EQ(counted.within(5).alpha_rows, 5);
  const VerifiedDrafts cut = counted.within(3);  // the third accepted token ended it
  EXPECT_EQ(cut.num_drafted, 3);
  EXPECT_EQ(cut.num_accepted, 3);
  EXPECT_EQ(cut.alpha_sum, 3);
  EXPECT_EQ(cut.alpha_rows, 3);
  // A sum over rows of which some are behind the end.
  const VerifiedDrafts summed{
      .num_drafted = 6, .num_accepted = 4, .alpha_sum = 4.3, .shift_sum = 0.2, .alpha_rows = 5};
  EXPECT_EQ(summed.within(5).alpha_sum, 4.3);
  EXPECT_EQ(summed.within(4).num_accepted, 4);
  EXPECT_EQ(summed.within(4).alpha_rows, 4);
  EXPECT_DOUBLE_EQ(summed.within(4).alpha_sum, 4.3 * 4 / 5);
  EXPECT_DOUBLE_EQ(summed.within(4).shift_sum, 0.2 * 4 / 5);
  // Of all rows, where none was refused.
  const VerifiedDrafts all{.num_drafted = 2, .num_accepted = 2, .alpha_sum = 1.7, .alpha_rows = 2};
  EXPECT_EQ(all.within(2).alpha_sum, 1.7);
  EXPECT_EQ(all.within(2).alpha_rows, 2);
}

// A sequence whose server has been told of 200 tokens, half of them accepted.
class OneOfMany {
 public:
  OneOfMany() {
    AcceptanceCounts server(256);
    for (int i = 0; i < 200; ++i) server.observe(1, i % 2);
    server_ = hazard_of(server);
  }
  void observe(int steps, int num_drafted, int num_accepted) {
    for (int i = 0; i < steps; ++i) {
      offset_.observe(server_, num_drafted, num_accepted);
      counts_.observe(num_drafted, num_accepted);
    }
  }
  void age() {
    offset_.age();
    counts_.age();
  }
  const Hazard& server() const { return server_; }
  Hazard hazard() const { return hazard_of(counts_, offset_, server_); }

 private:
  Hazard server_;
  AcceptanceCounts counts_{32};
  AcceptanceOffset offset_;
};

TEST(Acceptance, ANewSequenceIsTheServersAverage) {
  OneOfMany one;
  for (int i = 0; i < kMaxDraftTokens; ++i) EXPECT_DOUBLE_EQ(one.hazard()[i], one.server()[i]);
}

TEST(Acceptance, WhoDoesBetterOrWorseDoesSoWhereItWasNotReached) {
  for (const int accepted : {0, 1}) {
    OneOfMany one;
    one.observe(16, 1, accepted);
    for (int i = 1; i < kMaxDraftTokens; ++i) {
      if (accepted == 1) {
        EXPECT_GT(one.hazard()[i], one.server()[i] + 0.1);
      } else {
        EXPECT_LT(one.hazard()[i], one.server()[i] - 0.1);
      }
    }
  }
}

// Sequences are much alike: what the first tokens of one show is luck for the most part.
TEST(Acceptance, LuckIsNotTakenForSkill) {
  for (const int accepted : {0, 1}) {
    OneOfMany one;
    one.observe(3, 1, accepted);
    EXPECT_NEAR(one.hazard()[0], one.server()[0], 0.1) << accepted;
    EXPECT_NE(one.hazard()[0], one.server()[0]);
  }
}

// By its own counts: by what sequences differ in, nobody is that much unlike the others.
TEST(Acceptance, WhoIsUnlikeTheOthersIsSoonBelieved) {
  for (const int accepted : {0, 1}) {
    OneOfMany one;
    one.observe(16, 1, accepted);
    EXPECT_NEAR(one.hazard()[0], accepted, 0.21) << accepted;
    one.observe(14, 1, accepted);
    EXPECT_NEAR(one.hazard()[0], accepted, 0.12) << accepted;
  }
}

TEST(Acceptance, BadLuckIsForgotten) {
  OneOfMany one;
  one.observe(10, 1, 0);
  EXPECT_LT(one.hazard()[0], 0.35);
  EXPECT_LT(one.hazard()[1], one.server()[1] - 0.1);
  for (int i = 0; i < 100; ++i) one.age();
  EXPECT_NEAR(one.hazard()[0], one.server()[0], 0.01);
  EXPECT_NEAR(one.hazard()[1], one.server()[1], 0.01);
}

// Of the second position, of which it shows nothing itself.
TEST(Acceptance, ATextThatChangesIsFollowed) {
  OneOfMany one;
  one.observe(100, 1, 1);
  const double before = one.hazard()[1];
  one.observe(10, 1, 0);
  EXPECT_LT(one.hazard()[1], one.server()[1]);
  EXPECT_GT(before, one.server()[1] + 0.1);
}

// All that one step shows: the most likely offset is where the slope of the posterior's logarithm,
// -x / deviation² + Σ (accepted - probability at x), is 0. Of it, 0.9 is left for the next step.
TEST(Acceptance, AnOffsetIsTheMostLikelyOne) {
  constexpr double kDeviation = 0.6, kFollows = 0.9;
  Hazard server;
  for (int i = 0; i < kMaxDraftTokens; ++i) server[i] = 0.9 - 0.05 * i;
  for (const int accepted : {0, 1, 4, 9, kMaxDraftTokens}) {
    const auto probability = [&](int i, double x) {
      return 1 / (1 + std::exp(-std::log(server[i] / (1 - server[i])) - x));
    };
    double low = -5, high = 5;
    for (int step = 0; step < 60; ++step) {
      const double x = (low + high) / 2;
      double slope = -x / (kDeviation * kDeviation);
      for (int i = 0; i < std::min(accepted + 1, kMaxDraftTokens); ++i) {
        slope += (i < accepted ? 1 : 0) - probability(i, x);
      }
      (slope > 0 ? low : high) = x;
    }
    AcceptanceOffset offset;
    offset.observe(server, kMaxDraftTokens, accepted);
    for (int i = 0; i < kMaxDraftTokens; ++i) {
      EXPECT_NEAR(offset.added_to(server)[i], probability(i, kFollows * low), 0.02)
          << accepted << ", " << i;
    }
  }
}

TEST(Acceptance, NoServerIsTooSureForASequence) {
  Hazard sure;
  sure.fill(1);
  AcceptanceOffset offset;
  for (int i = 0; i < 20; ++i) offset.observe(sure, 1, 0);
  EXPECT_LT(offset.added_to(sure)[1], 0.999);
  sure.fill(0);
  for (int i = 0; i < 40; ++i) offset.observe(sure, 1, 1);
  EXPECT_GT(offset.added_to(sure)[1], 0.001);
}

TEST(Acceptance, OldCountsFade) {
  AcceptanceCounts counts(16);
  for (int i = 0; i < 1000; ++i) counts.observe(1, 1);
  for (int i = 0; i < 32; ++i) counts.observe(1, 0);
  EXPECT_LT(hazard_of(counts)[0], 0.3);
}

}  // namespace
}  // namespace outrider
