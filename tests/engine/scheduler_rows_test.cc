// The scheduler: how the rows of a step are shared between decoding, prompts and their logits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/scheduler.h"
#include "tests/engine/scheduler_harness.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

TEST(Scheduler, DecodeRowsGoFirstAndPrefillStaysBesideThem) {
  SchedulerLimits limits = roomy();
  limits.prefill_chunk = 100;
  limits.prefill_beside = 70;
  Scheduler scheduler(limits);
  scheduler.add(spec(1, 5, 2, DrafterKind::random));
  step(scheduler);
  scheduler.add(spec(2, 500));
  StepPlan plan = step(scheduler);
  EXPECT_EQ(drafts_of(scheduler, plan, 1), 2);
  EXPECT_EQ(work_of(scheduler, plan, 2)->prefill_end, 70);
  scheduler.add(spec(3, 5, 7, DrafterKind::random));
  plan = step(scheduler);
  EXPECT_EQ(work_of(scheduler, plan, 2)->prefill_end, 140);
  EXPECT_EQ(work_of(scheduler, plan, 3), nullptr);  // 2 goes before it, with all the rows
  scheduler.remove(1);
  plan = step(scheduler);
  EXPECT_EQ(work_of(scheduler, plan, 2)->prefill_end, 240);  // nobody decodes
}

TEST(Scheduler, PrefillAddsNoMoreThanStreamsCanBear) {
  SchedulerLimits limits = roomy();
  limits.costs = {.steps = {{1, 10}, {2, 11}, {101, 110}}, .ms_per_row_position = 0.01};
  limits.prefill_slowdown = 1.8;
  Scheduler scheduler(limits);
  SequenceSpec stream = spec(1, 1);
  stream.max_length = 1000;
  scheduler.add(stream);
  step(scheduler);
  scheduler.add(spec(2, 500));
  scheduler.add(spec(3, 500));
  StepPlan plan;
  int64_t end = 0, rows = 0;
  const auto next = [&] {
    plan = step(scheduler);
    rows = work_of(scheduler, plan, 2)->prefill_end - end;
    end += rows;
  };
  next();
  EXPECT_EQ(rows, 8);  // of 1 ms each, beside the 10 of the stream
  EXPECT_EQ(work_of(scheduler, plan, 3), nullptr);
  while (end < 100) next();
  next();
  EXPECT_EQ(rows, 4);  // of 2 ms
  while (end < 360) next();
  EXPECT_LE(rows, 2);  // of 4.6 ms
  scheduler.remove(1);
  next();
  EXPECT_EQ(rows, 128);  // nobody decodes
}

TEST(Scheduler, OneRowOfAPromptAlwaysGoes) {
  SchedulerLimits limits = roomy();
  limits.costs = {.steps = {{1, 10}, {101, 110}}};
  limits.prefill_slowdown = 1;
  Scheduler scheduler(limits);
  scheduler.add(spec(1, 1));
  step(scheduler);
  scheduler.add(spec(2, 500));
  scheduler.add(spec(3, 500));
  for (int64_t end = 1; end < 10; ++end) {
    const StepPlan plan = step(scheduler);
    EXPECT_EQ(work_of(scheduler, plan, 2)->prefill_end, end);
    EXPECT_EQ(work_of(scheduler, plan, 3), nullptr);
  }
}

// An objective of 14 ms leaves 4 of the 8: it is kept as long as one row fits in, up to position
// 390.
TEST(Scheduler, APromptThatIsFarBehindKeepsAnObjectiveThatCanBeKept) {
  SchedulerLimits limits = roomy();
  limits.costs = {.steps = {{1, 10}, {101, 20}}, .ms_per_position = 0.01};
  limits.prefill_slowdown = 1.8;
  Scheduler scheduler(limits);
  SequenceSpec stream = up_to(1000, spec(1, 1));
  stream.max_step_ms = 14;
  scheduler.add(stream);
  step(scheduler);
  scheduler.add(spec(2, 500));
  int64_t decoded = 1;  // the stream's own context takes time, too
  for (int64_t end = 0; end < 350; ++decoded) {
    const int64_t next = work_of(scheduler, step(scheduler), 2)->prefill_end;
    const double added = limits.costs.added_ms(1, next - end, end);
    EXPECT_LE(added, 4 - limits.costs.context_ms(1, decoded) + 1e-9) << end;
    end = next;
  }
}

