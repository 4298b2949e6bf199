// LookaheadPlanner with a single sequence, step by step.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>

#include "engine/lookahead_planner.h"
#include "lookahead_tables.h"

namespace outrider {
namespace {

class OneSequence : public ::testing::Test {
 protected:
  static constexpr int64_t kId = 3;

  int choose(LookaheadPlanner& planner, const std::vector<int32_t>& tokens, int most) {
    std::vector<DecodeChoice> one = {{.id = kId, .tokens = tokens, .num_draft_tokens = most}};
    planner.choose(one, {});
    return one[0].num_draft_tokens;
  }
  void observe(LookaheadPlanner& planner, int drafted, int accepted, double ms, double draft_ms,
               const PrefillRows& prefill = {}) {
    const LookaheadOutcome outcome{.id = kId,
                                   .position = 1,
                                   .drafts = {.num_drafted = drafted, .num_accepted = accepted},
                                   .num_emitted = accepted + 1};
    planner.observe(std::span(&outcome, 1), prefill, {ms, draft_ms});
  }
  // Steps of this length, with all or none of the drafts accepted.
  void run(LookaheadPlanner& planner, const std::vector<int32_t>& tokens, int steps,
           bool accepted) {
    for (int i = 0; i < steps; ++i) {
      const int k = choose(planner, tokens, kMaxDraftTokens);
      observe(planner, k, accepted ? k : 0, 10 + 0.2 * k + k, k);
    }
  }
};

// Feeding the drafter's cache costs the budget of those who left K to the server. Whoever named K
// has asked for it.
TEST_F(OneSequence, FeedingADraftersCacheIsChargedToWhomItIsFedFor) {
  const auto left_after = [&](const PrefillRows& prefill) {
    LookaheadPlanner planner(adaptive(), tables());
    planner.add(kId, {.drafter = kModel});
    choose(planner, {1}, kMaxDraftTokens);  // budgets begin
    observe(planner, 0, 0, 10, 0);
    observe(planner, 0, 0, 10, 0, prefill);
    return planner.reports()[static_cast<int>(kModel)].budget_ms;
  };
  const double untouched = left_after({.target = 64});
  EXPECT_GT(untouched, 0);
  EXPECT_EQ(left_after({.target = 64, .draft = 64}), untouched);
  EXPECT_LT(left_after({.target = 64, .draft = 64, .adaptive_draft = 8}), untouched);
}

// Drafts are refused while somebody else uses the machine: they cost what they always do.
TEST_F(OneSequence, WhatHoldsUpAStepIsNotChargedToItsDrafts) {
  const auto left_after = [&](double slower, const PrefillRows& prefill) {
    LookaheadPlanner planner(adaptive(), tables());
    planner.add(kId, {.drafter = kModel});
    run(planner, {1}, 200, true);
    for (int i = 0; i < 5; ++i) {
      const int k = choose(planner, {1}, kMaxDraftTokens);
      EXPECT_GT(k, 0);
      observe(planner, k, 0, slower * (10 + 1.2 * k), k, prefill);
    }
    return planner.reports()[static_cast<int>(kModel)].budget_ms;
  };
  const double alone = left_after(1, {});
  EXPECT_GT(alone, 0);
  EXPECT_NEAR(left_after(3, {}) / alone, 1, 0.25);  // prices follow, by and by
  EXPECT_NEAR(left_after(3, {.draft = 200}) / alone, 1, 0.05);
}

TEST_F(OneSequence, AnObjectiveBoundsTheStep) {
  LookaheadPlanner planner(adaptive(), tables());
  planner.add(kId, {.drafter = kModel, .max_step_ms = 13});
  for (int i = 0; i < 300; ++i) {
    const int k = choose(planner, {1}, kMaxDraftTokens);
    EXPECT_LE(k, 2);  // 10 + 2.4 ms
    observe(planner, k, k, 10 + 1.2 * k, k);
  }
  EXPECT_EQ(choose(planner, {1}, kMaxDraftTokens), 2);
}

// A text that grows, as a sequence's does, and of whose end much, little or nothing stood before.
class GrowingText {
 public:
  enum class End { none, likely, unlikely };

