// What LookaheadPlanner makes of alternatives to first drafted tokens, against a server that is
// simulated.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "engine/lookahead_planner.h"
#include "lookahead_tables.h"

namespace outrider {
namespace {

// One sequence, whose first drafted token is right at 0.55, and each alternative at `hit` where all
// before it were not, but for those behind the first while these have bad luck; behind the first
// tokens drafts are right at 0.5.
class Server {
 public:
  Server(LookaheadTables known, LookaheadTables real, double hit)
      : planner_(adaptive(), std::move(known)), real_(std::move(real)), hit_(hit) {
    planner_.add(0, {.drafter = kModel});
  }

  void step() {
    std::vector<int32_t> tokens(20, 1);
    DecodeChoice choice{.id = 0,
                        .tokens = tokens,
                        .num_draft_tokens = kMaxDraftTokens,
                        .num_alternatives = kMaxAlternatives,
                        .num_refed = refed_};
    planner_.choose({&choice, 1}, {});
    ASSERT_LE(choice.num_draft_tokens + choice.num_alternatives, kMaxDraftTokens);
    ASSERT_TRUE(choice.num_draft_tokens > 0 || choice.num_alternatives == 0);
    LookaheadOutcome outcome{.id = 0,
                             .position = 20,
                             .num_refed = refed_,
                             .drafts = {.num_drafted = choice.num_draft_tokens,
                                        .alpha_counts = true,
                                        .num_alternatives = choice.num_alternatives}};
    VerifiedDrafts& drafts = outcome.drafts;
    while (drafts.num_accepted < drafts.num_drafted &&
           chance(drafts.num_accepted == 0 ? 0.55 : 0.5)) {
      ++drafts.num_accepted;
    }
    for (int i = 0; drafts.num_accepted == 0 && i < drafts.num_alternatives; ++i) {
      if ((i > 0 && bad_luck) || !chance(hit_)) continue;
      drafts.alternative = i;
      break;
    }
    drafts.alpha_sum = drafts.num_accepted;
    drafts.alpha_rows = std::min(drafts.num_accepted + 1, drafts.num_drafted);
    outcome.num_emitted = drafts.num_kept() + 1;
    const DraftedRows rows{.num_drafted = drafts.num_drafted,
                           .num_alternatives = drafts.num_alternatives,
                           .num_refed = refed_};
    refed_ = drafts.alternative >= 0 ? 1 : 0;
    DecodeShape shape, plain;
    shape.add(real_.target(), 20, kModel, Drawing::greedy, rows);
    plain.add(real_.target(), 20, kModel, Drawing::greedy, {});
    const double draft_ms = real_.draft_ms(shape), ms = real_.step_ms(shape) + draft_ms;
    planner_.observe({&outcome, 1}, {}, {ms, draft_ms});
    ++steps;
    total_ms += ms;
    plain_ms += real_.step_ms(plain) * outcome.num_emitted;
    alternatives += drafts.num_alternatives;
    taken += drafts.alternative >= 0;
  }

  void run(int n) {
    for (int i = 0; i < n; ++i) step();
  }
  // Of each step since the last call.
  double mean_alternatives() {
    const double mean = static_cast<double>(alternatives) / steps;
    alternatives = steps = 0;
    return mean;
  }
  DrafterReport report() const { return planner_.reports()[static_cast<int>(kModel)]; }

  bool bad_luck = false;
  int steps = 0, alternatives = 0, taken = 0;
  double total_ms = 0, plain_ms = 0;

 private:
  bool chance(double p) { return std::uniform_real_distribution()(random_) < p; }

  LookaheadPlanner planner_;
  StepPricing real_;
  double hit_;
  int64_t refed_ = 0;
  std::mt19937_64 random_{5};
};

LookaheadTables with_segments(LookaheadTables tables, double segment_ms) {
  tables.target.ms_of_first_alternative = 2 * segment_ms;
  tables.target.ms_per_alternative = segment_ms;
  return tables;
}

TEST(LookaheadAlternatives, AreDraftedWhereRowsAreCheap) {
  Server server(tables(0.1), tables(0.1), 0.3);
  server.run(1000);
  EXPECT_EQ(server.report().num_alternative_draft_tokens, server.alternatives);
  EXPECT_EQ(server.report().num_accepted_alternatives, server.taken);
  EXPECT_GT(server.mean_alternatives(), 3);
  EXPECT_GT(server.taken, 100);
  EXPECT_LT(server.total_ms, 0.7 * server.plain_ms);
  // What is drafted and accepted is told, and what was predicted holds.
  const DrafterReport report = server.report();
  const double measured = report.measured_speedup.value();
  EXPECT_NEAR(report.predicted_speedup.value(), measured, 0.05 * measured);
  EXPECT_NEAR(measured, server.plain_ms / server.total_ms, 0.02);
}

// Those that are never right are found out, and hardly tried again; those that rarely are bring no
// more than they cost.
TEST(LookaheadAlternatives, AreLeftWhereTheyAreWrong) {
  Server server(tables(0.1), tables(0.1), 0);
  server.run(300);
  server.mean_alternatives();
  server.run(3000);
  EXPECT_LT(server.mean_alternatives(), 0.5);
}

// The first is drafted in every step, so that those behind it are never tried for want of any.
TEST(LookaheadAlternatives, BadLuckOfTheFurtherOnesIsForgotten) {
  Server server(tables(0.1), tables(0.1), 0.3);
  server.bad_luck = true;
  server.run(300);
  server.bad_luck = false;
  server.run(2000);
  server.mean_alternatives();
  server.run(1000);
  EXPECT_GT(server.mean_alternatives(), 3);
}

TEST(LookaheadAlternatives, AreLeftWhereRowsAreDear) {
  Server server(tables(2), tables(2), 0.3);
  server.run(1000);
  EXPECT_LT(server.mean_alternatives(), 0.3);
}

// As on a device whose passes are launched kernel by kernel where they have segments.
TEST(LookaheadAlternatives, AreLeftWhereSegmentsAreDear) {
  Server server(with_segments(tables(0.1), 3), with_segments(tables(0.1), 3), 0.3);
  server.run(1000);
  EXPECT_EQ(server.mean_alternatives(), 0);
}

// No slower than by a hundredth, once it is found out that tables promised rows for nothing.
TEST(LookaheadAlternatives, CostNoMoreThanTheBudget) {
  Server server(tables(0.01, 0.01), with_segments(tables(3, 3), 1), 0.05);
  server.run(2000);
  server.total_ms = server.plain_ms = 0;
  server.run(20'000);
  EXPECT_LT(server.total_ms, 1.01 * server.plain_ms);
}

// A row that is fed again is paid by what had it fed.
TEST(LookaheadAlternatives, WhatIsFedAgainIsNoPlainStep) {
  StepPricing pricing(tables(1));
  DecodeShape refed, plain;
  refed.add(pricing.target(), 0, kModel, Drawing::greedy, {.num_refed = 1});
  plain.add(pricing.target(), 0, kModel, Drawing::greedy, {});
  EXPECT_NEAR(pricing.step_ms(refed) - pricing.step_ms(plain), 1, 1e-9);
  EXPECT_EQ(pricing.draft_ms(refed), 0);
  DecodeShape segmented;
  segmented.add(pricing.target(), 0, kModel, Drawing::greedy,
                {.num_drafted = 1, .num_alternatives = 2});
  StepPricing dear(with_segments(tables(1), 0.5));
  EXPECT_NEAR(dear.step_ms(segmented) - pricing.step_ms(segmented), 1.5, 1e-9);
}

}  // namespace
}  // namespace outrider
