#include "bench/simulated_load.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bench/statistics.h"

namespace outrider {
namespace {

constexpr auto kHead = DrafterKind::head;

// A step of one row takes 10 ms, a further row 0.2 up to eight, and 1 behind them; a round 0.5.
// Alternatives take 0.1 more, the first of a step, 0.03 the others; drawing one 0.02.
SimulatedServer server() {
  SimulatedServer server;
  server.limits = {.num_slots = 64, .num_pages = 10'000, .max_rows = 512, .prefill_chunk = 256};
  server.tables.target.steps = {{1, 10}, {8, 11.4}, {108, 111.4}};
  server.tables.draft[static_cast<int>(kHead)].steps = {{1, 0.5}, {101, 10.5}};
  server.tables.target.ms_of_first_alternative = 0.1;
  server.tables.target.ms_per_alternative = 0.03;
  server.tables.again_ms[static_cast<int>(kHead)] = 0.02;
  server.limits.costs = server.tables.target;
  server.limits.prefill_slowdown = 1.4;
  server.limits.prefill_ms = 1;
  return server;
}

SimulatedLoad load(int requests, std::pair<double, double> alpha) {
  return {.requests = requests, .prompt_tokens{16, 64}, .tokens{32, 64}, .alpha = alpha};
}

SimulatedLoad at_rate(double rate, SimulatedLoad load) {
  load.rate = rate;
  return load;
}

SimulatedLoad of_users(int users, SimulatedLoad load) {
  load.users = users;
  return load;
}

TEST(SimulatedLoad, TakesWhatTheCostsSay) {
  SimulatedLoad one = of_users(1, load(2, {0, 0}));
  one.prompt_tokens = {5, 5};
  one.tokens = {4, 4};
  const auto answers = simulate(server(), one, false, 1);
  ASSERT_EQ(answers.size(), 2);
  // The prompt's five rows in one step, then a row each.
  EXPECT_NEAR(answers[0].time_to_first(), 0.0108, 1e-9);
  EXPECT_NEAR(answers[0].time_per_token(), 0.010, 1e-9);
  EXPECT_NEAR(answers[0].end_to_end(), 0.0408, 1e-9);
  EXPECT_EQ(answers[1].arrival, answers[0].end);
  EXPECT_NEAR(answers[1].end_to_end(), 0.0408, 1e-9);
}

TEST(SimulatedLoad, ASeedGivesTheSameAgainAndBothArmsTheSameRequests) {
  SimulatedServer noisy = server();
  noisy.noise = 0.1;
  const SimulatedLoad some = at_rate(2, load(200, {0.2, 0.8}));
  const auto plain = simulate(noisy, some, false, 7), again = simulate(noisy, some, false, 7);
  const auto adaptive = simulate(noisy, some, true, 7), other = simulate(noisy, some, false, 8);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(plain[i].end, again[i].end);
    EXPECT_EQ(plain[i].arrival, adaptive[i].arrival);
    EXPECT_EQ(plain[i].tokens, adaptive[i].tokens);
  }
  EXPECT_NE(plain[0].arrival, other[0].arrival);
  EXPECT_NEAR(plain.back().arrival, 100, 30);
}

TEST(SimulatedLoad, NoMoreUsersThanThereAre) {
  const auto answers = simulate(server(), of_users(5, load(100, {0.5, 0.5})), true, 1);
  for (const SimulatedAnswer& at : answers) {
    const auto waits = [&](const SimulatedAnswer& answer) {
      return answer.arrival <= at.arrival && at.arrival < answer.end;
    };
    EXPECT_LE(std::count_if(answers.begin(), answers.end(), waits), 5);
  }
}

TEST(SimulatedLoad, AcceptedDraftsAreTokens) {
  const SimulatedLoad one = of_users(1, load(50, {1, 1}));
  const auto plain = simulate(server(), one, false, 1), drafted = simulate(server(), one, true, 1);
  EXPECT_LT(drafted.back().end, 0.5 * plain.back().end);
}

// Half of the first drafts are refused, and nearly half of what comes in their place was an
// alternative.
TEST(SimulatedLoad, AcceptedAlternativesAreTokens) {
  SimulatedServer with = server();
  with.tables.target.steps = {{1, 10}, {16, 10.15}, {108, 111}};  // rows cost next to nothing
  SimulatedServer without = with;
  without.max_alternatives = 0;
  const SimulatedLoad one = of_users(1, load(200, {0.5, 0.5}));
  const double end = simulate(with, one, true, 1).back().end;
  const double end_without = simulate(without, one, true, 1).back().end;
  EXPECT_LT(end, 0.97 * end_without);
  EXPECT_GT(end, 0.9 * end_without);
}

// A step of K drafts and one token takes what its rows and rounds do: no less a token than the best
// K has.
TEST(SimulatedLoad, DraftsTakeTheirTime) {
  const StepPricing costs(server().tables);
  double least_ms = 1e9;  // a token
  for (int k = 0; k <= kMaxDraftTokens; ++k) {
    DecodeShape step;
    step.add(server().tables.target, 0, kHead, Drawing::greedy, {.num_drafted = k});
    least_ms = std::min(least_ms, (costs.step_ms(step) + costs.draft_ms(step)) / (k + 1));
  }
  EXPECT_GT(least_ms, 1.5);
  const auto answers = simulate(server(), of_users(1, load(50, {1, 1})), true, 1);
  for (const SimulatedAnswer& answer : answers) {
    EXPECT_GE(1e3 * answer.time_per_token(), least_ms * (1 - 1e-9));
  }
}

// A chunk of 256 rows; then the 43 others, and the last token's.
TEST(SimulatedLoad, LongPromptsTakeSeveralSteps) {
  SimulatedLoad one = of_users(1, load(1, {0, 0}));
  one.prompt_tokens = {300, 300};
  one.tokens = {2, 2};
  const auto answers = simulate(server(), one, false, 1);
  EXPECT_NEAR(answers[0].time_to_first(), 0.2594 + 0.0474, 1e-9);
  EXPECT_NEAR(answers[0].time_per_token(), 0.010, 1e-9);
}

double p99(const std::vector<double>& values) {
  Samples samples{values, std::vector<int64_t>(values.size())};
  return summarise(samples, 0).p99;
}

// Where rows cost little, as on a GPU, steps beside prompts draft, and what that saves is the
// prompts'.
TEST(SimulatedLoad, DraftsSpeedPromptsUpWhereRowsAreCheap) {
  SimulatedServer cheap = server();
  cheap.tables.target.steps = {{1, 8}, {16, 8.3}, {64, 9}, {128, 10}, {256, 14}, {512, 24}};
  cheap.tables.draft[static_cast<int>(kHead)].steps = {{1, 0.4}, {64, 0.5}, {512, 2}};
  cheap.limits.costs = cheap.tables.target;
  cheap.limits.num_pages = 100'000;
  for (const double rate : {4, 12}) {
    SCOPED_TRACE(rate);
    SimulatedLoad some = at_rate(rate, load(2000, {0.3, 0.8}));
    some.prompt_tokens = {200, 1000};
    some.tokens = {100, 300};
    std::vector<double> ttft[2], tpot[2];
    for (const bool speculates : {false, true}) {
      for (const SimulatedAnswer& answer : simulate(cheap, some, speculates, 1)) {
        ttft[speculates].push_back(answer.time_to_first());
        tpot[speculates].push_back(answer.time_per_token());
      }
    }
    EXPECT_LT(p99(ttft[1]), 0.95 * p99(ttft[0]));
    EXPECT_LT(p99(tpot[1]), p99(tpot[0]));
  }
}

// The promise, at every load, for good drafts and hopeless ones: drafting makes nobody wait. (Users
// who are answered sooner ask again sooner, so that their prompts meet more often: no such promise
// of TTFT.) So few requests tell most P99s by a hundredth or two, and some by less: for their
// intervals blocks of requests are drawn that follow each other.
TEST(SimulatedLoad, SpeculationMakesNobodyWait) {
  constexpr double kPromise = 1.01, kMost = 1.02;
  constexpr int kRequests = 4000, kBlock = 100;
  const auto expect_kept = [&](const Samples(&arms)[2], const char* what) {
    const Ratios ratios = *compare(arms[true], arms[false], 0);
    EXPECT_LE(ratios.p99, kMost) << what;
    EXPECT_LE(ratios.ci95->low.p99, kPromise) << what << ", of " << ratios.p99;
  };
  SimulatedServer noisy = server();
  noisy.noise = 0.1;
  std::vector<SimulatedLoad> loads;
  for (const auto& alpha : {std::pair{0.0, 0.0}, {0.2, 0.7}}) {
    const SimulatedLoad some = load(kRequests, alpha);
    for (const double rate : {1, 3, 6, 9}) loads.push_back(at_rate(rate, some));
    for (const int users : {2, 8, 24}) loads.push_back(of_users(users, some));
  }
  for (const SimulatedLoad& load : loads) {
    Samples ttft[2], tpot[2], end[2];
    for (const bool speculates : {false, true}) {
      const auto answers = simulate(noisy, load, speculates, 1);
      for (int i = 0; i < kRequests; ++i) {
        ttft[speculates].add(answers[i].time_to_first(), i / kBlock);
        tpot[speculates].add(answers[i].time_per_token(), i / kBlock);
        end[speculates].add(answers[i].end_to_end(), i / kBlock);
      }
    }
    SCOPED_TRACE(testing::Message() << "rate " << load.rate << ", users " << load.users
                                    << ", alpha up to " << load.alpha.second);
    if (load.rate > 0) expect_kept(ttft, "TTFT");
    expect_kept(tpot, "TPOT");
    expect_kept(end, "end to end");
  }
}

}  // namespace
}  // namespace outrider