  const std::vector<int32_t>& grow(End end) {
    if (end == End::likely) {  // seven new tokens, and the first four of them again
      first_ = next_;
      for (int i = 0; i < 7; ++i) tokens_.push_back(next_++);
      for (int i = 0; i < 4; ++i) tokens_.push_back(first_ + i);
    } else {
      tokens_.push_back(next_++);
      if (end == End::unlikely) tokens_.push_back(first_ + 4);  // behind another token than before
    }
    return tokens_;
  }
  // Nine tokens behind a likely end.
  std::vector<int32_t> copied() const {
    std::vector<int32_t> tokens;
    for (const int i : {4, 5, 6, 0, 1, 2, 3, 4, 5}) tokens.push_back(first_ + i);
    return tokens;
  }

 private:
  std::vector<int32_t> tokens_;
  int32_t next_ = 1, first_ = 0;
};

TEST_F(OneSequence, ACopyIsJudgedByWhatMatched) {
  LookaheadTables known = tables();
  LookaheadPlanner planner(adaptive(), known);
  planner.add(kId, {.drafter = DrafterKind::prompt_lookup});
  GrowingText text;
  using End = GrowingText::End;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(choose(planner, text.grow(End::none), kMaxDraftTokens), 0);
    observe(planner, 0, 0, 10, 0);
    for (const End end : {End::likely, End::unlikely}) {
      const int k = choose(planner, text.grow(end), kMaxDraftTokens);
      observe(planner, k, end == End::likely ? k : 0, 10 + 0.2 * k, 0);
    }
  }
  observe(planner, 0, 0, 10, 0);  // no plain step is due
  const auto& likely = text.grow(End::likely);
  EXPECT_EQ(choose(planner, likely, kMaxDraftTokens), kMaxDraftTokens);
  EXPECT_EQ(planner.propose(kId, likely, 9), text.copied());
  observe(planner, 0, 0, 10, 0);
  EXPECT_EQ(choose(planner, text.grow(End::unlikely), kMaxDraftTokens), 0);
}

TEST_F(OneSequence, CopiesWhereThatIsLikelier) {
  LookaheadPlanner planner(adaptive(), tables(3));  // dear rows: what is unlikely never pays
  planner.add(kId, {.drafter = kModel, .may_copy = true});
  GrowingText text;
  using End = GrowingText::End;
  int tried = 0;
  for (int i = 0; i < 400; ++i) {
    for (const End end : {End::none, End::likely, End::unlikely}) {
      const int k = choose(planner, text.grow(end), kMaxDraftTokens);
      const bool copies = planner.drafter_now(kId) == DrafterKind::prompt_lookup;
      if (end == End::none) {
        EXPECT_FALSE(copies);
      }
      if (end == End::unlikely && i > 200) tried += copies && k > 0;
      const int accepted = copies ? (end == End::likely ? k : 0) : std::min(k, i % 2);
      observe(planner, k, accepted, 10 + (copies ? 3 : 4) * k, copies ? 0 : k);
    }
  }
  EXPECT_GE(tried, 1);  // texts change
  EXPECT_LE(tried, 10);
  const auto& likely = text.grow(End::likely);
  EXPECT_EQ(choose(planner, likely, kMaxDraftTokens), kMaxDraftTokens);
  EXPECT_EQ(planner.drafter_now(kId), DrafterKind::prompt_lookup);
  EXPECT_EQ(planner.propose(kId, likely, 9), text.copied());
  observe(planner, 7, 7, 10 + 3 * 7, 0);
  const auto reports = planner.reports();
  EXPECT_GT(reports[static_cast<int>(DrafterKind::prompt_lookup)].num_drafts, 300);
  EXPECT_GT(reports[static_cast<int>(kModel)].num_drafts, 100);
}

// As of an end of the answer before there are min_tokens.
TEST_F(OneSequence, DrawsWhereWhatItWouldCopyMayNotCome) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 1, 2};
  for (const float bias : {0.0f, -100.0f}) {
    LookaheadPlanner planner(adaptive(), tables());
    planner.add(kId, {.drafter = kModel,
                      .may_copy = true,
                      .rules = {.listed = {{3, bias, 0}}},
                      .num_prompt_tokens = 4});
    for (int i = 0; i < 3; ++i) {  // plain ones
      choose(planner, tokens, 4);
      observe(planner, 0, 0, 10, 0);
    }
    EXPECT_GT(choose(planner, tokens, 4), 0);
    EXPECT_EQ(planner.drafter_now(kId), bias < 0 ? kModel : DrafterKind::prompt_lookup);
    observe(planner, 0, 0, 10, 0);
  }
}