// From position 800 on the context alone takes more than the 8 ms that the stream bears.
TEST(Scheduler, APromptThatIsFarBehindGetsOn) {
  SchedulerLimits limits = roomy();
  limits.costs = {.steps = {{1, 10}, {101, 20}}, .ms_per_position = 0.01};
  limits.prefill_slowdown = 1.8;
  Scheduler scheduler(limits);
  scheduler.add(up_to(1000, spec(1, 1)));
  step(scheduler);
  scheduler.add(spec(2, 2000));
  for (int64_t end = 0; end < 1900;) {
    const int64_t next = work_of(scheduler, step(scheduler), 2)->prefill_end;
    if (end > 600) {
      EXPECT_NEAR(static_cast<double>(next - end), 21, 2) << end;  // a quarter, at 0.1 ms each
    } else {
      EXPECT_GE(next - end, 20);
    }
    end = next;
  }
}

TEST(Scheduler, PrefillMayAlwaysAddALittle) {
  SchedulerLimits limits = roomy();
  limits.costs = {.steps = {{1, 0.1}, {101, 10.1}}};
  limits.prefill_slowdown = 1.5;
  limits.prefill_ms = 1;
  Scheduler scheduler(limits);
  scheduler.add(spec(1, 1));
  step(scheduler);
  scheduler.add(spec(2, 500));
  EXPECT_EQ(work_of(scheduler, step(scheduler), 2)->prefill_end, 10);
}

// What the step takes beyond the stream's own 10 ms: within its objective where that can be met.
TEST(Scheduler, AnObjectiveBoundsPrefill) {
  SchedulerLimits limits = roomy();
  limits.costs = {.steps = {{1, 10}, {101, 110}}};
  limits.prefill_slowdown = 1.8;
  limits.prefill_ms = 1;
  const auto rows_beside = [&](std::vector<double> objectives) {
    Scheduler scheduler(limits);
    const auto streams = static_cast<int64_t>(objectives.size());
    for (int64_t id = 1; id <= streams; ++id) {
      SequenceSpec stream = spec(id, 1);
      stream.max_step_ms = objectives[id - 1];
      scheduler.add(stream);
    }
    step(scheduler);
    SequenceSpec prompt = spec(streams + 1, 500);
    prompt.max_step_ms = 1;  // it does not decode yet
    scheduler.add(prompt);
    return work_of(scheduler, step(scheduler), streams + 1)->prefill_end;
  };
  EXPECT_EQ(rows_beside({0}), 8);
  EXPECT_EQ(rows_beside({100}), 8);
  EXPECT_EQ(rows_beside({15}), 5);
  EXPECT_EQ(rows_beside({10}), 2);     // a quarter always goes
  EXPECT_EQ(rows_beside({9}), 8);      // it cannot be met
  EXPECT_EQ(rows_beside({0, 15}), 4);  // two streams take 11 ms
  EXPECT_EQ(rows_beside({14, 100}), 3);
  EXPECT_EQ(rows_beside({9, 14}), 3);
}

// Streams with long contexts take longer themselves, and bear more.
TEST(Scheduler, LongStreamsBearMorePrefill) {
  SchedulerLimits limits = roomy();
  limits.costs = {
      .steps = {{1, 10}, {101, 110}}, .ms_per_position = 0.01, .ms_per_row_position = 0.01};
  limits.prefill_slowdown = 1.5;
  limits.prefill_chunk = 120;
  std::vector<int64_t> rows;
  for (const int64_t length : {1, 101}) {
    Scheduler scheduler(limits);
    scheduler.add(spec(1, length));
    step(scheduler);
    scheduler.add(spec(2, 100));
    rows.push_back(work_of(scheduler, step(scheduler), 2)->prefill_end);
  }
  EXPECT_THAT(rows, ElementsAre(5, 6));
}

