#include "engine/scheduler.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

ScheduledSequence sequence(int64_t length, int64_t num_cached, int64_t max_length, int lookahead) {
  return {.slot = 0,
          .length = length,
          .num_cached = num_cached,
          .max_length = max_length,
          .max_draft_positions = 1000,
          .lookahead = lookahead};
}

TEST(Scheduler, PrefillsInChunksAndDecodesBehindTheLast) {
  PlannedWork work = plan_work(sequence(20, 0, 100, 4), 7);
  EXPECT_EQ(work.decode, 0);
  EXPECT_EQ(work.prefill_end, 7);
  work = plan_work(sequence(20, 14, 100, 4), 7);
  EXPECT_EQ(work.decode, 1);
  EXPECT_EQ(work.prefill_end, 19);
  EXPECT_EQ(work.num_draft_tokens, 4);
  EXPECT_EQ(plan_work(sequence(20, 12, 100, 4), 7).decode, 1);  // exactly the chunk
  EXPECT_EQ(plan_work(sequence(20, 11, 100, 4), 7).decode, 0);  // one more
}

TEST(Scheduler, APromptOfOneTokenDecodesAtOnce) {
  const PlannedWork work = plan_work(sequence(1, 0, 100, 2), 1);
  EXPECT_EQ(work.decode, 1);
  EXPECT_EQ(work.prefill_end, 0);
}

TEST(Scheduler, DraftsNoMoreThanCanBeUsed) {
  EXPECT_EQ(plan_work(sequence(20, 19, 21, 8), 7).num_draft_tokens, 0);  // one token left
  EXPECT_EQ(plan_work(sequence(20, 19, 24, 8), 7).num_draft_tokens, 3);
  ScheduledSequence short_draft = sequence(20, 19, 100, 8);
  short_draft.max_draft_positions = 22;
  EXPECT_EQ(plan_work(short_draft, 7).num_draft_tokens, 2);
  short_draft.max_draft_positions = 10;
  EXPECT_EQ(plan_work(short_draft, 7).num_draft_tokens, 0);
}

}  // namespace
}  // namespace outrider
