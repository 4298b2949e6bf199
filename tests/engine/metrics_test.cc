// What /metrics shows for what the engine and the server report.
#include "engine/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/histogram.h"
#include "testing/read_file.h"

namespace outrider {
namespace {

// The value of the line "name value"; NaN where there is none.
double value(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(name + " ", 0) == 0) return std::stod(line.substr(name.size() + 1));
  }
  return std::nan("");
}

TEST(Histogram, CountsUpToAndIncludingABound) {
  Histogram histogram({1, 2});
  for (const double x : {0.5, 1.0, 1.5, 2.0, 2.5, 1e9}) histogram.observe(x);
  const auto sample = histogram.collect().histogram;
  ASSERT_EQ(sample.bucket.size(), 3u);
  EXPECT_EQ(sample.bucket[0].cumulative_count, 2u);
  EXPECT_EQ(sample.bucket[1].cumulative_count, 4u);
  EXPECT_EQ(sample.bucket[2].cumulative_count, 6u);
  EXPECT_EQ(sample.bucket[2].upper_bound, std::numeric_limits<double>::infinity());
  EXPECT_EQ(sample.sample_count, 6u);
  EXPECT_DOUBLE_EQ(sample.sample_sum, 7.5 + 1e9);
}

TEST(Histogram, LosesNothingBetweenThreads) {
  Histogram histogram(one_two_five(-3, 0));
  constexpr int kThreads = 4, kEach = 20'000;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&histogram] {
      for (int j = 0; j < kEach; ++j) histogram.observe(0.25);
    });
  }
  for (int i = 0; i < 100; ++i) {  // scrapes meanwhile
    const auto sample = histogram.collect().histogram;
    EXPECT_EQ(sample.bucket.back().cumulative_count, sample.sample_count);
  }
  for (std::thread& thread : threads) thread.join();
  const auto sample = histogram.collect().histogram;
  EXPECT_EQ(sample.sample_count, uint64_t{kThreads} * kEach);
  EXPECT_DOUBLE_EQ(sample.sample_sum, kThreads * kEach * 0.25);
}

TEST(OneTwoFive, IsWrittenAsItIsRead) {
  EXPECT_EQ(one_two_five(-2, 1),
            (std::vector<double>{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10}));
  EXPECT_EQ(one_two_five(-3, -2), (std::vector<double>{0.001, 0.002, 0.005, 0.01}));
}

TEST(EngineMetrics, CountsSpeculation) {
  EngineMetrics metrics;
  metrics.verified(4, {.num_drafted = 4, .num_accepted = 2});
  metrics.verified(7, {.num_drafted = 4, .num_accepted = 4});  // which ended the answer
  metrics.verified(1, {.num_drafted = 1, .num_accepted = 0});
  metrics.verified(0, {});  // no draft: the lookahead alone
  metrics.verified(2, {.num_drafted = 2, .num_alternatives = 3});
  metrics.verified(2, {.num_drafted = 2, .num_alternatives = 3, .alternative = 1});
  metrics.gathered(0);
  metrics.gathered(3);
  const std::string text = metrics.text();
  EXPECT_EQ(value(text, "outrider_spec_decode_num_drafts_total"), 5);
  EXPECT_EQ(value(text, "outrider_spec_decode_num_draft_tokens_total"), 19);
  EXPECT_EQ(value(text, "outrider_spec_decode_num_accepted_tokens_total"), 7);
  EXPECT_EQ(value(text, "outrider_spec_decode_num_gathered_rows_total"), 3);
  EXPECT_EQ(value(text, "outrider_spec_decode_num_alternatives_total"), 6);
  EXPECT_EQ(value(text, "outrider_spec_decode_num_accepted_alternatives_total"), 1);
  const auto at = [&](int i) {
    return value(text, "outrider_spec_decode_num_accepted_tokens_per_pos_total{position=\"" +
                           std::to_string(i) + "\"}");
  };
  EXPECT_EQ(at(0), 3);  // one of them an alternative
  EXPECT_EQ(at(1), 2);
  EXPECT_EQ(at(2), 1);
  EXPECT_EQ(at(3), 1);
  EXPECT_EQ(at(4), 0);
  EXPECT_EQ(value(text, "outrider_lookahead_tokens_count"), 6);
  EXPECT_EQ(value(text, "outrider_lookahead_tokens_bucket{le=\"0\"}"), 1);
  EXPECT_EQ(value(text, "outrider_lookahead_tokens_sum"), 16);
}

