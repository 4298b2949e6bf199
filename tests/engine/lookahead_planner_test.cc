// LookaheadPlanner against a server that is simulated: what steps truly cost and what is truly
// accepted are known here, and not to the planner.
#include "engine/lookahead_planner.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "lookahead_tables.h"
#include "spec/theory.h"

namespace outrider {
namespace {

class SimulatedServer {
 public:
  // accepts(step, position, k): whether a drafted token that is reached is accepted, of k.
  using Accepts = std::function<bool(int64_t step, int position, int k)>;

  // second: drafts for every second sequence, which names its K.
  SimulatedServer(LookaheadPolicy policy, LookaheadTables known, LookaheadTables real, int batch,
                  Accepts accepts, bool exact = false, DrafterKind second = kRandom)
      : planner(std::move(policy), std::move(known)),
        real_(std::move(real)),
        accepts_(std::move(accepts)),
        second_(second),
        exact_(exact) {
    for (int64_t id = 0; id < batch; ++id) {
      planner.add(id, {.drafter = drafter_of(id), .exact = is_exact(id)});
    }
    tokens_.resize(batch, {1});
  }

  void step() {
    std::vector<DecodeChoice> choices;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const auto id = static_cast<int64_t>(i);
      choices.push_back({.id = id,
                         .exact = is_exact(id),
                         .tokens = tokens_[i],
                         .num_draft_tokens = is_exact(id) ? 4 : kMaxDraftTokens});
    }
    planner.choose(choices, {});
    std::vector<LookaheadOutcome> outcomes;
    DecodeShape shape, plain;
    for (const DecodeChoice& choice : choices) {
      const int k = choice.num_draft_tokens;
      int accepted = 0;
      while (accepted < k && accepts_(num_steps, accepted, k)) ++accepted;
      outcomes.push_back({.id = choice.id,
                          .position = 1,
                          .drafts = {.num_drafted = k,
                                     .num_accepted = accepted,
                                     .alpha_sum = static_cast<double>(accepted),
                                     .alpha_rows = std::min(accepted + 1, k)},
                          .num_emitted = accepted + 1});
      shape.add(real_.target(), 1, drafter_of(choice.id), Drawing::greedy, {.num_drafted = k});
      plain.add(real_.target(), 1, drafter_of(choice.id), Drawing::greedy, {});
      num_emitted += accepted + 1;
      num_drafted += k;
    }
    const double noise = noisy ? std::exp(0.1 * normal_(random_)) : 1;
    const double draft_ms = noise * real_.draft_ms(shape);
    const double ms = noise * real_.step_ms(shape) + draft_ms;
    total_ms += ms;
    plain_ms += real_.step_ms(plain) / static_cast<double>(choices.size()) *
                static_cast<double>(num_emitted - counted_);
    counted_ = num_emitted;
    ++num_steps;
    planner.observe(outcomes, {}, {ms, draft_ms});
  }

  // What 20 steps that draft 4 tokens for each sequence cost beyond plain ones.
  double start_ms() const {
    const auto n = static_cast<int64_t>(tokens_.size());
    const DecodeShape plain{.sequences = n}, drafting{.sequences = n, .drafted_rows = 4 * n};
    return 20 * (real_.step_ms(drafting) - real_.step_ms(plain) + 4 * real_.round_ms(kRandom, n));
  }

  LookaheadPlanner planner;
  bool noisy = false;
  int64_t num_steps = 0, num_drafted = 0, num_emitted = 0;
  double total_ms = 0;
  double plain_ms = 0;  // that the tokens would have taken

 private:
  DrafterKind drafter_of(int64_t id) const { return id % 2 == 0 ? kRandom : second_; }
  bool is_exact(int64_t id) const { return exact_ || drafter_of(id) != kRandom; }

