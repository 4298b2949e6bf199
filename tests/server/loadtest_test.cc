// The parts of a load test that need no server: what is asked when, and what is made of the
// answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "launcher/loadtest/distribution.h"
#include "launcher/loadtest/greedy_check.h"
#include "launcher/loadtest/load_plan.h"
#include "launcher/loadtest/prompts.h"
#include "launcher/loadtest/report.h"
#include "testing/one_line_error.h"
#include "testing/temporary_directory.h"

namespace outrider {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

std::vector<double> one_to(int count) {
  std::vector<double> values;
  for (int i = count; i >= 1; --i) values.push_back(i);
  return values;
}

TEST(Distribution, IsExact) {
  const Distribution thousand = summarise(one_to(1000));
  EXPECT_EQ(thousand.count, 1000);
  EXPECT_EQ(thousand.mean, 500.5);
  EXPECT_EQ(thousand.p50, 500);
  EXPECT_EQ(thousand.p90, 900);
  EXPECT_EQ(thousand.p99, 990);
  EXPECT_EQ(thousand.p999, 999);
  EXPECT_EQ(thousand.max, 1000);
  EXPECT_EQ(summarise(one_to(1001)).p999, 1000);
  EXPECT_EQ(summarise(one_to(100)).p999, 100);
  EXPECT_EQ(summarise(one_to(3)).p50, 2);
  EXPECT_EQ(summarise({7}).p50, 7);
  EXPECT_EQ(summarise({7}).p999, 7);
  EXPECT_EQ(summarise({}).count, 0);
  EXPECT_EQ(summarise({}).mean, 0);
}

// The definition, by counting: enough samples are at most the percentile, and not without it.
TEST(Distribution, IsTheSmallestSampleThatCoversItsShare) {
  std::mt19937 random(1);
  for (int size = 1; size < 400; ++size) {
    std::vector<double> samples;
    for (int i = 0; i < size; ++i) samples.push_back(static_cast<double>(random() % 50));
    const Distribution d = summarise(samples);
    const std::pair<double, int> percentiles[] = {
        {d.p50, 500}, {d.p90, 900}, {d.p99, 990}, {d.p999, 999}};
    for (const auto& [value, per_mille] : percentiles) {
      const auto at_most =
          std::count_if(samples.begin(), samples.end(), [v = value](double s) { return s <= v; });
      const auto below =
          std::count_if(samples.begin(), samples.end(), [v = value](double s) { return s < v; });
      EXPECT_GE(1000 * at_most, per_mille * size);
      EXPECT_LT(1000 * below, per_mille * size);
      EXPECT_NE(std::find(samples.begin(), samples.end(), value), samples.end());
    }
  }
}

TEST(OpenLoop, FollowsFromItsSeed) {
  const LoadPlan plan = open_loop(100, 20, kAny, 1);
  EXPECT_FALSE(plan.closed_loop);
  EXPECT_TRUE(std::is_sorted(plan.due_s.begin(), plan.due_s.end()));
  EXPECT_GE(plan.due_s.front(), 0);
  EXPECT_LT(plan.due_s.back(), 20);
  EXPECT_EQ(plan.due_s, open_loop(100, 20, kAny, 1).due_s);
  EXPECT_NE(plan.due_s, open_loop(100, 20, kAny, 2).due_s);
  EXPECT_NE(plan.due_s, open_loop(100, 20, kAny, 1ull << 32 | 1).due_s);
  EXPECT_EQ(open_loop(100, kForever, 7, 1).due_s.size(), 7u);
  EXPECT_EQ(open_loop(1e-6, 1, kAny, 1).due_s.size(), 0u);
}

// Gaps are exponential (Kolmogorov and Smirnov, at 1 in 1000), and arrivals a second are spread as
// Poisson's are: variance and mean are equal.
TEST(OpenLoop, IsAPoissonProcess) {
  const double rate = 50;
  const int seconds = 2000;
  const std::vector<double> due = open_loop(rate, seconds, kAny, 3).due_s;
  std::vector<double> gaps, counts(seconds);
  for (size_t i = 0; i < due.size(); ++i) {
    gaps.push_back(due[i] - (i == 0 ? 0 : due[i - 1]));
    ++counts[static_cast<size_t>(due[i])];
  }
  std::sort(gaps.begin(), gaps.end());
  const auto n = static_cast<double>(gaps.size());
  double distance = 0;
  for (size_t i = 0; i < gaps.size(); ++i) {
    const double expected = 1 - std::exp(-rate * gaps[i]);
    distance = std::max({distance, std::abs(expected - static_cast<double>(i) / n),
                         std::abs(expected - static_cast<double>(i + 1) / n)});
  }
  EXPECT_LT(distance, 1.95 / std::sqrt(n));
  double variance = 0;
  for (const double count : counts) variance += (count - rate) * (count - rate) / seconds;
  EXPECT_NEAR(variance / rate, 1, 5 * std::sqrt(2.0 / seconds));
}

TEST(ClosedLoop, HasItsUsersAtTheStart) {
  const LoadPlan plan = closed_loop(3, 10, 99);
  EXPECT_TRUE(plan.closed_loop);
  EXPECT_EQ(plan.due_s, std::vector<double>(3, 0.0));
  EXPECT_EQ(plan.duration_s, 10);
  EXPECT_EQ(plan.max_requests, 99);
}

TEST(OutputLength, IsRead) {
  EXPECT_EQ(parse_output_length("fixed:7")->least, 7);
  EXPECT_EQ(parse_output_length("fixed:7")->most, 7);
  EXPECT_EQ(parse_output_length("uniform:3:9")->least, 3);
  EXPECT_EQ(parse_output_length("uniform:3:9")->most, 9);
  for (const char* text :
       {"", "7", "fixed", "fixed:", "fixed:0", "fixed:-1", "fixed:1.5", "fixed:1 ", "fixed:1:2",
        "fixed:99999999999", "uniform:", "uniform:3", "uniform:3:", "uniform:9:3", "uniform:0:3",
        "uniform:1:2:3", "normal:1:2"}) {
    EXPECT_FALSE(parse_output_length(text)) << text;
  }
}

std::vector<RequestDraws::Draw> draw(int count, int num_prompts, OutputLength length,
                                     uint64_t seed) {
  RequestDraws draws(num_prompts, length, seed);
  std::vector<RequestDraws::Draw> drawn;
  for (int i = 0; i < count; ++i) drawn.push_back(draws.next());
  return drawn;
}

TEST(RequestDraws, AskEveryPromptEquallyOften) {
  std::map<int, int> times;
  std::vector<std::vector<int>> passes(20);
  const auto drawn = draw(140, 7, {5, 5}, 1);
  for (size_t i = 0; i < drawn.size(); ++i) {
    ++times[drawn[i].prompt];
    passes[i / 7].push_back(drawn[i].prompt);
  }
  ASSERT_EQ(times.size(), 7u);
  for (const auto& [prompt, count] : times) EXPECT_EQ(count, 20) << prompt;
  EXPECT_GT(std::set(passes.begin(), passes.end()).size(), 15u);  // in ever new orders
}

TEST(RequestDraws, DrawLengthsFromTheWholeRange) {
  std::map<int, int> times;
  for (const auto& one : draw(4000, 3, {10, 13}, 1)) ++times[one.max_tokens];
  ASSERT_EQ(times.size(), 4u);
  for (int length = 10; length <= 13; ++length) EXPECT_NEAR(times[length], 1000, 150);
}

TEST(RequestDraws, FollowFromTheirSeed) {
  const auto one = draw(50, 9, {1, 100}, 4), again = draw(50, 9, {1, 100}, 4),
             other = draw(50, 9, {1, 100}, 5), longer = draw(50, 9, {1, 999}, 4);
  std::set<uint64_t> seeds;
  int others = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].prompt, again[i].prompt);
    EXPECT_EQ(one[i].max_tokens, again[i].max_tokens);
    EXPECT_EQ(one[i].seed, again[i].seed);
    EXPECT_EQ(one[i].prompt, longer[i].prompt);  // lengths do not change the order
    others += one[i].max_tokens != other[i].max_tokens ? 1 : 0;
    seeds.insert(one[i].seed);
  }
  EXPECT_GT(others, 40);
  EXPECT_EQ(seeds.size(), one.size());
}

