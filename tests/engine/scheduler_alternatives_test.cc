// What the scheduler makes of alternatives to a first drafted token: their rows, and the positions
// that a step feeds again where one of them was accepted.
#include <gtest/gtest.h>

#include "scheduler_harness.h"

namespace outrider {
namespace {

SequenceSpec with_alternatives(SequenceSpec spec, int32_t alternatives) {
  spec.alternatives = alternatives;
  return spec;
}

// Chooses what it is told to.
class Chooser final : public LookaheadChooser {
 public:
  Chooser(int32_t k, int32_t alternatives) : k_(k), alternatives_(alternatives) {}

  double choose(std::span<DecodeChoice> step, const StepRoom& room) override {
    num_refed = waiting = 0;
    for (DecodeChoice& choice : step) {
      num_refed += choice.num_refed;
      if (choice.exact) continue;
      choice.num_draft_tokens = std::min(choice.num_draft_tokens, k_);
      choice.num_alternatives = std::min(choice.num_alternatives, alternatives_);
    }
    waiting = room.prompts.waiting;
    return 0;
  }
  bool may_catch_up(const CatchUp&) override { return true; }
  double slowness(int64_t) const override { return 1; }
  double owed_to_prompts_ms() const override { return 0; }

  int64_t num_refed = 0, waiting = 0;  // of the last call