TEST(Scheduler, SharesAShortRowBudgetInTurn) {
  SchedulerLimits limits = roomy();
  limits.max_rows = 20;
  Scheduler scheduler(limits);
  for (int64_t id = 1; id <= 4; ++id) {
    scheduler.add(exactly(spec(id, 1, 9, DrafterKind::random)));
  }
  while (scheduler.stats().num_running < 4) step(scheduler);
  std::vector<int64_t> served(5, 0);
  for (int i = 0; i < 12; ++i) {
    const StepPlan plan = scheduler.plan();
    EXPECT_EQ(plan.work.size(), 2u);
    for (const int64_t id : commit_all(scheduler, plan)) ++served[id];
  }
  EXPECT_THAT(served, ElementsAre(0, 6, 6, 6, 6));
}

TEST(Scheduler, CutsDraftsSoThatAllHaveARow) {
  SchedulerLimits limits = roomy();
  limits.max_rows = 20;
  Scheduler scheduler(limits);
  for (int64_t id = 1; id <= 4; ++id) scheduler.add(spec(id, 1, 8, DrafterKind::random));
  scheduler.add(exactly(spec(5, 1, 3, DrafterKind::random)));
  for (int i = 0; i < 5; ++i) step(scheduler);
  const StepPlan plan = scheduler.plan();
  ASSERT_EQ(plan.work.size(), 5u);
  EXPECT_EQ(drafts_of(scheduler, plan, 1), 8);
  EXPECT_EQ(drafts_of(scheduler, plan, 2), 4);
  EXPECT_EQ(drafts_of(scheduler, plan, 3), 0);
  EXPECT_EQ(drafts_of(scheduler, plan, 4), 0);
  EXPECT_EQ(drafts_of(scheduler, plan, 5), 3);
}

TEST(Scheduler, DecodesNeverShutAPromptOut) {
  SchedulerLimits limits = roomy();
  limits.max_rows = 20;
  Scheduler scheduler(limits);
  scheduler.add(spec(1, 1, 15, DrafterKind::random));
  scheduler.add(exactly(spec(2, 1, 3, DrafterKind::random)));
  step(scheduler);
  scheduler.add(spec(3, 10));
  // A quarter of the rows, or as many as there are.
  for (const auto& [drafts, end] : {std::pair{10, 5}, {11, 9}}) {
    const StepPlan plan = step(scheduler);
    EXPECT_EQ(drafts_of(scheduler, plan, 1), drafts);
    EXPECT_EQ(drafts_of(scheduler, plan, 2), 3);
    EXPECT_EQ(work_of(scheduler, plan, 3)->prefill_end, end);
  }
  EXPECT_EQ(drafts_of(scheduler, step(scheduler), 3), 0);
}

// With the least that a step may have.
TEST(Scheduler, APromptShutsNoExactDraftsOut) {
  SchedulerLimits limits = roomy();
  limits.max_rows = kMaxDraftTokens + 2;
  Scheduler scheduler(limits);
  scheduler.add(exactly(spec(1, 1, kMaxDraftTokens, DrafterKind::random)));
  step(scheduler);
  scheduler.add(spec(2, 100));
  StepPlan plan = step(scheduler);
  EXPECT_EQ(drafts_of(scheduler, plan, 1), kMaxDraftTokens);
  EXPECT_EQ(work_of(scheduler, plan, 2)->prefill_end, 1);

  limits.max_rows = 40;
  Scheduler two(limits);
  for (int64_t id = 1; id <= 2; ++id) {
    two.add(exactly(spec(id, 1, kMaxDraftTokens, DrafterKind::random)));
  }
  step(two);
  two.add(spec(3, 100));
  plan = step(two);
  EXPECT_EQ(drafts_of(two, plan, 1), kMaxDraftTokens);
  EXPECT_EQ(drafts_of(two, plan, 2), kMaxDraftTokens);
  EXPECT_EQ(work_of(two, plan, 3)->prefill_end, 8);
}

// Drafts as much as there are rows for, by sequences in turn.
class TakesAllRows final : public LookaheadChooser {
 public:
  double choose(std::span<DecodeChoice> step, const StepRoom& room) override {
    int64_t left = room.drafted_rows;
    chosen.clear();
    for (DecodeChoice& choice : step) {
      choice.num_draft_tokens =
          static_cast<int32_t>(std::min<int64_t>(choice.num_draft_tokens, left));
      left -= choice.num_draft_tokens;
      chosen.push_back(choice.num_draft_tokens);
    }
    return 0;
  }
  bool may_catch_up(const CatchUp&) override { return true; }
  double slowness(int64_t) const override { return 1; }
  double owed_to_prompts_ms() const override { return 0; }

