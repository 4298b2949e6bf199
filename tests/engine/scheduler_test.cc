// The scheduler: who is admitted, who is preempted, and that everybody gets on.
#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/scheduler_harness.h"

namespace outrider {
namespace {

using ::testing::IsEmpty;

TEST(Scheduler, PrefillsInChunksAndDecodesBehindTheLast) {
  SchedulerLimits limits = roomy();
  limits.prefill_chunk = 7;
  Scheduler scheduler(limits);
  scheduler.add(spec(1, 20, 4, DrafterKind::random));
  StepPlan plan = scheduler.plan();
  ASSERT_EQ(plan.admitted.size(), 1u);
  EXPECT_EQ(plan.admitted[0].tokens.size(), 20u);
  EXPECT_EQ(plan.work[0].prefill_end, 7);
  EXPECT_FALSE(plan.work[0].decode);
  EXPECT_EQ(scheduler.plan().work[0].prefill_end, 14);
  plan = scheduler.plan();
  EXPECT_EQ(plan.work[0].prefill_end, 19);
  EXPECT_EQ(drafts_of(scheduler, plan, 1), 4);
  const std::vector<int32_t> emitted = {1, 2, 3};
  scheduler.commit(1, emitted);
  EXPECT_EQ(scheduler.tokens(1).size(), 23u);
  plan = scheduler.plan();
  EXPECT_EQ(plan.step, 3u);
  EXPECT_EQ(plan.work[0].prefill_end, 22);
  EXPECT_TRUE(plan.work[0].decode);
}

TEST(Scheduler, APromptOfOneTokenDecodesAtOnce) {
  Scheduler scheduler(roomy());
  scheduler.add(spec(1, 1));
  const StepPlan plan = scheduler.plan();
  EXPECT_EQ(drafts_of(scheduler, plan, 1), 0);
  EXPECT_EQ(plan.work[0].prefill_end, 0);
}

TEST(Scheduler, HasNothingToDoWhereNothingIs) {
  Scheduler scheduler(roomy());
  EXPECT_TRUE(scheduler.plan().work.empty());
  EXPECT_EQ(scheduler.plan().step, 0u);
  EXPECT_EQ(scheduler.sequence_at(0), -1);
}

TEST(Scheduler, GoesByOrderAndNeverPastTheFirstThatWaits) {
  SchedulerLimits limits = roomy();
  limits.num_pages = 20;
  limits.prefill_chunk = 200;
  Scheduler scheduler(limits);
  scheduler.add(spec(1, 10 * kP));
  step(scheduler);
  step(scheduler);                 // 11 pages with the token behind
  scheduler.add(spec(2, 9 * kP));  // and a spare one for 1: does not fit
  scheduler.add(spec(3, 1));       // would fit, but is behind
  SequenceSpec urgent = spec(4, 5 * kP);
  urgent.order = -1;
  scheduler.add(urgent);
  StepPlan plan = step(scheduler);
  ASSERT_EQ(plan.admitted.size(), 1u);
  EXPECT_EQ(scheduler.sequence_at(plan.admitted[0].slot), 4);
  EXPECT_THAT(step(scheduler).admitted, IsEmpty());
  scheduler.remove(1);
  plan = step(scheduler);
  ASSERT_EQ(plan.admitted.size(), 2u);
  EXPECT_EQ(scheduler.sequence_at(plan.admitted[0].slot), 2);
  EXPECT_EQ(scheduler.sequence_at(plan.admitted[1].slot), 3);
}

TEST(Scheduler, KeepsAPageSpareForEachThatRuns) {
  SchedulerLimits limits = roomy();
  limits.num_pages = 8;
  for (const int64_t prompt : {4 * kP, 4 * kP + 1}) {
    Scheduler scheduler(limits);
    scheduler.add(up_to(112, spec(1, 3)));
    scheduler.add(up_to(112, spec(2, 3)));
    step(scheduler);
    scheduler.add(up_to(112, spec(3, prompt)));  // 4 or 5 pages, of 6, where 2 are to stay free
    EXPECT_EQ(scheduler.plan().admitted.size(), prompt == 4 * kP ? 1u : 0u);
  }
}

TEST(Scheduler, AdmitsTheHeadWhereNothingRuns) {
  SchedulerLimits limits = roomy();
  limits.num_pages = 8;
  limits.num_draft_pages = 2;
  Scheduler scheduler(limits);
  scheduler.add(up_to(112, spec(1, 60, 4)));  // its draft will never fit: it does without
  int64_t steps = 0;
  for (; scheduler.tokens(1).size() < 112; ++steps) {
    for (const PlannedWork& w : step(scheduler).work) EXPECT_EQ(w.num_draft_tokens, 0);
  }
  EXPECT_EQ(steps, 52);
}

TEST(Scheduler, PreemptsTheLastAndTakesItUpAgainFirst) {
  SchedulerLimits limits = roomy();
  limits.num_pages = 8;
  Scheduler scheduler(limits);
  scheduler.add(up_to(112, spec(1, 2 * kP)));
  scheduler.add(up_to(112, spec(2, kP - 1)));
  step(scheduler);  // 3 pages and 1
  step(scheduler);
  scheduler.add(up_to(112, spec(3, 100)));  // waits: 7 pages
  StepPlan plan;
  for (int64_t i = 0; scheduler.stats().num_preemptions == 0; ++i) {
    ASSERT_LT(i, 100);
    plan = step(scheduler);
  }
  EXPECT_EQ(work_of(scheduler, plan, 2), nullptr);
  EXPECT_NE(work_of(scheduler, plan, 1), nullptr);
  EXPECT_EQ(scheduler.stats().num_running, 1);
  EXPECT_EQ(scheduler.stats().num_waiting, 2);
  const auto length = scheduler.tokens(2).size();
  EXPECT_GT(length, static_cast<size_t>(kP));
  scheduler.remove(1);
  plan = scheduler.plan();
  ASSERT_GE(plan.admitted.size(), 1u);
  EXPECT_EQ(scheduler.sequence_at(plan.admitted[0].slot), 2);
  EXPECT_EQ(plan.admitted[0].tokens.size(), length);
  EXPECT_GE(plan.admitted[0].num_cached, kP);  // its own pages were kept while nobody needed them
}

// One that came early with a low priority ends although others never stop coming.
TEST(Scheduler, NobodyStarves) {
  SchedulerLimits limits = roomy();
  limits.num_slots = 2;
  limits.num_pages = 9;
  limits.max_rows = 20;
  Scheduler scheduler(limits);
  int64_t last = 0;
  bool done = false;
  std::vector<int64_t> open;
  const auto submit = [&](double order) {
    SequenceSpec sequence = exactly(spec(++last, 20, 15, DrafterKind::random));
    sequence.max_length = 60;
    sequence.order = order;
    scheduler.add(sequence);
    open.push_back(last);
  };
  submit(100);
  for (int now = 0; now < 1000 && !done; ++now) {
    if (open.size() < 6) submit(now);
    step(scheduler);
    std::erase_if(open, [&](int64_t id) {
      if (scheduler.tokens(id).size() < 60) return false;
      scheduler.remove(id);
      done |= id == 1;
      return true;
    });
  }
  EXPECT_TRUE(done);
}

TEST(Scheduler, RefusesWhatItsCallerMustNotDo) {
  Scheduler scheduler(roomy());
  scheduler.add(spec(1, 5, 2, DrafterKind::random));
  EXPECT_DEATH(scheduler.add(spec(1, 5)), "is_new");
  EXPECT_DEATH(scheduler.add(spec(2, 5, kMaxDraftTokens + 1)), "kMaxDraftTokens");
  EXPECT_DEATH(scheduler.remove(2), "sequences_.end");
  const std::vector<int32_t> tokens(4, 1);
  EXPECT_DEATH(scheduler.commit(1, tokens), "decode");
  scheduler.plan();
  EXPECT_DEATH(scheduler.plan(), "decode");
  EXPECT_DEATH(scheduler.commit(1, tokens), "tokens.size");
  EXPECT_DEATH(scheduler.commit(1, {}), "tokens.empty");
  SchedulerLimits limits = roomy();
  limits.num_pages = 8;
  limits.num_draft_pages = 5;
  constexpr int64_t kMost = 8 * kP - kMaxDraftTokens - 1;
  Scheduler small(limits);
  small.add(up_to(kMost, spec(1, 1, 4)));
  EXPECT_DEATH(small.add(up_to(kMost + 1, spec(2, 1, 4))), "num_pages");
  EXPECT_DEATH(small.add(exactly(up_to(kMost, spec(2, 1, 4)))), "num_draft_pages");
  SequenceSpec sequence = exactly(up_to(kMost, spec(2, 1, 4)));
  sequence.max_draft_positions = 5 * kP;
  small.add(sequence);
  limits.max_rows = kMaxDraftTokens + 1;
  EXPECT_DEATH(Scheduler{limits}, "max_rows");
}

}  // namespace
}  // namespace outrider