  StepPricing real_;
  Accepts accepts_;
  DrafterKind second_;
  bool exact_;
  std::vector<std::vector<int32_t>> tokens_;
  int64_t counted_ = 0;
  std::mt19937_64 random_{11};
  std::normal_distribution<double> normal_;
};

SimulatedServer::Accepts never() {
  return [](int64_t, int, int) { return false; };
}

SimulatedServer::Accepts with_probability(double alpha) {
  auto random = std::make_shared<std::mt19937_64>(5);
  return [=](int64_t, int, int) { return std::uniform_real_distribution()(*random) < alpha; };
}

constexpr int64_t kSteps = 20'000, kLongRun = 100'000;

// The promise, at every moment of a long run.
void expect_never_slower(SimulatedServer& server, int64_t steps, double share = 0.01) {
  const double start = server.start_ms();
  for (int64_t i = 0; i < steps; ++i) {
    server.step();
    ASSERT_LE(server.total_ms, (1 + share) * server.plain_ms + start + 1e-6)
        << "step " << server.num_steps;
  }
}

TEST(LookaheadPlanner, AHopelessDrafterCostsAHundredthAtMost) {
  for (const int batch : {1, 4, 16}) {
    SimulatedServer server(adaptive(), tables(), tables(), batch, never());
    expect_never_slower(server, batch == 1 ? kLongRun : kSteps);
    EXPECT_LT(server.total_ms, 1.011 * server.plain_ms);
    EXPECT_GT(server.num_drafted, server.num_steps / 1000);  // it is still tried now and then
    EXPECT_GT(server.planner.reports()[static_cast<int>(kRandom)].num_drafts, 0);
  }
}

TEST(LookaheadPlanner, AnAdversaryCostsAHundredthAtMost) {
  for (const int64_t period : {2, 13, 65, 500, 5000}) {
    SCOPED_TRACE(period);
    SimulatedServer in_turns(adaptive(), tables(), tables(), 1,
                             [=](int64_t step, int, int) { return step / period % 2 == 0; });
    expect_never_slower(in_turns, period == 500 ? kLongRun : kSteps);
    SimulatedServer rarely(adaptive(), tables(), tables(), 4,
                           [=](int64_t step, int, int) { return step % period == 0; });
    expect_never_slower(rarely, kSteps);
  }
  // Accepts what is drafted alone, so as to be trusted, and refuses all that is drafted then.
  for (const int most : {1, 2}) {
    SimulatedServer trap(adaptive(), tables(3, 4), tables(3, 4), 1,
                         [=](int64_t, int, int k) { return k <= most; });
    expect_never_slower(trap, kLongRun);
  }
}

// What was measured at the start need not be true any more.
TEST(LookaheadPlanner, WrongTablesAreFoundOut) {
  for (const auto& [row_ms, round_ms] : {std::pair{1.0, 3.0}, {3.0, 0.2}, {0.01, 8.0}}) {
    SimulatedServer server(adaptive(), tables(), tables(row_ms, round_ms), 4,
                           with_probability(0.3));
    for (int64_t i = 0; i < kSteps; ++i) server.step();
    EXPECT_LT(server.total_ms, 1.02 * server.plain_ms) << row_ms << ", " << round_ms;
  }
}

// Another drafter, whose requests name their K, drafts in every step too.
TEST(LookaheadPlanner, WrongTablesAreFoundOutBesideAnotherDrafter) {
  LookaheadTables real = tables();
  real.draft[static_cast<int>(kRandom)].steps = {{1, 6}, {101, 7}};
  SimulatedServer server(adaptive(), tables(), real, 4, with_probability(0.3), false, kModel);
  for (int64_t i = 0; i < kSteps; ++i) server.step();
  const int64_t exact = 2 * 4 * server.num_steps;
  EXPECT_LT(server.num_drafted - exact, server.num_steps / 10);
}

// Whose steps are never without drafted rows: what these cost is told by those that have no others.
TEST(LookaheadPlanner, DearRowsAreFoundOutBesideWhoNamesAK) {
  for (const double row_ms : {3.0, 4.0}) {
    SimulatedServer server(adaptive(), tables(), tables(row_ms), 2, with_probability(0.3), false,
                           kModel);
    for (int64_t i = 0; i < kSteps; ++i) server.step();
    const int64_t exact = 4 * server.num_steps;
    EXPECT_LT(server.num_drafted - exact, server.num_steps / 10) << row_ms;
  }
}

// From five rows on a pass takes half as long again, and the table knows nothing of it.
TEST(LookaheadPlanner, ACliffInTheRowsIsFoundOut) {
  LookaheadTables real = tables();
  real.target.steps = {{1, 10}, {4, 10.6}, {5, 15.6}, {101, 35}};
  for (const double alpha : {0.1, 0.3}) {
    SimulatedServer server(adaptive(), tables(), real, 1, with_probability(alpha));
    for (int64_t i = 0; i < kSteps; ++i) server.step();
    EXPECT_LT(server.total_ms, 1.02 * server.plain_ms) << alpha;
  }
}

TEST(LookaheadPlanner, NoiseDoesNotBreakThePromise) {
  for (const double alpha : {0.0, 0.1, 0.2}) {
    SimulatedServer server(adaptive(), tables(0.5, 2), tables(0.5, 2), 4, with_probability(alpha));
    server.noisy = true;
    for (int64_t i = 0; i < kSteps; ++i) server.step();
    EXPECT_LT(server.total_ms, 1.025 * server.plain_ms) << alpha;  // 1 % of it is the noise's mean
  }
}

TEST(LookaheadPlanner, AGoodDrafterIsUsedAsTheBestFixedKIs) {
  for (const double alpha : {0.5, 0.7, 0.9, 0.97}) {
    double best = 0;  // c is 0.1, and a row is 0.02 of a pass
    for (int k = 0; k <= kMaxDraftTokens; ++k) {
      best = std::max(best, expected_speedup(alpha, k, 0.1, 1 + 0.02 * k));
    }
    for (const bool noisy : {false, true}) {
      SimulatedServer server(adaptive(), tables(), tables(), 1, with_probability(alpha));
      server.noisy = noisy;
      for (int i = 0; i < 20'000; ++i) server.step();
      EXPECT_GT(server.plain_ms / server.total_ms, 0.99 * best) << alpha;
    }
  }
}

TEST(LookaheadPlanner, ADrafterThatGetsBetterIsUsedAgain) {
  const int64_t turn = 20'000;
  SimulatedServer server(adaptive(), tables(), tables(), 1,
                         [=](int64_t step, int, int) { return step >= turn; });
  while (server.num_steps < turn) server.step();
  const double before_ms = server.total_ms, before_plain = server.plain_ms;
  while (server.num_steps < turn + 1000) server.step();
  EXPECT_GT(server.plain_ms - before_plain, 2 * (server.total_ms - before_ms));
}

TEST(LookaheadPlanner, PredictsWhatItMeasures) {
  SimulatedServer server(adaptive(), tables(), tables(), 1, with_probability(0.8));
  for (int i = 0; i < 20'000; ++i) server.step();
  const DrafterReport report = server.planner.reports()[static_cast<int>(kRandom)];
  EXPECT_NEAR(report.alpha, 0.8, 0.02);
  EXPECT_NEAR(report.draft_cost.value(), 0.1, 0.01);
  const double measured = report.measured_speedup.value();
  EXPECT_NEAR(report.predicted_speedup.value() / measured, 1, 0.03);
  EXPECT_NEAR(measured, server.plain_ms / server.total_ms, 0.05);
}

TEST(LookaheadPlanner, ExactRequestsAreNobodysToJudge) {
  SimulatedServer server(adaptive(), tables(), tables(), 2, never(), true);
  for (int i = 0; i < 1000; ++i) server.step();
  EXPECT_EQ(server.num_drafted, 1000 * 2 * 4);
}

// What a step may lose by the drafts chosen for one sequence is not granted to another's cache.
TEST(LookaheadPlanner, WhatOneIsGrantedAnotherIsNot) {
  LookaheadPlanner planner(adaptive(), tables());
  for (const int64_t id : {1, 2}) planner.add(id, {.drafter = kModel});
  const std::vector<int32_t> tokens = {1};
  const CatchUp behind{.id = 2, .rows = 90, .tokens_left = 1000};
  bool drafted = false;
  for (int i = 0; i < 100 && !drafted; ++i) {
    std::vector<DecodeChoice> one = {
        {.id = 1, .tokens = tokens, .num_draft_tokens = kMaxDraftTokens}};
    planner.choose(one, {});
    const int k = one[0].num_draft_tokens;
    drafted = k > 0;
    if (drafted) {
      int granted = 0;
      while (granted < 1000 && planner.may_catch_up(behind)) ++granted;
      const double left = planner.reports()[static_cast<int>(kModel)].budget_ms;
      const double row_ms = 1.9, of_step = k * (1 + 0.2);
      EXPECT_GT(granted, 0);
      EXPECT_LE(granted * row_ms + of_step, left);
    }
    planner.observe(std::vector<LookaheadOutcome>{{.id = 1,
                                                   .position = 1,
                                                   .drafts = {.num_drafted = k, .num_accepted = k},
                                                   .num_emitted = k + 1}},
                    {}, {10 + 1.2 * k, 1.0 * k});
  }
  EXPECT_TRUE(drafted);
}

TEST(LookaheadPlanner, AnObjectiveThatCannotBeMetHidesNoOther) {
  LookaheadPlanner planner(adaptive(), tables());
  planner.add(1, {.drafter = kModel, .max_step_ms = 1});
  planner.add(2, {.drafter = kModel, .max_step_ms = 13});
  const std::vector<int32_t> tokens = {1};
  int drafted = 0;
  for (int i = 0; i < 300; ++i) {
    std::vector<DecodeChoice> both;
    for (const int64_t id : {1, 2}) {
      both.push_back({.id = id, .tokens = tokens, .num_draft_tokens = kMaxDraftTokens});
    }
    planner.choose(both, {});
    std::vector<LookaheadOutcome> outcomes;
    int rows = 0, rounds = 0;
    for (const DecodeChoice& choice : both) {
      const int k = choice.num_draft_tokens;
      outcomes.push_back({.id = choice.id,
                          .position = 1,
                          .drafts = {.num_drafted = k, .num_accepted = k},
                          .num_emitted = k + 1});
      rows += k;
      rounds = std::max(rounds, k);
    }
    const double draft_ms = 0.99 * rounds + 0.01 * rows;
    const double ms = 10.2 + 0.2 * rows + draft_ms;
    EXPECT_LE(ms, 13.01);
    planner.observe(outcomes, {}, {ms, draft_ms});
    drafted += rows;
  }
  EXPECT_GT(drafted, 300);
}

TEST(LookaheadPlanner, TablesGoByTheBatch) {
  for (const auto& [batch, k] : {std::pair{1, 4}, {7, 4}, {8, 2}, {20, 0}}) {
    SimulatedServer server(*parse_lookahead("table:1=4,8=2,20=0"), {}, tables(), batch, never());
    server.step();
    EXPECT_EQ(server.num_drafted, batch * k);
  }
}

// It takes a hundred times as long: no price follows that, nor is it compared with one.
TEST(LookaheadPlanner, AStepThatRecordsSaysNothingOfCosts) {
  LookaheadPlanner planner(adaptive(), tables());
  planner.add(1, {.drafter = kModel});
  const LookaheadOutcome plain{.id = 1, .position = 1, .num_emitted = 1};
  const auto measured = [&] {
    return planner.reports()[static_cast<int>(kModel)].measured_speedup.has_value();
  };
  EXPECT_EQ(planner.observe({&plain, 1}, {}, {.ms = 1000, .recorded = true}).plain_ms, 0);
  EXPECT_EQ(planner.slowness(1), 1);
  EXPECT_FALSE(measured());
  EXPECT_GT(planner.observe({&plain, 1}, {}, {.ms = 1000}).plain_ms, 0);
  EXPECT_GT(planner.slowness(1), 1);
  EXPECT_TRUE(measured());
}

TEST(LookaheadPlanner, FeedingBesideARecordedPassIsChargedByItsPrice) {
  const std::vector<int32_t> tokens = {1};
  const LookaheadOutcome plain{.id = 1, .position = 1, .num_emitted = 1};
  const auto left_after = [&](const StepDurations& fed) {
    LookaheadPlanner planner(adaptive(), tables());
    planner.add(1, {.drafter = kModel});
    std::vector<DecodeChoice> one = {
        {.id = 1, .tokens = tokens, .num_draft_tokens = kMaxDraftTokens}};
    planner.choose(one, {});  // budgets begin
    planner.observe({&plain, 1}, {.draft = 8, .adaptive_draft = 8}, fed);
    return planner.reports()[static_cast<int>(kModel)].budget_ms;
  };
  const double left = left_after({.ms = 1000, .recorded = true});
  EXPECT_EQ(left, left_after({.ms = 10, .recorded = true}));
  EXPECT_LT(left, left_after({.ms = 10}));
  EXPECT_GT(left, left_after({.ms = 1000}));
}

TEST(LookaheadPlanner, FeedingHasAPriceOfItsOwn) {
  for (const double ms : {0.01, 1.0}) {
    LookaheadTables known = tables();
    known.feed.steps = {{16, 16 * ms}, {256, 256 * ms}};
    LookaheadPlanner planner(adaptive(), known);
    planner.add(1, {.drafter = kModel});
    EXPECT_EQ(planner.may_catch_up({.id = 1, .rows = 2000, .tokens_left = 500}), ms < 1);
  }
}

}  // namespace
}  // namespace outrider