  std::vector<int32_t> chosen;
};

// A prompt has the rows that were kept for it, and whoever is chosen for drafts what was chosen.
TEST(Scheduler, WhatThereAreRowsForIsDrafted) {
  SchedulerLimits limits = roomy();
  limits.max_rows = 48;
  for (const bool with_prompt : {false, true}) {
    Scheduler scheduler(limits);
    for (int64_t id = 1; id <= 6; ++id) scheduler.add(spec(id, 1, 10, DrafterKind::random));
    TakesAllRows chooser;
    while (chooser.chosen.size() < 6) commit_all(scheduler, scheduler.plan(&chooser));
    if (with_prompt) scheduler.add(spec(7, 100));
    const StepPlan plan = scheduler.plan(&chooser);
    int64_t drafted = 0;
    for (int64_t id = 1; id <= 6; ++id) {
      EXPECT_EQ(drafts_of(scheduler, plan, id), chooser.chosen[id - 1]) << id;
      drafted += chooser.chosen[id - 1];
    }
    const int64_t of_prompt = with_prompt ? work_of(scheduler, plan, 7)->prefill_end : 0;
    EXPECT_EQ(of_prompt > 0, with_prompt);
    EXPECT_EQ(6 + drafted + of_prompt, limits.max_rows);
  }
}

TEST(Scheduler, PrefillsTheDraftInTheSameBudget) {
  SchedulerLimits limits = roomy();
  limits.prefill_chunk = 50;
  for (const bool exact : {false, true}) {
    Scheduler scheduler(limits);
    SequenceSpec sequence = spec(1, 61, 4);
    sequence.lookahead_is_exact = exact;
    scheduler.add(sequence);
    StepPlan plan = step(scheduler);
    EXPECT_EQ(plan.work[0].prefill_end, 50);
    EXPECT_EQ(plan.work[0].draft_prefill_end, 0);
    plan = step(scheduler);  // 10 rows are left to the target, 40 to the drafter
    EXPECT_EQ(plan.work[0].prefill_end, 60);
    EXPECT_EQ(plan.work[0].draft_prefill_end, 40);
    EXPECT_EQ(drafts_of(scheduler, plan, 1), exact ? -1 : 0);
    plan = step(scheduler);
    EXPECT_EQ(plan.work[0].draft_prefill_end, exact ? 60 : 61);
    EXPECT_EQ(drafts_of(scheduler, plan, 1), exact ? 4 : 0);
    plan = step(scheduler);
    EXPECT_EQ(drafts_of(scheduler, plan, 1), 4);
  }
}

TEST(Scheduler, GivesPromptLogitsOnceAndFewRowsAStep) {
  Scheduler scheduler(roomy());
  for (const int64_t id : {1, 2}) {
    SequenceSpec sequence = spec(id, 80);
    sequence.prompt_logits = true;
    scheduler.add(sequence);
  }
  scheduler.add(spec(3, 20));
  StepPlan plan = step(scheduler);
  EXPECT_EQ(work_of(scheduler, plan, 1)->prefill_end, kMaxPromptLogitRows);
  EXPECT_TRUE(work_of(scheduler, plan, 1)->prompt_logits);
  EXPECT_EQ(work_of(scheduler, plan, 2), nullptr);
  EXPECT_EQ(work_of(scheduler, plan, 3)->prefill_end, 19);
  EXPECT_FALSE(work_of(scheduler, plan, 3)->prompt_logits);
  plan = step(scheduler);
  EXPECT_EQ(work_of(scheduler, plan, 1)->prefill_end, 79);
  EXPECT_EQ(work_of(scheduler, plan, 2)->prefill_end, kMaxPromptLogitRows - 15);
  scheduler.remove(1);
  SequenceSpec again = spec(1, 80);  // the same prompt: it shares nothing
  again.id = 9;
  again.prompt_logits = true;
  scheduler.add(again);
  again.id = 10;
  again.request = 10;
  scheduler.add(again);
  step(scheduler);
  EXPECT_EQ(scheduler.num_cached_at_admission(10), 0);
  EXPECT_FALSE(work_of(scheduler, step(scheduler), 3)->prompt_logits);
}

}  // namespace
}  // namespace outrider
