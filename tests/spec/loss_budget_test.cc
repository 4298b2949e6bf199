// LossBudget: over long runs with drafters that are as bad as can be, the total time stays within
// 1.01 of plain decoding and the start.
#include "spec/loss_budget.h"

#include <gtest/gtest.h>

#include <random>

namespace outrider {
namespace {

constexpr double kPlainMs = 10, kDraftingMs = 2;  // a drafting step takes 12 ms

TEST(LossBudget, StartsFullAndHoldsNoMore) {
  LossBudget budget;
  EXPECT_EQ(budget.left_ms(), 0);
  budget.set_cost(kDraftingMs);
  EXPECT_EQ(budget.left_ms(), 40);
  budget.earn(1000);
  budget.charge(-1000);
  EXPECT_EQ(budget.left_ms(), 40);
  budget.set_cost(1);  // of fewer sequences
  EXPECT_EQ(budget.left_ms(), 20);
  budget.set_cost(kDraftingMs);  // no second start
  EXPECT_EQ(budget.left_ms(), 20);
}

TEST(LossBudget, DebtsArePaidFirst) {
  LossBudget budget;
  budget.set_cost(kDraftingMs);
  budget.charge(45);
  EXPECT_EQ(budget.left_ms(), 0);
  for (int i = 0; i < 49; ++i) budget.earn(kPlainMs);
  EXPECT_EQ(budget.left_ms(), 0);
  for (int i = 0; i < 10; ++i) budget.earn(kPlainMs);
  EXPECT_NEAR(budget.left_ms(), 0.9, 1e-9);
}

TEST(LossBudget, IsSpentWhereNoStepCanBeBegun) {
  LossBudget budget;
  EXPECT_FALSE(budget.is_spent());  // nothing is known yet
  budget.set_cost(kDraftingMs);
  budget.charge(38);
  EXPECT_FALSE(budget.is_spent());
  budget.charge(0.1);
  EXPECT_TRUE(budget.is_spent());
  EXPECT_GT(budget.left_ms(), 0);
  budget.earn(kPlainMs);
  EXPECT_FALSE(budget.is_spent());
}

struct Totals {
  double ms = 0, tokens = 0, drafting_steps = 0;
  double over_plain() const { return ms / (tokens * kPlainMs); }
};

// Whoever drafts whenever it may. accepted(step): tokens that a drafting step gains.
template <typename Accepted>
Totals simulate(int steps, const Accepted& accepted) {
  LossBudget budget;
  budget.set_cost(kDraftingMs);
  Totals totals;
  for (int i = 0; i < steps; ++i) {
    budget.earn(kPlainMs);
    const bool drafts = budget.left_ms() >= kDraftingMs;
    const double tokens = 1 + (drafts ? accepted(i) : 0);
    const double ms = kPlainMs + (drafts ? kDraftingMs : 0);
    if (drafts) budget.charge(ms - tokens * kPlainMs);
    totals.ms += ms;
    totals.tokens += tokens;
    totals.drafting_steps += drafts;
    // At every moment, not only at the end.
    EXPECT_LE(totals.ms, 1.01 * totals.tokens * kPlainMs + 20 * kDraftingMs + 1e-6);
  }
  return totals;
}

TEST(LossBudget, AHopelessDrafterCostsAHundredth) {
  const Totals totals = simulate(100'000, [](int) { return 0; });
  EXPECT_LT(totals.over_plain(), 1.0101);
  EXPECT_GT(totals.drafting_steps, 4000);  // and is still tried now and then
}

TEST(LossBudget, AGoodDrafterIsNeverHeldBack) {
  std::mt19937_64 random(7);
  const Totals totals = simulate(100'000, [&](int) { return random() % 10 < 5; });
  EXPECT_EQ(totals.drafting_steps, 100'000);
  EXPECT_LT(totals.over_plain(), 0.85);
}

// Acceptance that draws trust and then fails, in periods of any length.
TEST(LossBudget, AnAdversaryCostsNoMore) {
  for (const int period : {2, 7, 40, 100, 1000, 30'000}) {
    simulate(100'000, [&](int i) { return i / period % 2 == 0 ? 3 : 0; });
    simulate(100'000, [&](int i) { return i % period == 0 ? 1 : 0; });
  }
}

}  // namespace
}  // namespace outrider