// Drafts that cost more than was thought leave copying in debt: those who may copy pay that off, or
// nobody would ever copy again.
TEST_F(OneSequence, CopyingEarnsWhileItMayNot) {
  LookaheadPlanner planner(adaptive(), tables(3));
  planner.add(kId, {.drafter = kModel, .may_copy = true});
  GrowingText text;
  const auto copies = [&] {
    choose(planner, text.grow(GrowingText::End::likely), kMaxDraftTokens);
    return planner.drafter_now(kId) == DrafterKind::prompt_lookup;
  };
  const auto left = [&] {
    return planner.reports()[static_cast<int>(DrafterKind::prompt_lookup)].budget_ms;
  };
  for (int i = 0; i < 5; ++i) {
    copies();
    observe(planner, 0, 0, 10, 0);
  }
  ASSERT_TRUE(copies());
  while (left() > 0) {  // steps that nobody would have allowed
    observe(planner, kMaxDraftTokens, 0, 10 + 3 * kMaxDraftTokens, 0);
  }
  int steps = 0;
  while (steps < 5000 && !copies()) {
    observe(planner, 0, 0, 10, 0);
    ++steps;
  }
  EXPECT_GT(steps, 0);
  EXPECT_LT(steps, 5000);
}

// Who may copy and draw, and gains by neither, loses no more than by one of them.
TEST_F(OneSequence, CopyingAndDrawingTogetherCostAHundredthAtMost) {
  constexpr double kRowMs = 3, kRoundMs = 4;
  constexpr double kStart = 20 * 4 * (kRowMs + kRoundMs) + 20 * 4 * kRowMs;
  const std::vector<int32_t> repeats(8, 1);
  const std::vector<std::function<int(int, int)>> lures = {
      [](int, int) { return 0; },
      [](int, int k) { return k <= 1 ? k : 0; },
      [](int, int k) { return k <= 2 ? k : 0; },
      [](int step, int k) { return step / 100 % 2 == 0 ? k : 0; },
      [](int step, int k) { return step / 1000 % 2 == 0 ? k : 0; },
  };
  for (const auto& accepted_of : lures) {
    LookaheadPlanner planner(adaptive(), tables(kRowMs, kRoundMs));
    planner.add(kId, {.drafter = kModel, .may_copy = true});
    double ms = 0, plain_ms = 0;
    std::array<int, kNumDrafterKinds> drafted{};
    for (int i = 0; i < 50'000; ++i) {
      const int k = choose(planner, repeats, kMaxDraftTokens);
      const DrafterKind drafter = planner.drafter_now(kId);
      drafted[static_cast<int>(drafter)] += k;
      const double draft_ms = drafter == kModel ? k * kRoundMs : 0;
      const double step_ms = 10 + k * kRowMs + draft_ms;
      const int accepted = accepted_of(i, k);
      observe(planner, k, accepted, step_ms, draft_ms);
      ms += step_ms;
      plain_ms += 10 * (accepted + 1);
      ASSERT_LE(ms, 1.01 * plain_ms + kStart) << i;
    }
    EXPECT_GT(drafted[static_cast<int>(kModel)], 0);
    EXPECT_GT(drafted[static_cast<int>(DrafterKind::prompt_lookup)], 0);
  }
}