 private:
  int32_t k_, alternatives_;
};

TEST(SchedulerAlternatives, AreChosenBesideK) {
  Scheduler scheduler(roomy());
  scheduler.add(with_alternatives(spec(1, 20, 5, DrafterKind::head), 6));
  scheduler.add(exactly(with_alternatives(spec(2, 20, 5, DrafterKind::head), 4)));
  step(scheduler);
  Chooser chooser(3, 2);
  StepPlan plan = scheduler.plan(&chooser);
  EXPECT_EQ(work_of(scheduler, plan, 1)->num_draft_tokens, 3);
  EXPECT_EQ(work_of(scheduler, plan, 1)->num_alternatives, 2);
  EXPECT_EQ(work_of(scheduler, plan, 2)->num_draft_tokens, 5);
  EXPECT_EQ(work_of(scheduler, plan, 2)->num_alternatives, 4);
  commit_all(scheduler, plan);
  Chooser nothing(0, 6);  // without a draft there is nothing to stand beside
  plan = scheduler.plan(&nothing);
  EXPECT_EQ(work_of(scheduler, plan, 1)->num_alternatives, 0);
  commit_all(scheduler, plan);
  plan = scheduler.plan();  // nobody chooses
  EXPECT_EQ(work_of(scheduler, plan, 1)->num_alternatives, 6);
}

// The last token but one of an answer needs a draft, the last none.
TEST(SchedulerAlternatives, EndWithTheAnswer) {
  Scheduler scheduler(roomy());
  scheduler.add(up_to(24, with_alternatives(spec(1, 21, 5, DrafterKind::head), 6)));
  step(scheduler);  // its prompt, and a token
  StepPlan plan = scheduler.plan();
  EXPECT_EQ(work_of(scheduler, plan, 1)->num_draft_tokens, 1);
  EXPECT_EQ(work_of(scheduler, plan, 1)->num_alternatives, 6);
  commit_all(scheduler, plan);
  plan = scheduler.plan();
  EXPECT_EQ(work_of(scheduler, plan, 1)->num_draft_tokens, 0);
  EXPECT_EQ(work_of(scheduler, plan, 1)->num_alternatives, 0);
}

TEST(SchedulerAlternatives, AreFedAgainOnceTheyAreAccepted) {
  Scheduler scheduler(roomy());
  scheduler.add(with_alternatives(spec(1, 20, 5, DrafterKind::head), 3));
  step(scheduler);
  scheduler.plan();
  scheduler.commit(1, std::vector<int32_t>{8, 9}, /*in_cache=*/false);
  EXPECT_EQ(scheduler.tokens(1).size(), 23u);
  Chooser chooser(4, 3);
  StepPlan plan = scheduler.plan(&chooser);
  EXPECT_EQ(chooser.num_refed, 1);
  EXPECT_EQ(chooser.waiting, 0);  // it is no prompt
  EXPECT_EQ(scheduler.num_refed(1), 1);
  EXPECT_EQ(scheduler.prefill_rows().target, 0);
  const PlannedWork* const work = work_of(scheduler, plan, 1);
  ASSERT_NE(work, nullptr);
  EXPECT_TRUE(work->decode);
  EXPECT_EQ(work->prefill_end, 22);
  EXPECT_EQ(work->num_draft_tokens, 4);
  EXPECT_EQ(work->num_alternatives, 3);
  commit_all(scheduler, plan);
  plan = scheduler.plan(&chooser);
  EXPECT_EQ(chooser.num_refed, 0);
  EXPECT_EQ(scheduler.num_refed(1), 0);
  EXPECT_EQ(work_of(scheduler, plan, 1)->prefill_end, 23);
}

// A draft model's cache has the refused draft in the same place.
TEST(SchedulerAlternatives, AreFedAgainToTheDrafterToo) {
  Scheduler scheduler(roomy());
  scheduler.add(exactly(with_alternatives(spec(1, 20, 4), 3)));
  while (drafts_of(scheduler, scheduler.plan(), 1) < 0) {
  }
  scheduler.commit(1, std::vector<int32_t>{8, 9}, false);
  EXPECT_EQ(scheduler.num_missed(1), 1);
}

// Every row that a step may have is counted, whoever gets it.
TEST(SchedulerAlternatives, TakeNoMoreRowsThanThereAre) {
  SchedulerLimits limits = roomy();
  limits.max_rows = 24;
  Scheduler scheduler(limits);
  for (int64_t id = 1; id <= 4; ++id) {
    scheduler.add(with_alternatives(spec(id, 5, 4, DrafterKind::head), 6));
  }
  int refed = 0;
  for (int i = 0; i < 30; ++i) {
    const StepPlan plan = scheduler.plan();
    int64_t rows = scheduler.prefill_rows().target;
    for (const PlannedWork& w : plan.work) {
      const int64_t id = scheduler.sequence_at(w.slot);
      if (!w.decode) continue;
      rows += 1 + w.num_draft_tokens + w.num_alternatives + scheduler.num_refed(id);
      refed += static_cast<int>(scheduler.num_refed(id));
      EXPECT_EQ(w.prefill_end, static_cast<int64_t>(scheduler.tokens(id).size()) - 1);
      const bool by_alternative = w.num_alternatives > 0 && (i + id) % 3 == 0;
      const std::vector<int32_t> tokens(by_alternative ? 2 : 1, 7);
      scheduler.commit(id, tokens, !by_alternative);
    }
    EXPECT_LE(rows, 24);
  }
  EXPECT_GT(refed, 5);
}

// What a page of the prefix cache holds is what stands in it.
TEST(SchedulerAlternatives, RefusedDraftsAreNotPublished) {
  Scheduler scheduler(roomy());
  SequenceSpec first = with_alternatives(spec(1, kP - 1, 5, DrafterKind::head), 3);
  const std::vector<int32_t> prompt = first.prompt;
  scheduler.add(std::move(first));
  scheduler.plan();
  scheduler.commit(1, std::vector<int32_t>{8});  // position kP - 1 is fed by the next step
  scheduler.plan();
  scheduler.commit(1, std::vector<int32_t>{9, 10}, false);
  scheduler.plan();
  scheduler.remove(1);  // position kP is stale: one page alone is known
  SequenceSpec second = spec(2, kP + 8, 0, DrafterKind::none);
  second.prompt.assign(prompt.begin(), prompt.end());
  second.prompt.insert(second.prompt.end(), {8, 9, 10, 11, 12, 13, 14, 15, 16});
  scheduler.add(std::move(second));
  scheduler.plan();
  EXPECT_EQ(scheduler.num_cached_at_admission(2), kP);
}

// A sequence that loses its slot begins anew.
TEST(SchedulerAlternatives, PreemptionForgetsWhatWasStale) {
  SchedulerLimits limits = roomy();
  limits.num_pages = 6;
  limits.prefix_cache = false;
  Scheduler scheduler(limits);
  const auto up = [](int64_t id) {
    return up_to(5 * kP, with_alternatives(spec(id, kP + 2, 2, DrafterKind::head), 3));
  };
  scheduler.add(up(1));
  scheduler.add(up(2));
  int preempted = 0;
  for (int i = 0; i < 200 && preempted == 0; ++i) {
    const StepPlan plan = scheduler.plan();
    for (const PlannedWork& w : plan.work) {
      if (!w.decode) continue;
      const int64_t id = scheduler.sequence_at(w.slot);
      const bool by_alternative = w.num_alternatives > 0 && id == 2;
      scheduler.commit(id, std::vector<int32_t>(by_alternative ? 2 : 1, 7), !by_alternative);
    }
    preempted = static_cast<int>(scheduler.stats().num_preemptions);
  }
  ASSERT_EQ(preempted, 1);
  EXPECT_EQ(scheduler.num_refed(2), 0);
  scheduler.remove(1);
  const StepPlan plan = scheduler.plan();
  ASSERT_EQ(plan.admitted.size(), 1u);
  const int64_t last = static_cast<int64_t>(scheduler.tokens(2).size()) - 1;
  EXPECT_EQ(scheduler.prefill_rows().target, last - plan.admitted[0].num_cached);
  EXPECT_EQ(scheduler.num_refed(2), 0);
}

}  // namespace
}  // namespace outrider
