// That each figure of the engine is told under its own name.
#include "server/response_conversion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(ServerStats, EachFieldIsTheEnginesOwn) {
  EngineStats stats;
  stats.num_requests_running = 1;
  stats.num_requests_waiting = 2;
  stats.num_tokens_waiting = 3;
  stats.num_requests_finished = 4;
  stats.num_requests_failed = 5;
  stats.num_steps = 6;
  stats.num_draft_tokens = 7;
  stats.num_accepted_draft_tokens = 8;
  stats.num_completion_tokens = 9;
  stats.num_preemptions = 10;
  stats.kv_pages_used = 11;
  stats.kv_pages = 12;
  stats.prefix_cache_queries = 13;
  stats.prefix_cache_hits = 14;
  const v1::ServerStats told = to_proto(stats);
  EXPECT_EQ(told.num_requests_running(), 1);
  EXPECT_EQ(told.num_requests_waiting(), 2);
  EXPECT_EQ(told.num_tokens_waiting(), 3);
  EXPECT_EQ(told.num_requests_finished(), 4);
  EXPECT_EQ(told.num_requests_failed(), 5);
  EXPECT_EQ(told.num_steps(), 6);
  EXPECT_EQ(told.num_draft_tokens(), 7);
  EXPECT_EQ(told.num_accepted_draft_tokens(), 8);
  EXPECT_EQ(told.num_completion_tokens(), 9);
  EXPECT_EQ(told.num_preemptions(), 10);
  EXPECT_EQ(told.kv_pages_used(), 11);
  EXPECT_EQ(told.kv_pages(), 12);
  EXPECT_EQ(told.prefix_cache_queries(), 13);
  EXPECT_EQ(told.prefix_cache_hits(), 14);
}

TEST(Complete, EachFieldIsTheAnswersOwn) {
  Completion completion;
  completion.index = 1;
  completion.finish_reason = FinishReason::cancelled;
  completion.prompt_tokens = 2;
  completion.cached_tokens = 3;
  completion.completion_tokens = 4;
  completion.timings = {
      .queue_ms = 5, .prefill_ms = 6, .decode_ms = 7, .total_ms = 8, .ttft_ms = 9};
  SpeculationStats& stats = completion.speculation;
  stats.num_spec_steps = 10;
  stats.num_decode_steps = 20;
  stats.num_decoded_tokens = 30;
  stats.num_draft_tokens = 40;
  stats.num_accepted_draft_tokens = 30;
  stats.num_copied_draft_tokens = 11;
  stats.drafted_per_position = {20, 16, 4};
  stats.accepted_per_position = {15, 8, 1};
  stats.tpot_slo_ms = 12;
  stats.tpot_slo_missed = true;
  const v1::Complete told = to_proto(completion);
  EXPECT_EQ(told.index(), 1);
  EXPECT_EQ(told.finish_reason(), v1::FINISH_REASON_CANCELLED);
  EXPECT_EQ(told.prompt_tokens(), 2);
  EXPECT_EQ(told.cached_tokens(), 3);
  EXPECT_EQ(told.completion_tokens(), 4);
  EXPECT_EQ(told.timings().queue_ms(), 5);
  EXPECT_EQ(told.timings().prefill_ms(), 6);
  EXPECT_EQ(told.timings().decode_ms(), 7);
  EXPECT_EQ(told.timings().total_ms(), 8);
  EXPECT_EQ(told.timings().ttft_ms(), 9);
  const v1::SpeculationStats& speculation = told.speculation();
  EXPECT_EQ(speculation.num_spec_steps(), 10);
  EXPECT_EQ(speculation.num_draft_tokens(), 40);
  EXPECT_EQ(speculation.num_accepted_draft_tokens(), 30);
  EXPECT_EQ(speculation.num_copied_draft_tokens(), 11);
  EXPECT_EQ(speculation.mean_acceptance_length(), 1.5);
  EXPECT_EQ(speculation.draft_acceptance_rate(), 0.75);
  EXPECT_THAT(speculation.acceptance_by_position(), testing::ElementsAre(0.75, 0.5, 0.25));
  EXPECT_EQ(speculation.tpot_slo_ms(), 12);
  EXPECT_TRUE(speculation.tpot_slo_missed());
  EXPECT_FALSE(speculation.has_draft_cost());
  EXPECT_FALSE(speculation.has_measured_speedup());
  EXPECT_FALSE(speculation.has_predicted_speedup());
  stats.draft_cost_sum = 10;
  stats.speedup.add(1, 3, {.plain_ms = 2, .expected_ms = 3, .ms = 4});
  const v1::SpeculationStats measured = to_proto(completion).speculation();
  EXPECT_EQ(measured.draft_cost(), 0.25);
  EXPECT_EQ(measured.measured_speedup(), 1.5);
  EXPECT_NEAR(measured.predicted_speedup(), 2.0 / 3, 1e-12);
}

// What was not measured is left out.
TEST(DrafterStats, EachFieldIsTheReportsOwn) {
  EngineStats stats;
  stats.drafters[static_cast<int>(DrafterKind::head)] = {.num_drafts = 1,
                                                         .num_draft_tokens = 2,
                                                         .num_accepted_draft_tokens = 3,
                                                         .num_alternative_draft_tokens = 4,
                                                         .num_accepted_alternatives = 5,
                                                         .alpha = 6,
                                                         .draft_cost = 7,
                                                         .predicted_speedup = 8,
                                                         .measured_speedup = 9,
                                                         .budget_ms = 10};
  v1::GetServerInfoResponse told;
  told.add_drafters("head");
  told.add_drafters("random");
  add_drafter_stats(stats, told);
  const v1::DrafterStats &head = told.drafter_stats(0), &random = told.drafter_stats(1);
  EXPECT_EQ(head.num_drafts(), 1);
  EXPECT_EQ(head.num_draft_tokens(), 2);
  EXPECT_EQ(head.num_accepted_draft_tokens(), 3);
  EXPECT_EQ(head.num_alternative_draft_tokens(), 4);
  EXPECT_EQ(head.num_accepted_alternatives(), 5);
  EXPECT_EQ(head.alpha(), 6);
  EXPECT_EQ(head.draft_cost(), 7);
  EXPECT_EQ(head.predicted_speedup(), 8);
  EXPECT_EQ(head.measured_speedup(), 9);
  EXPECT_EQ(head.loss_budget_ms(), 10);
  EXPECT_FALSE(random.has_draft_cost());
  EXPECT_FALSE(random.has_predicted_speedup());
  EXPECT_FALSE(random.has_measured_speedup());
}

}  // namespace
}  // namespace outrider
