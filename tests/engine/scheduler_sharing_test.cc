// The scheduler: pages that prompts share, with earlier ones and among the choices of a request.
#include <gtest/gtest.h>

#include "engine/scheduler.h"
#include "tests/engine/scheduler_harness.h"

namespace outrider {
namespace {

TEST(Scheduler, UsesPagesOfPromptsThatBeganAlike) {
  Scheduler scheduler(roomy());
  scheduler.add(spec(1, 3 * kP + 1, 4));
  step(scheduler);
  const auto same = [&](int64_t id) {
    SequenceSpec sequence = spec(1, 3 * kP + 1, 4);
    sequence.id = sequence.request = id;
    return sequence;
  };
  scheduler.add(same(2));
  StepPlan plan = step(scheduler);
  EXPECT_EQ(scheduler.num_cached_at_admission(2), 3 * kP);
  EXPECT_EQ(plan.admitted[0].num_cached, 3 * kP);
  EXPECT_EQ(plan.admitted[0].num_draft_cached, 3 * kP);
  EXPECT_EQ(drafts_of(scheduler, plan, 2), 4);  // nothing to compute but the last token's row
  ASSERT_EQ(plan.target_pages.size(), 1u);
  EXPECT_EQ(plan.target_pages[0].first, 0);
  scheduler.remove(1);
  scheduler.remove(2);
  EXPECT_EQ(scheduler.stats().pages_used, 0);
  scheduler.add(same(3));
  scheduler.add(with_salt(same(4), 1));
  plan = step(scheduler);
  EXPECT_EQ(scheduler.num_cached_at_admission(3), 3 * kP);
  EXPECT_EQ(scheduler.num_cached_at_admission(4), 0);  // another tenant's
  EXPECT_EQ(scheduler.stats().prefix_queries, 4 * (3 * kP + 1));
  EXPECT_EQ(scheduler.stats().prefix_hits, 2 * 3 * kP);
}

TEST(Scheduler, ChoicesWaitForTheFirstAndShareItsPrompt) {
  for (const bool prefix_cache : {true, false}) {
    SchedulerLimits limits = roomy();
    limits.prefill_chunk = 64;
    limits.prefix_cache = prefix_cache;
    Scheduler scheduler(limits);
    SequenceSpec choice = spec(1, 6 * kP, 0);
    scheduler.add(choice);
    for (choice.choice = 1; choice.choice < 3; ++choice.choice) {
      choice.id = 10 + choice.choice;
      scheduler.add(choice);
    }
    scheduler.add(spec(20, 5));
    StepPlan plan = step(scheduler);
    EXPECT_EQ(scheduler.stats().num_running, 1);
    plan = step(scheduler);  // its prompt ends; 20 does not wait for its siblings
    EXPECT_EQ(plan.admitted.size(), 1u);
    EXPECT_NE(work_of(scheduler, plan, 20), nullptr);
    plan = step(scheduler);
    ASSERT_EQ(plan.admitted.size(), 2u);
    EXPECT_EQ(plan.admitted[0].choice, 1);
    EXPECT_EQ(plan.admitted[0].num_cached, 5 * kP);
    EXPECT_EQ(plan.admitted[1].num_cached, 5 * kP);
    EXPECT_EQ(scheduler.stats().prefix_hits, prefix_cache ? 10 * kP : 0);
    choice = spec(1, 6 * kP, 0);
    choice.id = choice.request = 30;
    scheduler.add(choice);
    step(scheduler);
    EXPECT_EQ(scheduler.num_cached_at_admission(30), prefix_cache ? 5 * kP : 0);
  }
}

TEST(Scheduler, ChoicesThatHaveToDraftShareTheDraftersPromptToo) {
  SchedulerLimits limits = roomy();
  limits.prefill_chunk = 64;
  Scheduler scheduler(limits);
  SequenceSpec choice = exactly(spec(1, 6 * kP, 4));
  scheduler.add(choice);
  for (choice.choice = 1; choice.choice < 3; ++choice.choice) {
    choice.id = 10 + choice.choice;
    scheduler.add(choice);
  }
  StepPlan plan;
  for (int i = 0; plan.admitted.size() < 2; ++i) {
    ASSERT_LT(i, 10);
    plan = step(scheduler);
  }
  for (const Admission& admission : plan.admitted) {
    EXPECT_EQ(admission.num_cached, 5 * kP);
    EXPECT_EQ(admission.num_draft_cached, 5 * kP);
  }
}

TEST(Scheduler, ChoicesGoOnWhereTheFirstIsGone) {
  Scheduler scheduler(roomy());
  SequenceSpec choice = spec(1, 500);
  scheduler.add(choice);
  for (choice.choice = 1; choice.choice < 4; ++choice.choice) {
    choice.id = 1 + choice.choice;
    scheduler.add(choice);
  }
  step(scheduler);
  scheduler.remove(3);  // while it waits for its sibling
  scheduler.remove(1);
  EXPECT_EQ(scheduler.stats().num_waiting, 2);
  EXPECT_EQ(step(scheduler).admitted.size(), 1u);
  EXPECT_EQ(scheduler.num_cached_at_admission(2), 128);  // what the first got done was kept
}

TEST(Scheduler, KeepsNothingOfAStepThatMayHaveFailed) {
  Scheduler scheduler(roomy());
  const auto same = [&](int64_t id) {
    SequenceSpec sequence = spec(1, 2 * kP + 1);
    sequence.id = sequence.request = id;
    return sequence;
  };
  scheduler.add(same(1));
  ASSERT_EQ(drafts_of(scheduler, scheduler.plan(), 1), 0);
  scheduler.remove(1);  // not committed
  scheduler.add(same(2));
  scheduler.plan();
  EXPECT_EQ(scheduler.num_cached_at_admission(2), 0);
}

}  // namespace
}  // namespace outrider