TEST(Prompts, TheBuiltInOnesAreOfAllLengths) {
  const std::vector<std::string>& prompts = builtin_prompts();
  EXPECT_GE(prompts.size(), 30u);
  EXPECT_EQ(std::set(prompts.begin(), prompts.end()).size(), prompts.size());
  const auto with = [&](auto condition) {
    return std::count_if(prompts.begin(), prompts.end(), condition);
  };
  EXPECT_EQ(with([](const std::string& prompt) { return prompt.empty(); }), 0);
  EXPECT_GE(with([](const std::string& prompt) { return prompt.size() < 50; }), 3);
  EXPECT_GE(with([](const std::string& prompt) { return prompt.size() > 1500; }), 2);
}

TEST(Prompts, AreReadFromJsonLines) {
  const TemporaryDirectory directory;
  directory.write("p.jsonl",
                  "{\"text\": \"one\", \"kind\": 3}\r\n\n  \n{\"text\": \"tw\\u00f6\\n\"}");
  EXPECT_EQ(read_prompts(directory.path() / "p.jsonl"), (std::vector<std::string>{"one", "twö\n"}));
}

TEST(Prompts, ABrokenFileNamesItsLine) {
  const TemporaryDirectory directory;
  const auto refuses = [&](const std::string& text, const std::vector<std::string>& parts) {
    directory.write("p.jsonl", text);
    expect_one_line_error(parts, [&] { read_prompts(directory.path() / "p.jsonl"); });
  };
  const std::string good = "{\"text\": \"one\"}\n";
  refuses(good + "\n{\"text\": \"two\"\n" + good, {"p.jsonl:3:", "no JSON"});
  refuses("plain words\n", {"p.jsonl:1:", "no JSON"});
  refuses("{\"text\": \"\xff\"}\n", {"p.jsonl:1:", "no JSON"});
  refuses(good + "[\"two\"]", {"p.jsonl:2:", "array"});
  refuses(good + "{\"prompt\": \"two\"}", {"p.jsonl:2:", "none"});
  refuses(good + "{\"text\": 3}", {"p.jsonl:2:", "number"});
  refuses(good + "{\"text\": \"\"}", {"p.jsonl:2:", "empty"});
  refuses("", {"p.jsonl:", "no prompt"});
  refuses("\n\n", {"p.jsonl:", "no prompt"});
  expect_one_line_error({"nothing-here", "cannot be opened"},
                        [&] { read_prompts(directory.path() / "nothing-here"); });
  expect_one_line_error({directory.path().string()}, [&] { read_prompts(directory.path()); });
}