// What a crowd lost by copying keeps nobody who is alone from it for as long.
TEST_F(OneSequence, CopiesSoonAfterACrowdHasLostByIt) {
  LookaheadPlanner planner(adaptive(), tables());
  constexpr int kCrowd = 64;
  const std::vector<int32_t> repeats(8, 1);
  for (int64_t id = 100; id < 100 + kCrowd; ++id) {
    planner.add(id, {.drafter = DrafterKind::prompt_lookup});
  }
  const auto left = [&] {
    return planner.reports()[static_cast<int>(DrafterKind::prompt_lookup)].budget_ms;
  };
  // Steps that nobody would have allowed: first all is accepted, then nothing.
  const auto take = [&](int drafted, int accepted) {
    std::vector<DecodeChoice> all;
    for (int64_t id = 100; id < 100 + kCrowd; ++id) {
      all.push_back({.id = id, .tokens = repeats, .num_draft_tokens = kMaxDraftTokens});
    }
    planner.choose(all, {});
    std::vector<LookaheadOutcome> outcomes;
    for (const DecodeChoice& choice : all) {
      outcomes.push_back({.id = choice.id,
                          .position = 8,
                          .drafts = {.num_drafted = drafted, .num_accepted = accepted},
                          .num_emitted = 1 + accepted});
    }
    planner.observe(outcomes, {}, {10 + 0.2 * ((1 + drafted) * kCrowd - 1), 0});
  };
  for (int i = 0; i < 20; ++i) take(1, 1);
  while (left() > 192) take(kMaxDraftTokens, 0);
  while (left() > 64) take(1, 0);  // 51 ms are a drafting step of all
  take(3, 0);
  ASSERT_GT(left(), 5);
  ASSERT_LT(left(), 30);
  for (int64_t id = 100; id < 100 + kCrowd; ++id) planner.remove(id);
  planner.add(kId, {.drafter = kModel, .may_copy = true});
  int steps = 0;
  for (; steps < 1000; ++steps) {
    const int k = choose(planner, repeats, kMaxDraftTokens);
    if (k > 0 && planner.drafter_now(kId) == DrafterKind::prompt_lookup) break;
    observe(planner, k, 0, 10 + 1.2 * k, k);
  }
  EXPECT_LT(steps, 150);  // the crowd's luck keeps it from it; it is tried every 64 steps
}

// Prices are still those of a slower machine: that a step takes less than they say is no gain by
// what was fed in it.
TEST_F(OneSequence, FeedingACacheGainsNothing) {
  LookaheadPlanner planner(adaptive(), tables());
  planner.add(kId, {.drafter = kModel});
  choose(planner, {1}, kMaxDraftTokens);  // budgets begin
  observe(planner, 8, 0, 10 + 1.2 * 8, 8);
  const auto left = [&] { return planner.reports()[static_cast<int>(kModel)].budget_ms; };
  const double before = left();
  ASSERT_GT(before, 0);
  observe(planner, 0, 0, 2, 0, {.draft = 64, .adaptive_draft = 64});
  EXPECT_LE(left(), before + 0.101);  // a hundredth of a plain step
}

// A drafter that is right a third of the time pays. One answer that it cannot help is drafted for
// less and less, and again as soon as it can; the next answer is not made to suffer for it.
TEST_F(OneSequence, BadLuckIsForgotten) {
  LookaheadPlanner planner(adaptive(), tables());
  planner.add(kId, {.drafter = kModel});
  int drafts = 0;
  // How many of so many steps draft.
  const auto take = [&](int steps, bool lucky) {
    int drafting = 0;
    for (int i = 0; i < steps; ++i) {
      const int k = choose(planner, {1}, kMaxDraftTokens);
      const int accepted = lucky && k > 0 && ++drafts % 3 == 0 ? 1 : 0;
      observe(planner, k, accepted, 10 + 1.2 * k, k);
      drafting += k > 0;
    }
    return drafting;
  };
  const auto begin_anew = [&] {  // the server does not
    planner.remove(kId);
    planner.observe({}, {}, {});
    planner.add(kId, {.drafter = kModel});
  };
  take(300, true);
  begin_anew();
  EXPECT_LT(take(100, false), 80);
  EXPECT_LT(take(100, false), 35);
  EXPECT_GT(take(300, true), 250);
  begin_anew();
  EXPECT_GT(take(100, true), 95);
}