TEST(EngineMetrics, CountsRequests) {
  EngineMetrics metrics;
  Completion completion;
  completion.finish_reason = FinishReason::length;
  completion.completion_tokens = 25;
  completion.speculation.num_decoded_tokens = 5;  // the others were resumed
  completion.timings = {.queue_ms = 30, .prefill_ms = 10, .decode_ms = 200, .total_ms = 250};
  metrics.answered(completion);
  metrics.finished(completion);
  completion.finish_reason = FinishReason::cancelled;
  metrics.answered(completion);
  metrics.finished(completion);
  metrics.failed(absl::StatusCode::kInvalidArgument);
  metrics.first_token(0.04);
  metrics.next_chunk(0.001);
  metrics.next_chunk(0.003);
  const std::string text = metrics.text();
  EXPECT_EQ(value(text, "outrider_request_success_total{finished_reason=\"length\"}"), 1);
  EXPECT_EQ(value(text, "outrider_request_success_total{finished_reason=\"cancelled\"}"), 1);
  EXPECT_EQ(value(text, "outrider_request_success_total{finished_reason=\"stop\"}"), 0);
  EXPECT_EQ(value(text, "outrider_request_errors_total{code=\"INVALID_ARGUMENT\"}"), 1);
  EXPECT_EQ(value(text, "outrider_request_errors_total{code=\"UNAVAILABLE\"}"), 0);
  EXPECT_DOUBLE_EQ(value(text, "outrider_e2e_request_latency_seconds_sum"), 0.25);
  EXPECT_DOUBLE_EQ(value(text, "outrider_time_per_output_token_seconds_sum"), 0.05);
  EXPECT_EQ(value(text, "outrider_time_per_output_token_seconds_count"), 1);
  EXPECT_EQ(value(text, "outrider_request_queue_time_seconds_count"), 2);
  EXPECT_EQ(value(text, "outrider_time_to_first_token_seconds_bucket{le=\"0.05\"}"), 1);
  EXPECT_EQ(value(text, "outrider_time_to_first_token_seconds_bucket{le=\"0.02\"}"), 0);
  EXPECT_EQ(value(text, "outrider_inter_token_latency_seconds_count"), 2);
}

TEST(EngineMetrics, ShowsStepsAndState) {
  EngineMetrics metrics;
  metrics.step_phase(StepPhase::target, 0.01);
  metrics.step_phase(StepPhase::target, 0.02);
  metrics.step_phase(StepPhase::exchange, 0.001);
  metrics.set_kv_cache_usage(0.25);
  metrics.prefix_lookup(100, 48);
  metrics.set_requests(3, 7);
  metrics.set_rank_up(0, true);
  metrics.set_rank_up(1, true);
  metrics.set_rank_up(1, false);
  metrics.set_drafter("model", {.alpha = 0.7,
                                .draft_cost = 0.2,
                                .predicted_speedup = 1.6,
                                .measured_speedup = 1.5,
                                .budget_ms = 40});
  const std::string text = metrics.text();
  EXPECT_EQ(value(text, "outrider_step_seconds_count{phase=\"target\"}"), 2);
  EXPECT_EQ(value(text, "outrider_step_seconds_count{phase=\"exchange\"}"), 1);
  for (const char* phase : {"draft", "verify", "host"}) {
    EXPECT_EQ(value(text, std::string("outrider_step_seconds_count{phase=\"") + phase + "\"}"), 0);
  }
  EXPECT_EQ(value(text, "outrider_kv_cache_usage_ratio"), 0.25);
  EXPECT_EQ(value(text, "outrider_prefix_cache_queries_total"), 100);
  EXPECT_EQ(value(text, "outrider_prefix_cache_hits_total"), 48);
  EXPECT_EQ(value(text, "outrider_num_requests_running"), 3);
  EXPECT_EQ(value(text, "outrider_num_requests_waiting"), 7);
  EXPECT_EQ(value(text, "outrider_spec_decode_alpha{drafter=\"model\"}"), 0.7);
  EXPECT_EQ(value(text, "outrider_spec_decode_draft_cost{drafter=\"model\"}"), 0.2);
  const auto speedup = [&](const std::string& kind) {
    return value(text, "outrider_spec_decode_speedup{drafter=\"model\",kind=\"" + kind + "\"}");
  };
  EXPECT_EQ(speedup("predicted"), 1.6);
  EXPECT_EQ(speedup("measured"), 1.5);
  EXPECT_EQ(value(text, "outrider_spec_decode_loss_budget_seconds{drafter=\"model\"}"), 0.04);
  EXPECT_EQ(value(text, "outrider_rank_up{rank=\"0\"}"), 1);
  EXPECT_EQ(value(text, "outrider_rank_up{rank=\"1\"}"), 0);
}

TEST(EngineMetrics, ShowsNothingOfADrafterThatWasNotMeasured) {
  EngineMetrics metrics;
  metrics.set_drafter("model", {.alpha = 0.7});
  const std::string text = metrics.text();
  EXPECT_NE(text.find("outrider_spec_decode_alpha{"), std::string::npos);
  EXPECT_EQ(text.find("outrider_spec_decode_draft_cost{"), std::string::npos);
  EXPECT_EQ(text.find("outrider_spec_decode_speedup{"), std::string::npos);
}

// Names of metrics in a text, without what histograms append.
std::set<std::string> names_in(const std::string& text) {
  std::set<std::string> names;
  for (size_t begin = text.find("outrider_"); begin != std::string::npos;
       begin = text.find("outrider_", begin + 1)) {
    const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_", begin);
    std::string name = text.substr(begin, end - begin);
    for (const std::string suffix : {"_bucket", "_sum", "_count"}) {
      if (name.size() > suffix.size() &&
          name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0) {
        name.resize(name.size() - suffix.size());
        break;
      }
    }
    names.insert(name);
  }
  return names;
}

// What is drawn is there, and what is there is explained.
TEST(EngineMetrics, AreTheOnesOfTheDashboardAndTheDocuments) {
  EngineMetrics metrics;
  metrics.set_rank_up(0, true);
  metrics.set_drafter("model", {.draft_cost = 0.2, .measured_speedup = 1.5});
  const std::set<std::string> names = names_in(metrics.text());
  EXPECT_EQ(names.size(), 26u);
  EXPECT_EQ(names_in(read_file(OUTRIDER_SOURCE_DIR "/docs/operations/grafana-dashboard.json")),
            names);
  EXPECT_EQ(names_in(read_file(OUTRIDER_SOURCE_DIR "/docs/operations/monitoring.md")), names);
}

}  // namespace
}  // namespace outrider