// Due at due_s, its first chunk 0.1 s later, then one of two tokens each 0.02 s.
RequestRecord answer(int64_t index, double due_s, int num_chunks) {
  RequestRecord record;
  record.index = index;
  record.due_s = due_s;
  record.sent_s = due_s + 0.001;
  for (int i = 0; i < num_chunks; ++i) {
    record.chunks.push_back({due_s + 0.1 + 0.02 * i, 2});
    record.token_ids.insert(record.token_ids.end(), {2 * i, 2 * i + 1});
  }
  record.end_s = record.chunks.back().at_s + 0.01;
  record.prompt_tokens = 3;
  record.queue_ms = 5;
  record.num_spec_steps = 1;
  record.num_draft_tokens = 4;
  record.num_accepted_draft_tokens = 1;
  record.mean_acceptance_length = 2;
  return record;
}

RequestRecord failure(int64_t index, double due_s, const std::string& status,
                      const std::string& error) {
  RequestRecord record;
  record.index = index;
  record.due_s = record.sent_s = due_s;
  record.end_s = due_s + 0.001;
  record.status = status;
  record.error = error;
  return record;
}

TEST(Report, MeasuresFromWhenARequestWasDue) {
  const LoadReport report = make_report({answer(0, 1.0, 5)}, 0, 2);
  EXPECT_EQ(report.requests, 1);
  EXPECT_NEAR(report.ttft.mean, 100, 1e-9);
  EXPECT_NEAR(report.e2e.mean, 190, 1e-9);
  EXPECT_NEAR(report.tpot.mean, 90.0 / 9, 1e-9);  // 10 tokens
  EXPECT_NEAR(report.e2e.mean, report.ttft.mean + 9 * report.tpot.mean, 1e-9);
  EXPECT_EQ(report.itl.count, 4);
  EXPECT_NEAR(report.itl.max, 20, 1e-9);
  EXPECT_NEAR(report.send_delay.mean, 1, 1e-9);
  EXPECT_EQ(report.queue.mean, 5);
  EXPECT_NEAR(report.tokens_per_second, 5, 1e-9);
  EXPECT_NEAR(report.requests_per_second, 0.5, 1e-9);
  EXPECT_EQ(report.prompt_tokens, 3);
  EXPECT_EQ(report.completion_tokens, 10);
  EXPECT_EQ(report.draft_acceptance_rate, 0.25);
  EXPECT_EQ(report.mean_acceptance_length, 2);
}