TEST_F(OneSequence, TextsThatAreDrawnOtherwiseAreJudgedApart) {
  LookaheadPlanner planner(adaptive(), tables());
  const auto begin_anew = [&](Drawing drawing) {
    planner.remove(kId);
    planner.observe({}, {}, {});
    planner.add(kId, {.drafter = kModel, .drawing = drawing});
  };
  planner.add(kId, {.drafter = kModel});
  for (int i = 0; i < 10; ++i) {
    for (const Drawing drawing : {Drawing::greedy, Drawing::sampled}) {
      begin_anew(drawing);
      run(planner, {1}, 100, drawing == Drawing::greedy);
    }
  }
  begin_anew(Drawing::greedy);
  EXPECT_GT(choose(planner, {1}, kMaxDraftTokens), 8);
  observe(planner, 0, 0, 10, 0);
  begin_anew(Drawing::sampled);
  EXPECT_EQ(choose(planner, {1}, kMaxDraftTokens), 0);
}

TEST_F(OneSequence, CatchUpsOfAStepShareTheBudget) {
  LookaheadPlanner planner(adaptive(), tables());
  int fed = 0;
  for (int64_t id = 0; id < 100; ++id) {
    planner.add(id, {.drafter = kModel});
    fed += planner.may_catch_up({.id = id, .rows = 300, .tokens_left = 500});
  }
  EXPECT_GT(fed, 0);
  EXPECT_LT(fed, 50);
}

