// The scheduler: how many tokens are drafted, and whose draft pages go first.
#include <gtest/gtest.h>

#include <tuple>

#include "engine/scheduler.h"
#include "tests/engine/scheduler_harness.h"

namespace outrider {
namespace {

TEST(Scheduler, DraftsNoMoreThanCanBeUsed) {
  const auto drafts = [](int64_t max_length, int64_t max_draft_positions, DrafterKind drafter) {
    Scheduler scheduler(roomy());
    SequenceSpec sequence = spec(1, 20, 8, drafter);
    sequence.max_length = max_length;
    sequence.max_draft_positions = max_draft_positions;
    scheduler.add(sequence);
    return drafts_of(scheduler, scheduler.plan(), 1);
  };
  for (const auto kind : {DrafterKind::random, DrafterKind::model, DrafterKind::prompt_lookup}) {
    EXPECT_EQ(drafts(100, 1000, kind), 8);
    EXPECT_EQ(drafts(21, 1000, kind), 0);  // one token left
    EXPECT_EQ(drafts(24, 1000, kind), 3);
    EXPECT_EQ(drafts(100, 22, kind), 2);
    EXPECT_EQ(drafts(100, 10, kind), 0);
  }
  EXPECT_EQ(drafts(100, 1000, DrafterKind::none), 0);
}

TEST(Scheduler, CutsDraftsRatherThanPreempt) {
  SchedulerLimits limits = roomy();
  limits.num_pages = 4;
  for (const bool exact : {false, true}) {
    Scheduler scheduler(limits);
    SequenceSpec first = up_to(48, spec(1, 8, 15, DrafterKind::random));
    first.lookahead_is_exact = exact;
    scheduler.add(first);
    scheduler.add(up_to(48, spec(2, 14)));
    EXPECT_EQ(step(scheduler).admitted.size(), 2u);
    for (int i = 0; i < 9; ++i) EXPECT_EQ(drafts_of(scheduler, step(scheduler), 1), 15);
    // 2 pages each; with 15 drafts, position 33 would be needed.
    EXPECT_EQ(drafts_of(scheduler, step(scheduler), 1), exact ? 15 : 14);
    EXPECT_EQ(scheduler.stats().num_preemptions, exact ? 1 : 0);
  }
}

TEST(Scheduler, LeavesAFewPositionsToTheDrafterItself) {
  Scheduler scheduler(roomy());
  scheduler.add(spec(1, kMaxDraftTokens + 1, 4));
  scheduler.add(spec(2, kMaxDraftTokens + 2, 4));
  StepPlan plan = step(scheduler, 4);
  EXPECT_EQ(work_of(scheduler, plan, 1)->draft_prefill_end, 0);
  EXPECT_EQ(drafts_of(scheduler, plan, 1), 4);
  EXPECT_EQ(work_of(scheduler, plan, 2)->draft_prefill_end, kMaxDraftTokens + 1);
  EXPECT_EQ(drafts_of(scheduler, plan, 2), 4);
  plan = step(scheduler, 4);  // all were accepted: the drafter has not seen its last
  EXPECT_EQ(work_of(scheduler, plan, 1)->draft_prefill_end, kMaxDraftTokens + 1 + 3);
  plan = step(scheduler, 0);
  plan = step(scheduler, 0);
  EXPECT_EQ(work_of(scheduler, plan, 1)->draft_prefill_end, kMaxDraftTokens + 1 + 10);
}

// Whoever has to draft K waits for its drafter's cache; the drafts of others leave that some rows,
// when the target has read the prompt, too.
TEST(Scheduler, DraftsOfOthersLeaveRowsForADraftCacheThatIsWaitedFor) {
  SchedulerLimits limits = roomy();
  limits.max_rows = 20;
  Scheduler scheduler(limits);
  for (int64_t id = 1; id <= 4; ++id) scheduler.add(spec(id, 1, 8, DrafterKind::random));
  step(scheduler);
  scheduler.add(exactly(spec(5, 61, 4)));
  int steps = 1;
  while (drafts_of(scheduler, step(scheduler), 5) < 0) ASSERT_LT(++steps, 100);
  EXPECT_LT(steps, 30);  // 105 positions, a quarter of a step's rows in each
}

// Drafts as many as it may, and keeps what it was told.
struct RecordingChooser final : LookaheadChooser {
  double choose(std::span<DecodeChoice> step, const StepRoom& room) override {
    if (!step.empty()) told.push_back(room.prompts.waiting > 0);
    latest = room.prompts;
    return prompt_ms;
  }
  bool may_catch_up(const CatchUp&) override { return true; }
  double slowness(int64_t) const override { return slow; }
  double owed_to_prompts_ms() const override { return owed_ms; }