TEST(Report, AnAnswerOfOneTokenHasNoPace) {
  RequestRecord record = answer(0, 0, 1);
  record.token_ids = {1};
  record.chunks[0].num_tokens = 1;
  const LoadReport report = make_report({record}, 0, 1);
  EXPECT_EQ(report.ttft.count, 1);
  EXPECT_EQ(report.tpot.count, 0);
  EXPECT_EQ(report.itl.count, 0);
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
  const LoadReport report = make_report(records, 0.99, 2);
  EXPECT_EQ(report.requests, 2);
  EXPECT_EQ(report.errors, 0);
  EXPECT_EQ(report.warmup_requests, 3);
  EXPECT_EQ(report.warmup_errors, 1);
  EXPECT_EQ(report.e2e.count, 2);
  EXPECT_NEAR(report.tokens_per_second * 1.01, 8 + 10 + 2, 1e-9);
  EXPECT_NEAR(report.requests_per_second * 1.01, 2, 1e-9);
}

TEST(Report, CountsErrorsByCodeAndKeepsThemOutOfLatencies) {
  const LoadReport report = make_report(
      {failure(0, 0, "UNAVAILABLE", "first"), answer(1, 0, 2),
       failure(2, 0, "UNAVAILABLE", "second"), failure(3, 0, "RESOURCE_EXHAUSTED", "full")},
      0, 1);
  EXPECT_TRUE(report.valid());
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
  const LoadReport report = make_report({cut}, 0, 1);
  EXPECT_EQ(report.requests, 0);
  EXPECT_EQ(report.errors, 0);
  EXPECT_EQ(report.cancelled, 1);
  EXPECT_NEAR(report.tokens_per_second, 10, 1e-9);  // what it had brought counts
  EXPECT_EQ(report.requests_per_second, 0);
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
      const LoadReport report = make_report(records, 0.5, end_s);
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
  const auto json = to_json(make_report({answer(0, 0, 3)}, 0, 1));
  for (const char* name : {"ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queue_ms", "send_delay_ms"}) {
    for (const char* key : {"count", "mean", "p50", "p90", "p99", "p999", "max"}) {
      EXPECT_TRUE(json[name][key].is_number()) << name << " " << key;
    }
  }
  EXPECT_TRUE(json["requests"].is_number_integer());
  EXPECT_TRUE(json["errors_by_code"].is_object());
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
