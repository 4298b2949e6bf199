// LookaheadPlanner with sequences that share steps: nobody waits long for the drafts of others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "engine/lookahead_planner.h"
#include "lookahead_tables.h"
#include "spec/theory.h"

namespace outrider {
namespace {

// Answers of `length` tokens that share steps, `alphas` of whose drafts are accepted; where one
// ends, another like it begins.
struct SharedSteps {
  std::vector<double> alphas;
  double row_ms = 0.2, round_ms = 1;
  int length = 64;
  uint64_t seed = 3;
  double falls = 1;               // a drafted token is as likely, times this, as the one before
  double most_lost = 0;           // plain steps, by the worst answer
  std::vector<double> slowdowns;  // of each sequence's answers, over plain steps

  void run(int64_t steps) {
    constexpr double kPlainMs = 10, kRoundRowMs = 0.01;
    LookaheadPlanner planner(adaptive(), tables(row_ms, round_ms));
    const std::vector<int32_t> context = {1};
    const auto n = static_cast<int>(alphas.size());
    const double plain_ms = kPlainMs + row_ms * (n - 1);
    struct Answer {
      int64_t id;
      int tokens = 0;
      double ms = 0;
    };
    std::vector<Answer> answers;
    int64_t next_id = 0;
    const auto begin = [&] {
      planner.add(next_id, {.drafter = kModel});
      return Answer{next_id++};
    };
    for (int i = 0; i < n; ++i) answers.push_back(begin());
    std::vector<int64_t> emitted(n);
    std::mt19937_64 random(seed);
    double total_ms = 0;
    for (int64_t step = 0; step < steps; ++step) {
      std::vector<DecodeChoice> choices;
      for (const Answer& answer : answers) {
        choices.push_back(
            {.id = answer.id, .tokens = context, .num_draft_tokens = kMaxDraftTokens});
      }
      planner.choose(choices, {});
      std::vector<LookaheadOutcome> outcomes;
      int rows = 0, rounds = 0;
      for (int i = 0; i < n; ++i) {
        const int k = choices[i].num_draft_tokens;
        int accepted = 0;
        for (double alpha = alphas[i]; accepted < k; ++accepted, alpha *= falls) {
          if (std::uniform_real_distribution()(random) >= alpha) break;
        }
        outcomes.push_back({.id = answers[i].id,
                            .position = 1,
                            .drafts = {.num_drafted = k, .num_accepted = accepted},
                            .num_emitted = accepted + 1});
        rows += k;
        rounds = std::max(rounds, k);
      }
      const double draft_ms = rounds * (round_ms - kRoundRowMs) + kRoundRowMs * rows;
      const double ms = kPlainMs + row_ms * (n - 1 + rows) + draft_ms;
      total_ms += ms;
      planner.observe(outcomes, {}, {ms, draft_ms});
      for (int i = 0; i < n; ++i) {
        Answer& answer = answers[i];
        emitted[i] += outcomes[i].num_emitted;
        answer.tokens += outcomes[i].num_emitted;
        answer.ms += ms;
        if (answer.tokens < length) continue;
        most_lost = std::max(most_lost, answer.ms / plain_ms - answer.tokens);
        planner.remove(answer.id);
        answer = begin();
      }
    }
    for (const int64_t tokens : emitted) {
      slowdowns.push_back(total_ms / (plain_ms * static_cast<double>(tokens)));
    }
  }
};

// Half a plain step at first, three that may be owed, and a four-hundredth of each that is shared.
TEST(LookaheadPlanner, NoAnswerIsMuchSlowerForTheDraftsOfOthers) {
  for (const double round_ms : {0.02, 0.3, 1.0}) {
    for (const double row_ms : {0.05, 0.2, 0.6}) {
      for (const int good : {1, 3, 15}) {
        SharedSteps beside_hopeless{std::vector<double>(good, 0.8), row_ms, round_ms};
        beside_hopeless.alphas.push_back(0);
        beside_hopeless.run(20'000 / (good + 1));
        EXPECT_LE(beside_hopeless.most_lost, 4) << round_ms << " " << row_ms << " " << good;
      }
    }
  }
}

// A few refusals of second tokens, at the start or of another text, are not the last word on them.
TEST(LookaheadPlanner, EarlyBadLuckDoesNotFixK) {
  double best = 0;
  for (int k = 0; k <= kMaxDraftTokens; ++k) {
    best = std::max(best, expected_speedup(0.75, k, 0.2, 1 + 0.1 * k));
  }
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SharedSteps steps{.alphas = {0.75}, .row_ms = 1, .round_ms = 2, .length = 128, .seed = seed};
    steps.run(11'000);
    EXPECT_LT(steps.slowdowns.front() * best, 1 / 0.97) << seed;
  }
}

// Each of many might look whether second tokens are any better now: they look together.
TEST(LookaheadPlanner, ManyLookNoOftenerThanOne) {
  constexpr int kSequences = 16;
  SharedSteps steps{
      .alphas = std::vector<double>(kSequences, 0.9), .round_ms = 0.1, .falls = 1.0 / 3};
  steps.run(12'000);
  constexpr double kPlainMs = 10 + 0.2 * (kSequences - 1);
  constexpr double kDraftingMs = kPlainMs + 0.2 * kSequences + 0.09 + 0.01 * kSequences;
  const double mean =
      std::accumulate(steps.slowdowns.begin(), steps.slowdowns.end(), 0.0) / kSequences;
  EXPECT_LT(mean, kDraftingMs / (1.9 * kPlainMs) / 0.995);  // K is 1
}

TEST(LookaheadPlanner, WhoGainsHoldsNobodyBack) {
  SharedSteps steps{{0.8, 0.7, 0.6, 0.4}};
  steps.run(5000);
  for (const double slowdown : steps.slowdowns) EXPECT_LE(slowdown, 1.0);
  EXPECT_LT(steps.slowdowns.front(), 0.65);
}

// Of many answers one always has bad luck. It bears what its own drafts are worth, if it has them
// in the step.
TEST(LookaheadPlanner, BadLuckOfOneIsNotThatOfAll) {
  SharedSteps alike{std::vector<double>(64, 0.85), 0.1, 0.3};
  SharedSteps unlike{{0.3, 0.8, 0.3, 0.8, 0.3, 0.8, 0.3, 0.8}, 0.1, 0.3};
  alike.length = unlike.length = 256;
  alike.run(3000);
  unlike.run(3000);
  for (const double slowdown : alike.slowdowns) EXPECT_LT(slowdown, 1 / 1.25);
  for (const size_t good : {1, 3, 5, 7}) EXPECT_LT(unlike.slowdowns[good], 1 / 1.9);
  for (const size_t bad : {0, 2, 4, 6}) EXPECT_LT(unlike.slowdowns[bad], 1);
  EXPECT_LT(alike.most_lost, 4);
  EXPECT_LT(unlike.most_lost, 4);
}

// Who names one above 0 leaves no step without drafts.
TEST(LookaheadPlanner, WhoNamesAKHoldsNobodyBack) {
  for (const int named : {0, 4}) {
    LookaheadPlanner planner(adaptive(), tables());
    planner.add(1, {.drafter = kModel});
    planner.add(2, {.drafter = kModel, .exact = true});
    const std::vector<int32_t> context = {1};
    constexpr int kSteps = 500;
    int drafting = 0;
    for (int i = 0; i < kSteps; ++i) {
      std::vector<DecodeChoice> both = {
          {.id = 1, .tokens = context, .num_draft_tokens = kMaxDraftTokens},
          {.id = 2, .exact = true, .tokens = context, .num_draft_tokens = named}};
      planner.choose(both, {});
      const int k = both[0].num_draft_tokens;
      drafting += k > 0;
      const std::vector<LookaheadOutcome> outcomes = {
          {.id = 1,
           .position = 1,
           .drafts = {.num_drafted = k, .num_accepted = k},
           .num_emitted = k + 1},
          {.id = 2,
           .position = 1,
           .drafts = {.num_drafted = named, .num_accepted = named},
           .num_emitted = named + 1}};
      const double rounds = std::max(k, named);
      planner.observe(outcomes, {}, {10.2 + 0.2 * (k + named) + rounds, rounds});
    }
    EXPECT_GT(drafting, 0.9 * kSteps) << named;
  }
}

// Steps of one who names its K, alone, tell nothing of what steps of others take without drafts.
TEST(LookaheadPlanner, WhoNamesAKTellsNothingOfPlainSteps) {
  LookaheadPlanner planner(adaptive(), tables());
  planner.add(1, {.drafter = kModel});
  planner.add(2, {.drafter = kModel, .exact = true});
  const std::vector<int32_t> context = {1};
  int plain = 0;
  for (int i = 0; i < 40; ++i) {
    const bool names_k = i % 2 == 0;
    DecodeChoice one{.id = names_k ? 2 : 1,
                     .exact = names_k,
                     .tokens = context,
                     .num_draft_tokens = names_k ? 4 : kMaxDraftTokens};
    planner.choose({&one, 1}, {});
    const int k = one.num_draft_tokens;
    plain += k == 0;
    const LookaheadOutcome outcome{.id = one.id,
                                   .position = 1,
                                   .drafts = {.num_drafted = k, .num_accepted = k},
                                   .num_emitted = k + 1};
    planner.observe({&outcome, 1}, {}, {10 + 1.2 * k, 1.0 * k});
  }
  EXPECT_EQ(plain, 3);
}

// Three of four cannot be drafted for, as where a copy drafter finds no match: the fourth may draw
// on what they spare.
TEST(LookaheadPlanner, DraftsBesideWhoHasNone) {
  SharedSteps steps{{0.9, 0, 0, 0}, 0.05, 0.02};
  steps.run(5000);
  EXPECT_LT(steps.slowdowns.front(), 0.9);
}

// One sequence for which nothing is accepted, beside one for which four of five are.
TEST(LookaheadPlanner, AHopelessSequenceInGoodCompanyIsSeldomDraftedFor) {
  LookaheadTables known = tables();
  known.draft[static_cast<int>(kModel)].steps = {{1, 1}, {101, 101}};  // no round is shared
  LookaheadPlanner planner(adaptive(), known);
  planner.add(1, {.drafter = kModel});
  planner.add(2, {.drafter = kModel});
  const std::vector<int32_t> tokens = {1};
  int64_t steps = 0, wasted = 0;
  for (int i = 0; i < 5000; ++i) {
    std::vector<DecodeChoice> both;
    for (const int64_t id : {1, 2}) {
      both.push_back({.id = id, .tokens = tokens, .num_draft_tokens = kMaxDraftTokens});
    }
    planner.choose(both, {});
    std::vector<LookaheadOutcome> outcomes;
    double ms = 10, draft_ms = 0;
    for (const DecodeChoice& choice : both) {
      const int k = choice.num_draft_tokens;
      const int accepted = choice.id == 1 ? std::min(k, i % 5) : 0;
      outcomes.push_back({.id = choice.id,
                          .position = 1,
                          .drafts = {.num_drafted = k, .num_accepted = accepted},
                          .num_emitted = accepted + 1});
      ms += 1.2 * k;
      draft_ms += k;
    }
    planner.observe(outcomes, {}, {ms, draft_ms});
    if (i < 500) continue;
    ++steps;
    wasted += both[1].num_draft_tokens;
  }
  EXPECT_GT(wasted, 0);
  EXPECT_LT(static_cast<double>(wasted), 0.15 * static_cast<double>(steps));
}

// Answers of one kind are drafted for in every step. Those of another have bad luck at first: while
// nothing is drafted for them, nobody finds out that it was luck.
TEST(LookaheadPlanner, BadLuckOfOneKindOfAnswersIsForgotten) {
  LookaheadPlanner planner(adaptive(), tables(/*row_ms=*/1, /*round_ms=*/0.01));
  const std::vector<int32_t> context = {1};
  planner.add(0, {.drafter = kModel});
  planner.add(1, {.drafter = kModel, .drawing = Drawing::sampled});
  int accepted = 0, refused = 0, step = 0;
  for (; step < 5000 && accepted < 100; ++step) {
    std::vector<DecodeChoice> choices = {{.id = 0, .tokens = context, .num_draft_tokens = 2},
                                         {.id = 1, .tokens = context, .num_draft_tokens = 2}};
    planner.choose(choices, {});
    const bool lucky = step > 200;
    const int first = choices[0].num_draft_tokens, second = choices[1].num_draft_tokens;
    (lucky ? accepted : refused) += second > 0;
    const int kept = lucky ? second : 0;
    const std::vector<LookaheadOutcome> outcomes = {
        {.id = 0,
         .position = 1,
         .drafts = {.num_drafted = first, .num_accepted = first},
         .num_emitted = first + 1},
        {.id = 1,
         .position = 1,
         .drafts = {.num_drafted = second, .num_accepted = kept},
         .num_emitted = kept + 1}};
    planner.observe(outcomes, {}, {11.0 + first + second, 0.01 * std::max(first, second)});
  }
  EXPECT_EQ(accepted, 100);
  EXPECT_LT(refused, 20);  // it was put aside for a while
}

// From the fourth row on a step takes three times as long.
TEST(LookaheadPlanner, ExactCopiesArePricedByWhatThereIsToCopy) {
  LookaheadTables known = tables();
  known.target.steps = {{1, 10}, {3, 10.2}, {4, 30}, {101, 40}};
  const auto drafted_beside = [&](const std::vector<int32_t>& tokens) {
    LookaheadPlanner planner(adaptive(), known);
    planner.add(1, {.drafter = kRandom});
    planner.add(2, {.drafter = DrafterKind::prompt_lookup, .exact = true});
    int chosen = 0;
    for (int i = 0; i < 5; ++i) {  // the first ones are to tell what a step takes without it
      std::vector<DecodeChoice> both = {
          {.id = 1, .tokens = tokens, .num_draft_tokens = kMaxDraftTokens},
          {.id = 2, .exact = true, .tokens = tokens, .num_draft_tokens = 4}};
      planner.choose(both, {});
      chosen = both[0].num_draft_tokens;
    }
    return chosen;
  };
  EXPECT_EQ(drafted_beside({1, 2, 3, 4, 5, 6, 7, 8}), 1);
  EXPECT_GT(drafted_beside({1, 2, 3, 4, 5, 1, 2, 3}), 1);
}

}  // namespace
}  // namespace outrider