// Steps with nothing to copy say nothing of those that copy.
TEST_F(OneSequence, WhereNothingMatchesNoKindOfMatchFades) {
  const auto drafted_after = [&](int steps) {
    LookaheadPlanner planner(adaptive(), tables(3));
    GrowingText text;
    using End = GrowingText::End;
    const auto take = [&](End end) {
      const int k = choose(planner, text.grow(end), kMaxDraftTokens);
      observe(planner, k, 0, 10 + 3 * k, 0);
      return k;
    };
    const auto begin_anew = [&] {
      planner.remove(kId);
      planner.observe({}, {}, {});
      planner.add(kId, {.drafter = DrafterKind::prompt_lookup});
    };
    planner.add(kId, {.drafter = DrafterKind::prompt_lookup});
    take(End::likely);
    for (int i = 0; i < 2000; ++i) take(End::unlikely);
    begin_anew();
    for (int i = 0; i < steps; ++i) take(End::none);
    int drafted = 0;
    for (int i = 0; i < 40; ++i) drafted += take(End::unlikely);
    return drafted;
  };
  EXPECT_EQ(drafted_after(20'000), drafted_after(100));
}

TEST_F(OneSequence, AProposalIsOfItsOwnStep) {
  LookaheadPlanner planner(*parse_lookahead("fixed:3"), {});
  planner.add(kId, {.drafter = DrafterKind::prompt_lookup});
  const std::vector<int32_t> first = {1, 2, 3, 1}, second = {1, 2, 3, 1, 7, 2};
  EXPECT_EQ(planner.propose(kId, first, 2), (std::vector<int32_t>{2, 3}));
  observe(planner, 2, 0, 10, 0);
  EXPECT_EQ(planner.propose(kId, second, 2), (std::vector<int32_t>{3, 1}));
}

// Of a step it says what it would have said before: nothing that the step itself taught.
TEST_F(OneSequence, PredictsBeforeItMeasures) {
  LookaheadPlanner planner(adaptive(), tables());
  planner.add(kId, {.drafter = kModel});
  const LookaheadOutcome plain_step{.id = kId, .position = 1, .num_emitted = 1};
  DecodeShape plain;
  plain.add(tables().target, 1, kModel, Drawing::greedy, {});
  const double expected = StepPricing(tables()).step_ms(plain);
  TimedStep timed = planner.observe(std::span(&plain_step, 1), {}, {3 * expected, 0});
  EXPECT_DOUBLE_EQ(timed.expected_ms, expected);
  EXPECT_DOUBLE_EQ(timed.ms, 3 * expected);
  timed = planner.observe(std::span(&plain_step, 1), {}, {3 * expected, 0});
  EXPECT_GT(timed.expected_ms, expected);
}

// Who was granted a hopeless drafter's try, and got no rows for it, does not keep it from others.
TEST_F(OneSequence, ATryThatIsNotFedIsAnothers) {
  LookaheadPlanner planner(adaptive(), tables());
  planner.add(kId, {.drafter = kModel});
  run(planner, {1}, 500, false);
  planner.add(kId + 1, {.drafter = kModel});
  const auto granted = [&](int64_t id) {
    for (int i = 0; i < 300; ++i) {
      if (planner.may_catch_up({.id = id, .rows = 50, .tokens_left = 500})) return true;
      observe(planner, 0, 0, 10, 0);
    }
    return false;
  };
  EXPECT_TRUE(granted(kId));
  EXPECT_FALSE(planner.may_catch_up({.id = kId + 1, .rows = 50, .tokens_left = 500}));
  observe(planner, 0, 0, 10, 0);  // no rows were left
  EXPECT_TRUE(granted(kId + 1));
}

TEST_F(OneSequence, ADrafterInDisgraceIsNotFed) {
  LookaheadPlanner planner(adaptive(), tables());
  planner.add(kId, {.drafter = kModel});
  EXPECT_TRUE(planner.may_catch_up({.id = kId, .rows = 50, .tokens_left = 500}));
  // Neither where hardly anything is left to draft for, nor beyond what may be lost.
  EXPECT_FALSE(planner.may_catch_up({.id = kId, .rows = 50, .tokens_left = 1}));
  EXPECT_FALSE(planner.may_catch_up({.id = kId, .rows = 1'000'000, .tokens_left = 1'000'000}));
  run(planner, {1}, 500, false);
  int k = 0;
  while ((k = choose(planner, {1}, kMaxDraftTokens)) == 0) observe(planner, 0, 0, 10, 0);
  observe(planner, k, 0, 10 + 1.2 * k, k);  // a try has just failed
  int fed = 0;
  for (int i = 0; i < 300; ++i) {
    fed += planner.may_catch_up({.id = kId, .rows = 50, .tokens_left = 500});
    EXPECT_EQ(choose(planner, {1}, 0), 0);  // its cache is behind
    observe(planner, 0, 0, 10, 0);
  }
  EXPECT_GT(fed, 0);  // for a try
  EXPECT_LT(fed, 280);
}

TEST_F(OneSequence, AnAnswerMayEndInTheStep) {
  LookaheadPlanner planner(adaptive(), tables());
  planner.add(kId, {.drafter = kRandom});
  const int k = choose(planner, {1}, 4);
  planner.remove(kId);
  observe(planner, k, 0, 10, 0);
  planner.add(kId + 1, {.drafter = kRandom});
  const std::vector<int32_t> tokens = {1};
  std::vector<DecodeChoice> one = {{.id = kId + 1, .tokens = tokens, .num_draft_tokens = 4}};
  planner.choose(one, {});
}

TEST_F(OneSequence, ASpikeIsNotTheDraftersFault) {
  LookaheadPlanner planner(adaptive(), tables());
  planner.add(kId, {.drafter = kRandom});
  run(planner, {1}, 200, true);
  const int k = choose(planner, {1}, 8);
  observe(planner, k, k, 2000, k);
  int drafted = 0;
  for (int i = 0; i < 8; ++i) {
    const int again = choose(planner, {1}, 8);
    observe(planner, again, again, 10 + 1.2 * again, again);
    drafted += again;
  }
  EXPECT_GT(drafted, 0);
}

}  // namespace
}  // namespace outrider