  double slow = 1, prompt_ms = 0, owed_ms = 0;
  PromptRows latest;
  std::vector<bool> told;  // of each step in which somebody decodes
};

// An objective is of the machine's time as it is now, not as it was when the costs were measured.
TEST(Scheduler, AnObjectiveBoundsPrefillOnASlowerMachine) {
  SchedulerLimits limits = roomy();
  limits.costs = {.steps = {{1, 10}, {101, 110}}, .ms_per_logit_row = 1};
  limits.prefill_slowdown = 1.8;
  const auto rows_beside = [&](double slow, double objective_ms, double owed_ms = 0) {
    RecordingChooser chooser;
    chooser.slow = slow;
    chooser.owed_ms = owed_ms;
    Scheduler scheduler(limits);
    SequenceSpec stream = spec(1, 1);
    stream.lookahead = 0;
    stream.max_step_ms = objective_ms;
    scheduler.add(stream);
    commit_all(scheduler, scheduler.plan(&chooser));
    scheduler.add(spec(2, 500));
    return work_of(scheduler, scheduler.plan(&chooser), 2)->prefill_end;
  };
  EXPECT_EQ(rows_beside(1, 100), 8);
  EXPECT_EQ(rows_beside(1, 15), 5);
  EXPECT_EQ(rows_beside(1.25, 15), 2);
  EXPECT_EQ(rows_beside(1.25, 100), 8);
  EXPECT_EQ(rows_beside(0.75, 12), 6);
  EXPECT_EQ(rows_beside(2, 15), 8);  // it cannot be met
  EXPECT_EQ(rows_beside(1, 100, 5), 13);
  EXPECT_EQ(rows_beside(1, 15, 5), 5);
  EXPECT_EQ(rows_beside(1, 10.5, 5), 2);  // a quarter of what they might have had
}

// And get back what they waited for those of the step before.
TEST(Scheduler, PromptsMayTakeWhatDraftsBuyThem) {
  SchedulerLimits limits = roomy();
  limits.costs = {.steps = {{1, 10}, {101, 110}}};
  limits.prefill_slowdown = 1.8;
  Scheduler scheduler(limits);
  RecordingChooser chooser;
  scheduler.add(spec(1, 1));
  commit_all(scheduler, scheduler.plan(&chooser));
  scheduler.add(spec(2, 500));
  int64_t fed = 0;
  for (const auto& [bought_ms, owed_ms, rows] : {std::tuple{0.0, 0.0, 8},
                                                 {20.0, 0.0, 20},
                                                 {3.0, 0.0, 8},
                                                 {0.0, 5.0, 13},
                                                 {20.0, 5.0, 25},
                                                 {3.0, 5.0, 13},
                                                 {1000.0, 0.0, 128}}) {
    chooser.prompt_ms = bought_ms;
    chooser.owed_ms = owed_ms;
    const StepPlan plan = scheduler.plan(&chooser);
    EXPECT_EQ(chooser.latest.waiting, 499 - fed);
    EXPECT_EQ(chooser.latest.plain, 8);
    EXPECT_EQ(chooser.latest.most, 128);
    EXPECT_EQ(work_of(scheduler, plan, 2)->prefill_end, fed + rows) << bought_ms << ", " << owed_ms;
    fed += rows;
    commit_all(scheduler, plan);
  }
}

void decode_until(Scheduler& scheduler, RecordingChooser& chooser, size_t steps) {
  while (chooser.told.size() < steps) commit_all(scheduler, scheduler.plan(&chooser));
}

TEST(Scheduler, TellsWhetherPromptsAreFedBesideDecodes) {
  SchedulerLimits limits = roomy();
  limits.num_pages = 20;
  limits.prefill_beside = kP;
  Scheduler scheduler(limits);
  RecordingChooser chooser;
  scheduler.add(spec(1, 1));
  decode_until(scheduler, chooser, 2);
  scheduler.add(spec(2, 3 * kP));
  decode_until(scheduler, chooser, 6);  // three steps of a page, then both decode
  EXPECT_EQ(chooser.told, (std::vector{false, false, true, true, true, false}));
}

TEST(Scheduler, APromptWithoutRoomIsNotFed) {
  SchedulerLimits limits = roomy();
  limits.num_pages = 8;
  Scheduler scheduler(limits);
  RecordingChooser chooser;
  scheduler.add(up_to(64, spec(1, 8)));
  decode_until(scheduler, chooser, 1);
  scheduler.add(up_to(6 * kP + 10, spec(2, 6 * kP + 1)));
  decode_until(scheduler, chooser, 4);
  EXPECT_EQ(chooser.told, (std::vector{false, false, false, false}));
  scheduler.remove(1);
  commit_all(scheduler, scheduler.plan(&chooser));
  EXPECT_EQ(scheduler.stats().num_running, 1);
}

// All of its prompt but the last token's row is in the prefix cache.
TEST(Scheduler, APromptThatIsCachedIsNotFed) {
  Scheduler scheduler(roomy());
  RecordingChooser chooser;
  scheduler.add(spec(1, 1));
  decode_until(scheduler, chooser, 1);
  for (const int64_t id : {2, 3}) {
    SequenceSpec same = spec(id, 2 * kP + 1);
    std::iota(same.prompt.begin(), same.prompt.end(), 0);
    scheduler.add(same);
    decode_until(scheduler, chooser, chooser.told.size() + 2);
  }
  EXPECT_EQ(scheduler.num_cached_at_admission(3), 2 * kP);
  EXPECT_EQ(chooser.told, (std::vector{false, true, false, false, false}));
}

// Somebody who named a K waits for a drafter's cache, which is no prompt.
TEST(Scheduler, ADraftCacheThatIsFedIsNoPrompt) {
  SchedulerLimits limits = roomy();
  limits.prefill_beside = kP;
  Scheduler scheduler(limits);
  RecordingChooser chooser;
  scheduler.add(spec(1, 1));
  decode_until(scheduler, chooser, 1);
  scheduler.add(exactly(spec(2, 3 * kP, 4)));
  std::vector<bool> waits;
  while (chooser.told.size() < 6) {
    const StepPlan plan = scheduler.plan(&chooser);
    waits.push_back(drafts_of(scheduler, plan, 2) < 0);
    commit_all(scheduler, plan);
  }
  EXPECT_EQ(chooser.told, (std::vector{false, true, true, true, false, false}));
  EXPECT_EQ(waits, (std::vector{true, true, true, true, false}));
}

TEST(Scheduler, WhatCanDoWithoutDraftsWaitsForNoPageOfTheDrafter) {
  SchedulerLimits limits = roomy();
  limits.num_draft_pages = 7;
  Scheduler scheduler(limits);
  scheduler.add(exactly(up_to(80, spec(1, 2 * kP - 4, 4))));
  for (int64_t id = 2; id <= 4; ++id) scheduler.add(spec(id, 3 * kP, 4));  // 4 pages each
  for (int i = 0; i < 4; ++i) step(scheduler);
  EXPECT_EQ(scheduler.stats().num_running, 4);
  scheduler.add(exactly(up_to(80, spec(5, 3 * kP, 4))));
  step(scheduler);
  EXPECT_EQ(scheduler.stats().num_waiting, 1);
}

// Whether the plan takes the draft's pages away from a sequence.
bool reclaims(const Scheduler& scheduler, const StepPlan& plan, int64_t id) {
  return std::any_of(plan.draft_pages.begin(), plan.draft_pages.end(), [&](const PageGrant& g) {
    return scheduler.sequence_at(g.slot) == id && g.first == 0 && g.pages.empty();
  });
}

TEST(Scheduler, ReclaimsDraftPagesOfTheLastThatCanDoWithout) {
  SchedulerLimits limits = roomy();
  limits.num_draft_pages = 7;
  Scheduler scheduler(limits);
  scheduler.add(exactly(up_to(80, spec(1, 2 * kP - 4, 4))));
  scheduler.add(spec(2, kP + 1, 4));
  scheduler.add(exactly(up_to(80, spec(3, kP - 8, 4))));
  step(scheduler);  // 2, 2 and 1 pages
  ASSERT_EQ(scheduler.stats().num_running, 3);
  bool reclaimed = false;
  for (int i = 0; scheduler.stats().num_preemptions == 0; ++i) {
    ASSERT_LT(i, 40);
    const StepPlan plan = scheduler.plan();
    reclaimed |= reclaims(scheduler, plan, 2);
    EXPECT_EQ(drafts_of(scheduler, plan, 1), 4);
    EXPECT_GE(drafts_of(scheduler, plan, 2), 0);  // it never waits
    // With only exact ones left to take from, the last of all goes.
    EXPECT_EQ(drafts_of(scheduler, plan, 3), scheduler.stats().num_preemptions == 0 ? 4 : -1);
    commit_all(scheduler, plan, 1);
  }
  EXPECT_TRUE(reclaimed);
  EXPECT_EQ(scheduler.stats().num_preemptions, 1);
}

// Whose drafts are taken away for another's waits no longer than without drafts.
TEST(Scheduler, DraftsThatAreTakenAwayBuyPromptsNothing) {
  SchedulerLimits limits = roomy();
  limits.costs = {.steps = {{1, 10}, {101, 110}}};
  limits.prefill_slowdown = 1.8;
  limits.num_draft_pages = 6;
  Scheduler scheduler(limits);
  RecordingChooser chooser;
  chooser.prompt_ms = 40;
  scheduler.add(spec(1, 2 * kP - 4, 4));
  scheduler.add(spec(2, kP + 1, 4));
  while (scheduler.stats().num_running < 2 || chooser.told.size() < 2) {
    commit_all(scheduler, scheduler.plan(&chooser), 1);
  }
  scheduler.add(spec(3, 2000, 0));
  int64_t fed = 0;
  for (int i = 0;; ++i) {
    ASSERT_LT(i, 20);
    const StepPlan plan = scheduler.plan(&chooser);
    const int64_t rows = work_of(scheduler, plan, 3)->prefill_end - fed;
    fed += rows;
    if (reclaims(scheduler, plan, 2)) {
      EXPECT_LT(rows, 20);
      break;
    }
    EXPECT_GT(rows, 35);
    commit_all(scheduler, plan, 1);
  }
}

TEST(Scheduler, CatchesUpWhenDraftPagesAreFreeAgain) {
  SchedulerLimits limits = roomy();
  limits.num_draft_pages = 6;
  Scheduler scheduler(limits);
  scheduler.add(exactly(up_to(80, spec(1, 2 * kP - 8, 4))));
  scheduler.add(spec(2, 2 * kP - 1, 4));
  step(scheduler);  // 2 and 3
  StepPlan plan;
  for (int i = 0; !reclaims(scheduler, plan, 2); ++i) {
    ASSERT_LT(i, 40);
    plan = step(scheduler, 1);
  }
  EXPECT_EQ(drafts_of(scheduler, plan, 1), 4);
  EXPECT_EQ(drafts_of(scheduler, plan, 2), 0);
  EXPECT_EQ(work_of(scheduler, plan, 2)->draft_prefill_end, 0);
  scheduler.remove(1);
  plan = step(scheduler);
  ASSERT_EQ(plan.draft_pages.size(), 1u);
  EXPECT_EQ(plan.draft_pages[0].first, 0);
  const auto length = static_cast<int64_t>(scheduler.tokens(2).size());
  EXPECT_EQ(plan.work[0].draft_prefill_end, length - 2);  // one token came with this step
  EXPECT_EQ(plan.work[0].num_draft_tokens, 0);
  EXPECT_EQ(drafts_of(scheduler, step(scheduler), 2), 4);
}

}  // namespace
}  // namespace outrider
