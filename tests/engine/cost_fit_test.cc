#include "engine/cost_fit.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "engine/step_pricing.h"
#include "spec/speedup.h"

namespace outrider {
namespace {

TEST(CostFit, ATableIsRightUntilStepsSayOtherwise) {
  const CostFit fit;
  EXPECT_EQ(fit.plain_factor(), 1);
  EXPECT_EQ(fit.added_factor(), 1);
  EXPECT_EQ(fit.num_observed(), 0);
}

TEST(CostFit, TellsPlainStepsFromDraftedRows) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> noise(1, 0.1);
  CostFit fit;
  for (int i = 0; i < 3000; ++i) {
    const double added = i % 64 == 0 ? 0 : 2;
    fit.observe(10, added, added > 0, noise(random) * (1.2 * 10 + 2.5 * added));
  }
  EXPECT_NEAR(fit.plain_factor(), 1.2, 0.06);
  EXPECT_NEAR(fit.added_factor(), 2.5, 0.3);
}

// A machine that slows down slows all steps down; drafted rows are not to blame.
TEST(CostFit, ASlowMachineIsNotTheDraftedRowsFault) {
  CostFit fit;
  for (int i = 0; i < 200; ++i) {
    fit.observe(10, i % 64 == 0 ? 0 : 1, i % 64 != 0, i % 64 == 0 ? 10 : 11);
  }
  for (int i = 0; i < 100; ++i) fit.observe(10, 1, 1, 1.3 * 11);
  EXPECT_GT(fit.plain_factor(), 1.2);
  EXPECT_LT(fit.added_factor(), 2);
}

TEST(CostFit, AGuessIsSoonGivenUp) {
  CostFit other;
  for (int i = 0; i < 400; ++i) other.observe(10, i % 2, i % 2, 80 + 3 * (i % 2));
  CostFit fit = CostFit::from(other);
  EXPECT_EQ(fit.plain_factor(), other.plain_factor());
  EXPECT_EQ(fit.added_factor(), other.added_factor());
  EXPECT_EQ(fit.num_observed(), 0);
  for (int i = 0; i < 20; ++i) fit.observe(10, i % 2, i % 2, 15 + i % 2);
  EXPECT_NEAR(fit.plain_factor(), 1.5, 0.15);
  EXPECT_EQ(fit.num_observed(), 20);
}

// What was not seen for long is not held on to.
TEST(CostFit, TimeWithoutStepsMakesItDoubt) {
  const auto after = [](int drifted) {
    CostFit fit;
    for (int i = 0; i < 300; ++i) fit.observe(10, 0, 0, 10);
    for (int i = 0; i < drifted; ++i) fit.drift();
    fit.observe(10, 0, 0, 12);
    return fit.plain_factor();
  };
  EXPECT_GT(after(1000), after(0) + 0.05);
  EXPECT_NEAR(after(1'000'000), after(10'000), 1e-9);  // there is an end to it
}

TEST(CostFit, AnAccidentIsNoNews) {
  CostFit fit;
  for (int i = 0; i < 50; ++i) fit.observe(10, 0, 0, 10);
  fit.observe(10, 0, 0, 10'000);
  EXPECT_LT(fit.plain_factor(), 1.05);
  fit.observe(0, 0, 0, 5);  // nothing to compare with
  fit.observe(5, 0, 0, 0);
  EXPECT_LT(fit.plain_factor(), 1.05);
}

// The table has one drafted row at four times what it adds, and eight at what they do.
TEST(StepPricing, LearnsWhatEachNumberOfDraftedRowsAdds) {
  LookaheadTables tables;
  tables.target.steps = {{1, 10}, {2, 10.8}, {3, 10.9}, {9, 12}};
  const double added_ms[] = {0, 0.2, 0.6, 0, 0, 0, 0, 0, 2};
  StepPricing pricing(tables);
  std::mt19937_64 random(3);
  std::normal_distribution<double> noise(1, 0.03);
  const auto take = [&](int64_t drafted) {
    pricing.observe({.sequences = 1, .drafted_rows = drafted},
                    noise(random) * (10 + added_ms[drafted]), 0);
  };
  for (int i = 0; i < 2000; ++i) {
    take(i % 64 == 0 ? 0 : i % 16 == 1 ? 8 : i % 4 == 2 ? 2 : 1);
  }
  const double plain_ms = pricing.step_ms({.sequences = 1});
  for (const int64_t drafted : {1, 2, 8}) {
    EXPECT_NEAR(pricing.step_ms({.sequences = 1, .drafted_rows = drafted}) - plain_ms,
                added_ms[drafted], 0.15)
        << drafted;
  }
}

// Who is priced too high is not taken, and so not seen again.
TEST(CostFit, AShareThatIsNotSeenIsForgotten) {
  CostFit fit;
  for (int i = 0; i < 100; ++i) fit.observe(10, 0, 0, 10);
  for (int i = 0; i < 10; ++i) fit.observe(10, 1, 4, 14);
  const double held_up = fit.share(4);
  EXPECT_GT(held_up, 0.03);
  for (int i = 0; i < 20'000; ++i) fit.observe(10, 0, 0, 10);
  EXPECT_LT(fit.share(4), 0.1 * held_up);
}

// Rows are dearer where a step has many sequences, and the table knows nothing of it.
TEST(StepPricing, LearnsByHowManySequencesAStepHas) {
  LookaheadTables tables;
  tables.target.steps = {{1, 10}, {101, 20}};
  StepPricing pricing(tables);
  const DecodeShape one{.sequences = 1, .drafted_rows = 2}, plain_one{.sequences = 1};
  const DecodeShape many{.sequences = 16, .drafted_rows = 16}, plain_many{.sequences = 16};
  for (int i = 0; i < 400; ++i) {
    pricing.observe(i % 4 == 0 ? plain_one : one, i % 4 == 0 ? 10 : 10.2, 0);
    pricing.observe(i % 4 == 0 ? plain_many : many, i % 4 == 0 ? 14 : 17, 0);
  }
  EXPECT_NEAR(pricing.step_ms(one) - pricing.step_ms(plain_one), 0.2, 0.05);
  EXPECT_NEAR(pricing.step_ms(many) - pricing.step_ms(plain_many), 3, 0.3);
  // Of another number nothing is known but what the last steps were like.
  const DecodeShape other{.sequences = 32};
  EXPECT_NEAR(pricing.step_ms(other) / pricing.step_ms(plain_many), 13.1 / 11.5, 0.01);
}

// A plain step of one row takes 10 ms.
LookaheadTables tables_with(DrafterKind kind, std::vector<StepCosts::Point> rounds) {
  LookaheadTables tables;
  tables.target.steps = {{1, 10}, {101, 20}};
  tables.draft[static_cast<int>(kind)].steps = std::move(rounds);
  return tables;
}

// Greedy rows cost nothing beyond their round; the table has filtered ones at half of what they
// take.
TEST(StepPricing, LearnsWhatDrawingTakesApartFromRounds) {
  constexpr auto kHead = DrafterKind::head;
  LookaheadTables tables = tables_with(kHead, {{1, 1}, {101, 2}});
  tables.drawing_ms[static_cast<int>(kHead)] = {0, 0.1, 0.5};
  StepPricing pricing(tables);
  DecodeShape greedy, filtered, both;
  greedy.add(tables.target, 0, kHead, Drawing::greedy, {.num_drafted = 2});
  filtered.add(tables.target, 0, kHead, Drawing::filtered, {.num_drafted = 2});
  both.add(tables.target, 0, kHead, Drawing::greedy, {.num_drafted = 2});
  both.add(tables.target, 0, kHead, Drawing::filtered, {.num_drafted = 2});
  const double of_two = 2 * 1.01;  // two rounds of two rows
  for (int i = 0; i < 400; ++i) {
    pricing.observe(greedy, 12, 2);
    pricing.observe(filtered, 14, 4);
    pricing.observe(both, 14, of_two + 2);
  }
  EXPECT_NEAR(pricing.draft_ms(greedy), 2, 0.05);
  EXPECT_NEAR(pricing.draft_ms(filtered), 4, 0.1);
  EXPECT_NEAR(pricing.draft_ms(both), of_two + 2, 0.1);
  EXPECT_NEAR(pricing.drawing_ms(kHead, Drawing::filtered), 1, 0.05);
  EXPECT_EQ(pricing.drawing_ms(kHead, Drawing::greedy), 0);
}

// Every third step drafts, and feeds the drafter first what the two others emitted.
TEST(StepPricing, WhatADrafterMissedIsNoPartOfARoundsPrice) {
  constexpr auto kModel = DrafterKind::model;
  const LookaheadTables tables = tables_with(kModel, {{1, 1}, {3, 1.6}});
  StepPricing pricing(tables);
  DecodeShape behind, one;
  behind.add(tables.target, 0, kModel, Drawing::greedy, {.num_drafted = 2, .num_missed = 2});
  one.add(tables.target, 0, kModel, Drawing::greedy, {.num_drafted = 1});
  for (int i = 0; i < 400; ++i) pricing.observe(behind, 12.6, 1.6 + 1);
  EXPECT_NEAR(pricing.draft_ms(behind), 2.6, 0.01);
  EXPECT_NEAR(pricing.draft_ms(one), 1, 0.01);
}

// The machine was another when it drafted last.
TEST(StepPricing, WhoWasIdleForLongIsSoonPricedAnew) {
  constexpr auto kHead = DrafterKind::head;
  const LookaheadTables tables = tables_with(kHead, {{1, 1}, {101, 2}});
  StepPricing pricing(tables);
  DecodeShape drafts, plain;
  drafts.add(tables.target, 0, kHead, Drawing::greedy, {.num_drafted = 1});
  plain.add(tables.target, 0, kHead, Drawing::greedy, {});
  const auto price_after = [&](int idle) {
    StepPricing later = pricing;
    for (int i = 0; i < idle; ++i) later.observe(plain, 10, 0);
    for (int i = 0; i < 2; ++i) later.observe(drafts, 11.25, 1.25);
    return later.draft_ms(drafts);
  };
  for (int i = 0; i < 400; ++i) pricing.observe(drafts, 11, 1);
  EXPECT_LT(price_after(0), 1.1);
  EXPECT_GT(price_after(1000), 1.2);
}

TEST(StepPricing, DrawingIsWhatTheProcessorsAskFor) {
  EXPECT_EQ(drawing_of({.top_p = 0.5f}), Drawing::greedy);
  EXPECT_EQ(drawing_of({.mode = VerifyMode::rejection}), Drawing::sampled);
  EXPECT_EQ(drawing_of({.mode = VerifyMode::coupled}), Drawing::sampled);
  EXPECT_EQ(drawing_of({.mode = VerifyMode::coupled, .top_p = 0.5f}), Drawing::filtered);
  EXPECT_EQ(drawing_of({.mode = VerifyMode::rejection, .min_p_reach = 1}), Drawing::filtered);
}

// A row behind a full tile of sixteen begins another.
TEST(StepPricing, SizesEndWithPowersOfTwo) {
  const int64_t last[] = {1, 2, 4, 8, 16, 32, 64};
  for (int size = 0; size < 7; ++size) {
    EXPECT_EQ(StepPricing::size_of(last[size]), size);
    EXPECT_EQ(StepPricing::size_of(last[size] + 1), size + 1);
  }
  EXPECT_EQ(StepPricing::size_of(0), 0);
  EXPECT_EQ(StepPricing::size_of(1000), 7);
}

TEST(SpeedupRecord, PredictsByTheoryAndMeasuresByTokens) {
  SpeedupRecord record;
  record.add(3, 4, {});  // was not timed
  EXPECT_EQ(record.predicted(0.5), std::nullopt);
  EXPECT_EQ(record.measured(), std::nullopt);
  record.add(3, 4, {.plain_ms = 10, .expected_ms = 12, .ms = 13});
  record.add(0, 1, {.plain_ms = 10, .expected_ms = 10, .ms = 11});
  EXPECT_NEAR(record.predicted(0.5).value(), (1.875 + 1) / 2 * 20 / 22, 1e-12);
  EXPECT_NEAR(record.measured().value(), 2.5 * 20 / 24, 1e-12);
  EXPECT_EQ(record.steps[3], 1);
  // A rounding beyond.
  EXPECT_NEAR(record.predicted(1 + 1e-12).value(), (4.0 + 1) / 2 * 20 / 22, 1e-9);
}

}  // namespace
}  // namespace outrider
