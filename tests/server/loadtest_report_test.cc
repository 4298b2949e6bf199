// What a load test makes of the answers, without a server.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launcher/loadtest/greedy_check.h"
#include "launcher/loadtest/latency.h"
#include "launcher/loadtest/report.h"
#include "testing/one_line_error.h"

namespace outrider {
namespace {

// Due at due_s, its first chunk 0.1 s later, then one of two tokens each 0.02 s.
RequestRecord answer(int64_t index, double due_s, int num_chunks) {
  RequestRecord record;
  record.index = record.question = index;
  record.due_s = due_s;
  record.sent_s = due_s + 0.001;
  for (int i = 0; i < num_chunks; ++i) {
    record.chunks.push_back({due_s + 0.1 + 0.02 * i, 2});
    record.token_ids.insert(record.token_ids.end(), {2 * i, 2 * i + 1});
  }
  record.end_s = record.chunks.back().at_s + 0.01;
  record.prompt_tokens = 3;
  record.cached_tokens = 2;
  record.queue_ms = 5;
  record.num_spec_steps = 1;
  record.num_draft_tokens = 4;
  record.num_accepted_draft_tokens = 1;
  record.num_alternative_draft_tokens = 3;
  record.num_accepted_alternatives = 1;
  record.mean_acceptance_length = 2;
  return record;
}

RequestRecord failure(int64_t index, double due_s, const std::string& status,
                      const std::string& error) {
  RequestRecord record;
  record.index = record.question = index;
  record.due_s = record.sent_s = due_s;
  record.end_s = due_s + 0.001;
  record.status = status;
  record.error = error;
  return record;
}

LoadReport report_of(std::vector<RequestRecord> records, double warmup_s, double load_end_s,
                     const Objectives& objectives = {}) {
  return make_report({{.records = std::move(records), .load_end_s = load_end_s}},
                     {.warmup_s = warmup_s, .objectives = objectives});
}

TEST(Report, MeasuresFromWhenARequestWasDue) {
  const LoadReport report = report_of({answer(0, 1.0, 5)}, 0, 2);
  EXPECT_EQ(report.requests, 1);
  EXPECT_NEAR(report.ttft.mean, 100, 1e-9);
  EXPECT_NEAR(report.e2e.mean, 190, 1e-9);
  EXPECT_NEAR(report.tpot.mean, 90.0 / 9, 1e-9);  // 10 tokens
  EXPECT_NEAR(report.e2e.mean, report.ttft.mean + 9 * report.tpot.mean, 1e-9);
  EXPECT_EQ(report.itl.count, 4);
  EXPECT_NEAR(report.itl.max, 20, 1e-9);
  EXPECT_EQ(report.itl_amortised.count, 8);  // two tokens a chunk, but for the first chunk
  EXPECT_NEAR(report.itl_amortised.max, 10, 1e-9);
  EXPECT_NEAR(report.send_delay.mean, 1, 1e-9);
  EXPECT_EQ(report.queue.mean, 5);
  EXPECT_NEAR(report.tokens_per_second, 5, 1e-9);
  EXPECT_NEAR(report.requests_per_second, 0.5, 1e-9);
  EXPECT_EQ(report.prompt_tokens, 3);
  EXPECT_EQ(report.completion_tokens, 10);
  EXPECT_EQ(report.draft_acceptance_rate, 0.25);
  EXPECT_EQ(report.num_alternative_draft_tokens, 3);
  EXPECT_EQ(report.num_accepted_alternatives, 1);
  EXPECT_EQ(report.mean_acceptance_length, 2);
}

// Of answers that were measured and ended well.
TEST(Report, SaysHowMuchOfThePromptsWasCached) {
  RequestRecord failed = failure(3, 1.5, "INTERNAL", "x");
  failed.prompt_tokens = failed.cached_tokens = 100;
  RequestRecord fresh = answer(2, 1.5, 2);
  fresh.cached_tokens = 0;
  const LoadReport report = report_of({answer(0, 0.5, 2), answer(1, 1.5, 2), fresh, failed}, 1, 2);
  EXPECT_EQ(report.prompt_tokens, 6);
  EXPECT_EQ(report.cached_tokens, 2);
  EXPECT_EQ(to_json(report)["cached_tokens"], 2);
  EXPECT_EQ(to_json(fresh)["cached_tokens"], 0);
  EXPECT_EQ(to_json(answer(0, 0, 2))["cached_tokens"], 2);
  EXPECT_NE(to_table(report).find("prompts: 6 tokens, 2 of them (33.3 %) from the prefix cache\n"),
            std::string::npos)
      << to_table(report);
  RequestRecord uncounted = answer(0, 0, 2);
  uncounted.prompt_tokens = uncounted.cached_tokens = 0;
  EXPECT_NE(to_table(report_of({uncounted}, 0, 1)).find("(0.0 %)"), std::string::npos);
}

TEST(Report, AnAnswerOfOneTokenHasNoPace) {
  RequestRecord record = answer(0, 0, 1);
  record.token_ids = {1};
  record.chunks[0].num_tokens = 1;
  const LoadReport report = report_of({record}, 0, 1);
  EXPECT_EQ(report.ttft.count, 1);
  EXPECT_EQ(report.tpot.count, 0);
  EXPECT_EQ(report.itl.count, 0);
  EXPECT_EQ(report.itl_amortised.count, 0);
  EXPECT_TRUE(to_json(report)["tpot_ms"]["mean"].is_null());
  EXPECT_NE(to_table(report).find("TPOT                   n/a\n"), std::string::npos);
}

TEST(Report, IsValidUnlessMoreFailedThanSucceeded) {
  const auto valid = [](int succeeded, int failed) {
    std::vector<RequestRecord> records;
    for (int i = 0; i < succeeded; ++i) records.push_back(answer(i, 0, 2));
    for (int i = 0; i < failed; ++i) records.push_back(failure(succeeded + i, 0, "INTERNAL", "x"));
    return report_of(records, 0, 1).valid();
  };
  EXPECT_TRUE(valid(1, 0));
  EXPECT_TRUE(valid(3, 3));
  EXPECT_FALSE(valid(3, 4));
  EXPECT_FALSE(valid(0, 1));
  EXPECT_FALSE(valid(0, 0));
}

TEST(Report, CountsAnswersThatKeepTheObjectives) {
  RequestRecord slow = answer(1, 0.5, 5), late = answer(2, 0.5, 5), single = answer(3, 0.5, 1);
  for (auto& chunk : slow.chunks) chunk.at_s += 0.2;  // TTFT 300 ms
  slow.end_s += 0.2;
  late.end_s += 1;  // TPOT above 100 ms, over after the load's end
  single.token_ids = {1};
  const std::vector<RequestRecord> records = {answer(0, 0.5, 5), slow, late, single,
                                              failure(4, 0.5, "INTERNAL", "x")};
  const auto goodput = [&](const char* objectives) {
    return *report_of(records, 0.5, 1, parse_objectives(objectives)).goodput;
  };
  EXPECT_EQ(goodput("ttft=250ms").requests, 3);
  EXPECT_NEAR(goodput("ttft=250ms").share, 3.0 / 5, 1e-12);
  EXPECT_NEAR(goodput("ttft=250ms").requests_per_second, 2 / 0.5, 1e-12);
  EXPECT_EQ(goodput("tpot=50ms").requests, 3);  // with the single token, which has none
  EXPECT_EQ(goodput("ttft=0.25s,tpot=50ms").requests, 2);
  EXPECT_EQ(goodput("e2e=200ms").requests, 2);
  EXPECT_EQ(goodput("e2e=1ms").requests, 0);
  EXPECT_FALSE(report_of(records, 0.5, 1).goodput);
  EXPECT_EQ(report_of({}, 0.5, 1, parse_objectives("e2e=1s")).goodput->share, 0);
}

TEST(Objectives, AreRead) {
  const Objectives objectives = parse_objectives("tpot=30ms,ttft=0.5s");
  EXPECT_EQ(objectives.ttft, 500);
  EXPECT_EQ(objectives.tpot, 30);
  EXPECT_FALSE(objectives.e2e);
  for (const char* text :
       {"", "ttft", "ttft=", "ttft=500", "ttft=ms", "ttft=0ms", "ttft=-1ms", "ttft=nans",
        "ttft=infms", "ttft=1ms,ttft=2ms", "itl=3ms", "ttft=1ms,", "ttft=1ms=2ms"}) {
    expect_one_line_error({text, "ttft=500ms,tpot=30ms"}, [&] { parse_objectives(text); });
  }
}

// Requests by when they were due; tokens by when they came.
TEST(Report, CutsTheWarmUpAndTheTail) {
  const std::vector<RequestRecord> records = {
      answer(0, 0.0, 5),                          // all of it in the warm-up
      failure(1, 0.5, "UNAVAILABLE", "loading"),  // too
      answer(2, 0.88, 5),                         // chunks at 0.98, 1.0, …: four count
      answer(3, 1.5, 5),                          // in the middle
      answer(4, 1.89, 5),  // chunk at 1.99 counts, the rest comes after the end
  };
  const LoadReport report = report_of(records, 0.99, 2);
  EXPECT_EQ(report.requests, 2);
  EXPECT_EQ(report.errors, 0);
  EXPECT_EQ(report.warmup_requests, 3);
  EXPECT_EQ(report.warmup_errors, 1);
  EXPECT_EQ(report.e2e.count, 2);
  EXPECT_NEAR(report.tokens_per_second * 1.01, 8 + 10 + 2, 1e-9);
  EXPECT_NEAR(report.requests_per_second * 1.01, 2, 1e-9);
}

TEST(Report, CountsErrorsByCodeAndKeepsThemOutOfLatencies) {
  const LoadReport report = report_of(
      {failure(0, 0, "UNAVAILABLE", "first"), answer(1, 0, 2),
       failure(2, 0, "UNAVAILABLE", "second"), failure(3, 0, "RESOURCE_EXHAUSTED", "full")},
      0, 1);
  EXPECT_EQ(report.requests, 4);
  EXPECT_EQ(report.errors, 3);
  EXPECT_EQ(report.errors_by_code,
            (std::map<std::string, int64_t>{{"RESOURCE_EXHAUSTED", 1}, {"UNAVAILABLE", 2}}));
  EXPECT_EQ(report.first_error_by_code.at("UNAVAILABLE"), "first");
  EXPECT_EQ(report.e2e.count, 1);
  EXPECT_EQ(report.mean_acceptance_length, 2);
  EXPECT_NE(to_table(report).find("2 UNAVAILABLE, the first: first"), std::string::npos);
}

TEST(Report, WhatTheTestItselfCancelledIsNoError) {
  RequestRecord cut = answer(0, 0, 5);
  cut.status = "CANCELLED";
  cut.cancelled = true;
  const LoadReport report = report_of({cut}, 0, 1);
  EXPECT_EQ(report.requests, 0);
  EXPECT_EQ(report.errors, 0);
  EXPECT_EQ(report.cancelled, 1);
  EXPECT_NEAR(report.tokens_per_second, 10, 1e-9);  // what it had brought counts
  EXPECT_EQ(report.requests_per_second, 0);
  EXPECT_DOUBLE_EQ(report.longest_cancelled_ms, 1e3 * (cut.end_s - cut.due_s));
  EXPECT_TRUE(is_of_survivors(report));
}

// Of a hundred requests the 99th is P99, whatever the last one does; of a thousand the 990th, which
// is none of 990 answers' own P99. Whoever was still waiting counts as those that failed do.
TEST(Report, SaysWhereP99IsOfSurvivors) {
  const auto of_survivors = [](int num_answers, int num_failed, int num_cancelled) {
    LoadReport report;
    report.requests = num_answers + num_failed;
    report.errors = num_failed;
    report.cancelled = num_cancelled;
    const bool says = is_of_survivors(report);
    EXPECT_EQ(to_json(report)["of_answers_alone"], says);
    EXPECT_EQ(to_table(report).find(kOfSurvivors) != std::string::npos, says);
    EXPECT_EQ(load_table_row("rate=4", report).starts_with("rate=4 * "), says);
    return says;
  };
  EXPECT_FALSE(of_survivors(99, 1, 0));
  EXPECT_TRUE(of_survivors(99, 1, 1));
  EXPECT_FALSE(of_survivors(99, 0, 1));
  EXPECT_TRUE(of_survivors(990, 10, 0));
  EXPECT_TRUE(of_survivors(990, 5, 5));
  EXPECT_TRUE(of_survivors(998, 2, 0));
  EXPECT_FALSE(of_survivors(999, 1, 0));
  EXPECT_FALSE(of_survivors(1000, 0, 0));
  EXPECT_TRUE(of_survivors(0, 1, 0));
  EXPECT_FALSE(of_survivors(0, 0, 0));
}

// A row as wide as its head, marked or not.
TEST(Report, MarksRowsOfSurvivors) {
  const LoadReport report = report_of({answer(0, 0, 2), failure(1, 0, "INTERNAL", "x")}, 0, 1);
  const std::string head = load_table_head(false),
                    row = load_table_row("rate=16, K=adaptive", report);
  EXPECT_EQ(row.find('\n'), head.find('\n')) << head << row;
  EXPECT_EQ(row.find("rate=16, K=adaptive * "), 0u) << row;
  EXPECT_EQ(survivors_line().find("*: latencies are of the answers alone"), 0u);
}

void collect_numbers(const nlohmann::ordered_json& json, std::vector<double>& numbers) {
  for (const auto& value : json) {
    if (value.is_structured()) collect_numbers(value, numbers);
    if (value.is_number()) numbers.push_back(value.get<double>());
  }
}

TEST(Report, OfNothingDividesByNothing) {
  for (const auto& records :
       {std::vector<RequestRecord>{}, {failure(0, 0, "INTERNAL", "x")}, {answer(0, 0, 1)}}) {
    for (const double end_s : {0.0, 0.5, 3.0}) {
      const LoadReport report = report_of(records, 0.5, end_s, parse_objectives("e2e=1s"));
      EXPECT_FALSE(report.valid());
      const nlohmann::ordered_json json = to_json(report);
      EXPECT_TRUE(json["ttft_ms"]["p99"].is_null());
      std::vector<double> numbers;
      collect_numbers(json, numbers);
      EXPECT_GT(numbers.size(), 10u);
      for (const double number : numbers) EXPECT_TRUE(std::isfinite(number));
      EXPECT_EQ(json.dump().find("nan"), std::string::npos);
      EXPECT_EQ(to_table(report).find("nan"), std::string::npos);
      EXPECT_EQ(to_table(report).find("inf"), std::string::npos);
    }
  }
}

TEST(Report, HasTheFieldsThatItPromises) {
  std::vector<RequestRecord> answers;
  for (size_t i = 0; i < kLeastUnits; ++i) {
    answers.push_back(answer(static_cast<int64_t>(i), 0.1, 3 + static_cast<int>(i)));
  }
  const auto json = to_json(report_of(answers, 0, 1));
  for (const char* name : {"ttft_ms", "tpot_ms", "itl_ms", "itl_amortised_ms", "e2e_ms", "queue_ms",
                           "send_delay_ms"}) {
    for (const char* key : {"mean", "p50", "p90", "p99", "p999"}) {
      EXPECT_LE(json[name]["ci95"][key][0], json[name][key]) << name << " " << key;
      EXPECT_GE(json[name]["ci95"][key][1], json[name][key]) << name << " " << key;
    }
    for (const char* key : {"count", "mean", "p50", "p90", "p99", "p999", "max"}) {
      EXPECT_TRUE(json[name][key].is_number()) << name << " " << key;
    }
  }
  EXPECT_TRUE(json["requests"].is_number_integer());
  EXPECT_TRUE(json["errors_by_code"].is_object());
  EXPECT_TRUE(json["goodput"].is_null());
  answers.pop_back();
  EXPECT_TRUE(to_json(report_of(answers, 0, 1))["ttft_ms"]["ci95"].is_null());
}

RequestRecord said(int64_t index, int prompt, std::vector<int32_t> tokens, bool stopped = false) {
  RequestRecord record;
  record.index = index;
  record.prompt = prompt;
  record.token_ids = std::move(tokens);
  record.stopped = stopped;
  return record;
}

TEST(GreedyCheck, TakesWhatIsTheSame) {
  RequestRecord broken_off = said(5, 1, {1, 2});
  broken_off.status = "UNAVAILABLE";
  const GreedyCheck check = check_greedy({
      said(0, 1, {1, 2, 3, 4}),
      said(1, 1, {1, 2, 3, 4}),
      said(2, 1, {1, 2, 3}),  // fewer max_tokens
      said(3, 2, {9}),        // another prompt
      said(4, 3, {5, 6}, true),
      broken_off,
      said(6, 3, {5, 6}),  // max_tokens came where the end is
      said(7, 3, {}),
  });
  EXPECT_EQ(check.num_compared, 4);
  EXPECT_TRUE(check.differences.empty());
}

TEST(GreedyCheck, SeesWhatIsNot) {
  const GreedyCheck check = check_greedy({
      said(0, 1, {1, 2, 3, 4}),
      said(1, 1, {1, 2, 7, 4}),
      said(2, 1, {8}),
      said(3, 1, {1, 2}, true),  // came to its own end where the other one went on
      said(4, 2, {1, 2}),
      said(5, 2, {1, 2, 3}),
  });
  EXPECT_EQ(check.num_compared, 4);
  ASSERT_EQ(check.differences.size(), 3u);
  EXPECT_EQ(check.differences[0].request, 1);
  EXPECT_EQ(check.differences[0].other, 0);
  EXPECT_EQ(check.differences[0].prompt, 1);
  EXPECT_EQ(check.differences[0].position, 2);
  EXPECT_EQ(check.differences[1].position, 0);
  EXPECT_EQ(check.differences[2].request, 3);
  EXPECT_EQ(check.differences[2].position, 2);
}

}  // namespace
}  // namespace outrider
