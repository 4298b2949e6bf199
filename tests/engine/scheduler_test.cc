#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kP = kPageTokens;

SchedulerLimits roomy() {
  return {.num_slots = 8,
          .num_pages = 1000,
          .num_draft_pages = 1000,
          .max_rows = 256,
          .prefill_chunk = 128};
}

// A prompt that nobody shares, and up to 100 tokens behind it.
SequenceSpec spec(int64_t id, int64_t prompt_length, int32_t lookahead = 0,
                  DrafterKind drafter = DrafterKind::model) {
  SequenceSpec spec{.id = id,
                    .request = id,
                    .order = static_cast<double>(id),
                    .max_length = prompt_length + 100,
                    .drafter = drafter,
                    .lookahead = lookahead,
                    .max_draft_positions = 100000};
  spec.prompt.resize(prompt_length);
  std::iota(spec.prompt.begin(), spec.prompt.end(), static_cast<int32_t>(100000 * id));
  return spec;
}

SequenceSpec exactly(SequenceSpec spec) {
  spec.lookahead_is_exact = true;
  return spec;
}

SequenceSpec with_salt(SequenceSpec spec, uint64_t salt) {
  spec.salt = salt;
  return spec;
}

// The work of a sequence in a plan; null: none.
const PlannedWork* work_of(const Scheduler& scheduler, const StepPlan& plan, int64_t id) {
  for (const PlannedWork& w : plan.work) {
    if (scheduler.sequence_at(w.slot) == id) return &w;
  }
  return nullptr;
}

// K of a sequence that decodes in the plan; -1: it does not.
int64_t drafts_of(const Scheduler& scheduler, const StepPlan& plan, int64_t id) {
  const PlannedWork* w = work_of(scheduler, plan, id);
  return w != nullptr && w->decode ? w->num_draft_tokens : -1;
}

// Commits every decoding sequence with as many of its drafts as accepted, at most. Returns the ids.
std::vector<int64_t> commit_all(Scheduler& scheduler, const StepPlan& plan, int accepted = 0) {
  std::vector<int64_t> ids;
  for (const PlannedWork& w : plan.work) {
    if (!w.decode) continue;
    ids.push_back(scheduler.sequence_at(w.slot));
    const std::vector<int32_t> tokens(std::min(accepted, w.num_draft_tokens) + 1, 7);
    scheduler.commit(ids.back(), tokens);
  }
  return ids;
}

StepPlan step(Scheduler& scheduler, int accepted = 0) {
  StepPlan plan = scheduler.plan();
  commit_all(scheduler, plan, accepted);
  return plan;
}

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
    scheduler.add(spec(1, 3));
    scheduler.add(spec(2, 3));
    step(scheduler);
    scheduler.add(spec(3, prompt));  // 4 or 5 pages, of 6, where 2 are to stay free
    EXPECT_EQ(scheduler.plan().admitted.size(), prompt == 4 * kP ? 1u : 0u);
  }
}

TEST(Scheduler, AdmitsTheHeadWhereNothingRuns) {
  SchedulerLimits limits = roomy();
  limits.num_pages = 8;
  limits.num_draft_pages = 2;
  Scheduler scheduler(limits);
  SequenceSpec sequence = spec(1, 60, 4);  // its draft will never fit: it does without
  sequence.max_length = 112;
  ASSERT_TRUE(scheduler.can_ever_fit(60, 112, 1, 0));
  scheduler.add(sequence);
  int64_t steps = 0;
  for (; scheduler.tokens(1).size() < 112; ++steps) {
    for (const PlannedWork& w : step(scheduler).work) EXPECT_EQ(w.num_draft_tokens, 0);
  }
  EXPECT_EQ(steps, 52);
}

TEST(Scheduler, CanEverFit) {
  SchedulerLimits limits = roomy();
  limits.num_pages = 10;
  limits.num_draft_pages = 5;
  const Scheduler scheduler(limits);
  const int64_t most = 10 * kP - kMaxDraftTokens - 1;
  EXPECT_TRUE(scheduler.can_ever_fit(1, most, 1, 0));
  EXPECT_FALSE(scheduler.can_ever_fit(1, most + 1, 1, 0));
  EXPECT_TRUE(scheduler.can_ever_fit(1, 5 * kP - kMaxDraftTokens - 1, 2, 0));
  EXPECT_FALSE(scheduler.can_ever_fit(1, 5 * kP - kMaxDraftTokens, 2, 0));
  EXPECT_FALSE(scheduler.can_ever_fit(1, most, 1));
  EXPECT_FALSE(scheduler.can_ever_fit(1, most, 1, 5 * kP + 1));
  EXPECT_TRUE(scheduler.can_ever_fit(1, most, 1, 5 * kP));
  EXPECT_FALSE(scheduler.can_ever_fit(50, 50, 1, 0));  // no token could be emitted
  limits.num_draft_pages = 0;
  EXPECT_TRUE(Scheduler(limits).can_ever_fit(1, most, 1));
}

TEST(Scheduler, PreemptsTheLastAndTakesItUpAgainFirst) {
  SchedulerLimits limits = roomy();
  limits.num_pages = 8;
  Scheduler scheduler(limits);
  scheduler.add(spec(1, 2 * kP));
  scheduler.add(spec(2, kP - 1));
  step(scheduler);  // 3 pages and 1
  step(scheduler);
  scheduler.add(spec(3, 100));  // waits: 7 pages
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

TEST(Scheduler, CutsDraftsRatherThanPreempt) {
  SchedulerLimits limits = roomy();
  limits.num_pages = 4;
  for (const bool exact : {false, true}) {
    Scheduler scheduler(limits);
    SequenceSpec first = spec(1, 8, 15, DrafterKind::random);
    first.lookahead_is_exact = exact;
    scheduler.add(first);
    scheduler.add(spec(2, 14));
    EXPECT_EQ(step(scheduler).admitted.size(), 2u);
    for (int i = 0; i < 9; ++i) EXPECT_EQ(drafts_of(scheduler, step(scheduler), 1), 15);
    // 2 pages each; with 15 drafts, position 33 would be needed.
    EXPECT_EQ(drafts_of(scheduler, step(scheduler), 1), exact ? 15 : 14);
    EXPECT_EQ(scheduler.stats().num_preemptions, exact ? 1 : 0);
  }
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
  scheduler.add(spec(3, 6));
  for (int64_t i = 1; i <= 5; ++i) {
    const StepPlan plan = step(scheduler);
    EXPECT_EQ(drafts_of(scheduler, plan, 1), 14);
    EXPECT_EQ(work_of(scheduler, plan, 3)->prefill_end, i);
  }
  EXPECT_EQ(drafts_of(scheduler, step(scheduler), 3), 0);
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
  scheduler.add(exactly(spec(1, 2 * kP - 4, 4)));
  scheduler.add(spec(2, kP + 1, 4));
  scheduler.add(exactly(spec(3, kP - 8, 4)));
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

TEST(Scheduler, CatchesUpWhenDraftPagesAreFreeAgain) {
  SchedulerLimits limits = roomy();
  limits.num_draft_pages = 6;
  Scheduler scheduler(limits);
  scheduler.add(exactly(spec(1, 2 * kP - 8, 4)));
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
  limits.max_rows = kMaxDraftTokens + 1;
  EXPECT_DEATH(Scheduler{limits}, "max_rows");
}

}  // namespace
}  // namespace outrider
