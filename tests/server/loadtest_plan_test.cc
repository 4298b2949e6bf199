// What a load test asks, and when, without a server.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/loadtest/load_plan.h"
#include "launcher/loadtest/options.h"
#include "launcher/loadtest/prompts.h"
#include "launcher/loadtest/questions.h"
#include "launcher/loadtest/trace.h"
#include "testing/one_line_error.h"
#include "testing/temporary_directory.h"

namespace outrider {
namespace {

constexpr double kEndless = std::numeric_limits<double>::infinity();
constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

TEST(OpenLoop, FollowsFromItsSeed) {
  const LoadPlan plan = open_loop(100, 20, kAny, 1);
  EXPECT_FALSE(plan.closed_loop);
  EXPECT_TRUE(std::is_sorted(plan.due_s.begin(), plan.due_s.end()));
  EXPECT_GE(plan.due_s.front(), 0);
  EXPECT_LT(plan.due_s.back(), 20);
  EXPECT_EQ(plan.due_s, open_loop(100, 20, kAny, 1).due_s);
  EXPECT_NE(plan.due_s, open_loop(100, 20, kAny, 2).due_s);
  EXPECT_NE(plan.due_s, open_loop(100, 20, kAny, 1ull << 32 | 1).due_s);
  EXPECT_EQ(open_loop(100, kEndless, 7, 1).due_s.size(), 7u);
  EXPECT_EQ(open_loop(1e-6, 1, kAny, 1).due_s.size(), 0u);
}

// Seeds that are neighbours share no round; a load that is not compared is round 0.
TEST(OpenLoop, IsAnotherInEachRoundOfEachSeed) {
  LoadtestOptions options;
  options.rate = 100;
  std::set<std::vector<double>> plans;
  for (options.seed = 0; options.seed < 3; ++options.seed) {
    for (int round = 0; round < 3; ++round) plans.insert(options.plan({}, round).due_s);
  }
  EXPECT_EQ(plans.size(), 9u);
  options.seed = 1;
  EXPECT_EQ(options.plan({}).due_s, open_loop(100, options.duration(), kAny, 1).due_s);
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

TEST(Replay, SendsWhenTheTraceSays) {
  const std::vector<double> due = {0, 0.5, 0.5, 2};
  EXPECT_EQ(replay(due, kEndless, kAny).due_s, due);
  EXPECT_EQ(replay(due, 2, kAny).due_s, (std::vector<double>{0, 0.5, 0.5}));
  EXPECT_EQ(replay(due, kEndless, 2).due_s, (std::vector<double>{0, 0.5}));
  EXPECT_FALSE(replay(due, kEndless, 2).closed_loop);
}

// So that it ends with the last answer, not with a duration that is longer than the trace.
TEST(Replay, OfTheWholeTraceIsANumberOfRequests) {
  const std::vector<double> due = {0, 0.5, 0.5, 2};
  EXPECT_EQ(replay(due, 60, kAny).max_requests, 4);
  EXPECT_EQ(replay(due, 60, 2).max_requests, 2);
  EXPECT_GT(replay(due, 2, kAny).max_requests, std::ssize(replay(due, 2, kAny).due_s));
}

TEST(LengthDistribution, IsRead) {
  EXPECT_EQ(parse_length_distribution("fixed:7")->least, 7);
  EXPECT_EQ(parse_length_distribution("fixed:7")->most, 7);
  EXPECT_EQ(parse_length_distribution("uniform:3:9")->least, 3);
  EXPECT_EQ(parse_length_distribution("uniform:3:9")->most, 9);
  const auto lognormal = parse_length_distribution("lognormal:100:0.5:900");
  EXPECT_EQ(lognormal->median, 100);
  EXPECT_EQ(lognormal->sigma, 0.5);
  EXPECT_EQ(lognormal->most, 900);
  for (const char* text : {"fixed:7", "uniform:3:9", "lognormal:100:0.5:900"}) {
    EXPECT_EQ(parse_length_distribution(text)->text(), text);
  }
  for (const char* text : {"",
                           "7",
                           "fixed",
                           "fixed:",
                           "fixed:0",
                           "fixed:-1",
                           "fixed:+1",
                           "fixed:1.5",
                           "fixed:1 ",
                           "fixed:1:2",
                           "fixed:99999999999",
                           "uniform:",
                           "uniform:3",
                           "uniform:3:",
                           "uniform:9:3",
                           "uniform:0:3",
                           "uniform:1:2:3",
                           "normal:1:2",
                           "lognormal:9:1",
                           "lognormal:9:0:20",
                           "lognormal:9:-1:20",
                           "lognormal:9:nan:20",
                           "lognormal:9:inf:20",
                           "lognormal:21:1:20",
                           "lognormal:0:1:20",
                           "lognormal:9:1:20:30"}) {
    EXPECT_FALSE(parse_length_distribution(text)) << text;
  }
}

TEST(LengthDistribution, UniformIsOverTheWholeRange) {
  std::mt19937_64 random(1);
  std::map<int, int> times;
  for (int i = 0; i < 4000; ++i) ++times[parse_length_distribution("uniform:10:13")->draw(random)];
  ASSERT_EQ(times.size(), 4u);
  for (int length = 10; length <= 13; ++length) EXPECT_NEAR(times[length], 1000, 150);
}

// The logarithms are normal: as many as should be within one and two deviations of the median, at
// five deviations of those counts. Rounding to whole tokens moves the bounds by less than 0.001.
TEST(LengthDistribution, LognormalIsSo) {
  constexpr int kDraws = 20'000;
  const auto lengths = *parse_length_distribution("lognormal:5000:0.5:1000000");
  std::mt19937_64 random(1);
  int below_median = 0, within_one = 0, within_two = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double deviations = std::log(lengths.draw(random) / 5000.0) / 0.5;
    below_median += deviations < 0 ? 1 : 0;
    within_one += std::abs(deviations) < 1 ? 1 : 0;
    within_two += std::abs(deviations) < 2 ? 1 : 0;
  }
  for (const auto& [count, share] :
       {std::pair(below_median, 0.5), {within_one, 0.6826895}, {within_two, 0.9544997}}) {
    EXPECT_NEAR(static_cast<double>(count) / kDraws, share,
                5 * std::sqrt(share * (1 - share) / kDraws) + 0.001);
  }
}

TEST(LengthDistribution, LognormalIsClipped) {
  const auto lengths = *parse_length_distribution("lognormal:3:2:5");
  std::mt19937_64 random(1);
  std::map<int, int> times;
  for (int i = 0; i < 1000; ++i) ++times[lengths.draw(random)];
  EXPECT_EQ(times.begin()->first, 1);
  EXPECT_EQ(times.rbegin()->first, 5);
}

QuestionSource prompts_named(int count, const std::string& output_length) {
  QuestionSource source{.output_length = *parse_length_distribution(output_length)};
  for (int i = 0; i < count; ++i) source.prompts.push_back("prompt " + std::to_string(i));
  return source;
}

std::vector<Question> ask(int count, const QuestionSource& source, uint64_t seed) {
  Questions questions(source, seed);
  std::vector<Question> asked;
  for (int i = 0; i < count; ++i) asked.push_back(questions.next());
  return asked;
}

TEST(Questions, AskEveryPromptEquallyOften) {
  std::map<int, int> times;
  std::vector<std::vector<int>> passes(20);
  const auto asked = ask(140, prompts_named(7, "fixed:5"), 1);
  for (size_t i = 0; i < asked.size(); ++i) {
    ++times[asked[i].prompt];
    passes[i / 7].push_back(asked[i].prompt);
    EXPECT_EQ(asked[i].text, "prompt " + std::to_string(asked[i].prompt));
    EXPECT_EQ(asked[i].max_tokens, 5);
  }
  ASSERT_EQ(times.size(), 7u);
  for (const auto& [prompt, count] : times) EXPECT_EQ(count, 20) << prompt;
  EXPECT_GT(std::set(passes.begin(), passes.end()).size(), 15u);  // in ever new orders
}

TEST(Questions, FollowFromTheirSeed) {
  const QuestionSource source = prompts_named(9, "uniform:1:100");
  const auto one = ask(50, source, 4), again = ask(50, source, 4), other = ask(50, source, 5),
             longer = ask(50, prompts_named(9, "uniform:1:999"), 4);
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

TEST(Questions, ACopyGoesOnAlike) {
  const QuestionSource source = prompts_named(9, "uniform:1:100");
  Questions questions(source, 1);
  questions.next();
  Questions copy = questions;
  for (int i = 0; i < 30; ++i) {
    const Question one = questions.next(), other = copy.next();
    EXPECT_EQ(one.text, other.text);
    EXPECT_EQ(one.max_tokens, other.max_tokens);
    EXPECT_EQ(one.seed, other.seed);
  }
}

TEST(Questions, MayBeRandomTokens) {
  QuestionSource source{.prompt_length = parse_length_distribution("uniform:5:9"),
                        .vocab_size = 40};
  std::set<std::vector<int32_t>> prompts;
  std::set<size_t> lengths;
  std::set<int32_t> ids;
  for (const Question& question : ask(100, source, 1)) {
    EXPECT_TRUE(question.text.empty());
    EXPECT_EQ(question.prompt, static_cast<int>(prompts.size()));
    prompts.insert(question.input_ids);
    lengths.insert(question.input_ids.size());
    ids.insert(question.input_ids.begin(), question.input_ids.end());
  }
  EXPECT_EQ(prompts.size(), 100u);
  EXPECT_EQ(lengths, (std::set<size_t>{5, 6, 7, 8, 9}));
  EXPECT_EQ(ids.size(), 40u);
  EXPECT_EQ(*ids.begin(), 0);
  EXPECT_EQ(*ids.rbegin(), 39);
}

TEST(Questions, MayComeFromATrace) {
  const QuestionSource source{
      .trace = {{.text = "one", .output_length = 3}, {.due_s = 1, .input_length = 7}},
      .prompts = {"not this one"},
      .output_length = LengthDistribution::fixed(5),
      .vocab_size = 10};
  const auto asked = ask(2, source, 1);
  EXPECT_EQ(asked[0].text, "one");
  EXPECT_EQ(asked[0].max_tokens, 3);
  EXPECT_EQ(asked[1].input_ids.size(), 7u);
  EXPECT_EQ(asked[1].max_tokens, 5);
  EXPECT_EQ(asked[1].prompt, 1);
}

// As prefixes are shared in the trace, whatever stands between; the last block is cut.
TEST(Questions, BlocksOfEqualIdsAreEqual) {
  const QuestionSource source{.trace = {{.input_length = 1300, .hash_ids = {0, 7, 9}},
                                        {.input_length = 40},
                                        {.input_length = 1536, .hash_ids = {0, 7, 1ull << 32}},
                                        {.input_length = 600, .hash_ids = {7, 0}}},
                              .vocab_size = 1000};
  const auto asked = ask(4, source, 1), again = ask(4, source, 1), other = ask(4, source, 2);
  const auto part = [](const Question& question, size_t begin, size_t end) {
    const auto from = question.input_ids.begin();
    return std::vector<int32_t>(from + static_cast<std::ptrdiff_t>(begin),
                                from + static_cast<std::ptrdiff_t>(end));
  };
  for (size_t i = 0; i < asked.size(); ++i) {
    ASSERT_EQ(asked[i].input_ids.size(), static_cast<size_t>(source.trace[i].input_length));
    EXPECT_EQ(asked[i].input_ids, again[i].input_ids);
    EXPECT_NE(asked[i].input_ids, other[i].input_ids);
  }
  EXPECT_EQ(part(asked[0], 0, 1024), part(asked[2], 0, 1024));
  EXPECT_NE(part(asked[0], 1024, 1300), part(asked[2], 1024, 1300));
  EXPECT_EQ(part(asked[0], 512, 1024), part(asked[3], 0, 512));
  EXPECT_EQ(part(asked[0], 0, 88), part(asked[3], 512, 600));
  EXPECT_NE(part(asked[0], 0, 40), part(asked[0], 512, 552));
  EXPECT_NE(part(asked[0], 0, 40), part(asked[1], 0, 40));
}

TEST(LoadTrace, IsReadFromJsonLines) {
  const TemporaryDirectory directory;
  directory.write("t.jsonl",
                  "{\"timestamp\": 5000, \"input_length\": 1025, \"output_length\": 52, "
                  "\"hash_ids\": [46, 0, 18446744073709551615]}\n\n"
                  "{\"timestamp\": 5000.5, \"text\": \"x\"}\n");
  const auto trace = read_trace(directory.path() / "t.jsonl");
  ASSERT_EQ(trace.size(), 2u);
  EXPECT_EQ(trace[0].due_s, 0);
  EXPECT_EQ(trace[0].input_length, 1025);
  EXPECT_EQ(trace[0].hash_ids, (std::vector<uint64_t>{46, 0, ~uint64_t{0}}));
  EXPECT_EQ(trace[0].output_length, 52);
  EXPECT_NEAR(trace[1].due_s, 0.0005, 1e-9);
  EXPECT_EQ(trace[1].text, "x");
  EXPECT_TRUE(trace[1].hash_ids.empty());
  EXPECT_FALSE(trace[1].output_length);
}

TEST(LoadTrace, ABrokenFileNamesItsLine) {
  const TemporaryDirectory directory;
  const auto refuses = [&](const std::string& text, const std::vector<std::string>& parts) {
    directory.write("t.jsonl", text);
    expect_one_line_error(parts, [&] { read_trace(directory.path() / "t.jsonl"); });
  };
  const std::string good = "{\"timestamp\": 5, \"text\": \"x\"}\n";
  refuses(good + "\n{\"timestamp\": 6", {"t.jsonl:3:", "no JSON"});
  refuses(good + "7", {"t.jsonl:2:", "number"});
  refuses(good + "{\"text\": \"x\"}", {"t.jsonl:2:", "timestamp", "none"});
  refuses("{\"timestamp\": \"5\", \"text\": \"x\"}", {"t.jsonl:1:", "timestamp", "string"});
  refuses(good + "{\"timestamp\": 4, \"text\": \"x\"}", {"t.jsonl:2:", "less than"});
  refuses("{\"timestamp\": 5}", {"t.jsonl:1:", "neither"});
  refuses("{\"timestamp\": 5, \"text\": \"x\", \"input_length\": 3}", {"t.jsonl:1:", "both"});
  refuses("{\"timestamp\": 5, \"text\": \"\"}", {"t.jsonl:1:", "empty"});
  for (const char* length : {"0", "-1", "1.5", "\"3\"", "1e99", "99999999999"}) {
    refuses(std::string("{\"timestamp\": 5, \"input_length\": ") + length + "}",
            {"t.jsonl:1:", "input_length", "whole number"});
    refuses(std::string("{\"timestamp\": 5, \"text\": \"x\", \"output_length\": ") + length + "}",
            {"t.jsonl:1:", "output_length"});
  }
  refuses(good + "{\"timestamp\": 5, \"text\": \"x\", \"hash_ids\": [1]}",
          {"t.jsonl:2:", "hash_ids", "beside \"input_length\""});
  const std::pair<const char*, const char*> hash_ids[] = {
      {"7", "array"},          {"null", "array"},
      {"[1, -1]", "-1"},       {"[1, 2.5]", "2.5"},
      {"[1, \"2\"]", "\"2\""}, {"[1, [2]]", "[2]"},
      {"[]", "found 0"},       {"[1]", "expected 2 \"hash_ids\""},
      {"[1, 2, 3]", "found 3"}};
  for (const auto& [ids, said] : hash_ids) {
    refuses(std::string("{\"timestamp\": 5, \"input_length\": 513, \"hash_ids\": ") + ids + "}",
            {"t.jsonl:1:", "hash_ids", said});
  }
  refuses("", {"t.jsonl:", "no request"});
  expect_one_line_error({"nothing-here", "cannot be opened"},
                        [&] { read_trace(directory.path() / "nothing-here"); });
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

}  // namespace
}  // namespace outrider
