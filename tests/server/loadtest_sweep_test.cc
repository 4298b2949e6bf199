// Sweeps and comparisons without a server: when a load is too much, where the knee is, who asks
// when, and what the ratios say.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "launcher/loadtest/comparison.h"
#include "launcher/loadtest/load_plan.h"
#include "launcher/loadtest/sweep.h"
#include "testing/one_line_error.h"

namespace outrider {
namespace {

constexpr double kDurationS = 40;

// What a server brings that answers one after the other, each in service_s.
LoadResult queue(double rate, double service_s, uint64_t seed) {
  LoadResult load{.load_end_s = kDurationS};
  double free_s = 0;
  for (const double due_s : open_loop(rate, kDurationS, LoadPlan().max_requests, seed).due_s) {
    free_s = std::max(free_s, due_s) + service_s;
    RequestRecord record;
    record.index = record.question = static_cast<int64_t>(load.records.size());
    record.due_s = record.sent_s = due_s;
    record.end_s = free_s;
    record.chunks = {{free_s - service_s / 2, 1}, {free_s, 1}};
    record.token_ids = {1, 2};
    load.records.push_back(record);
  }
  return load;
}

TEST(Sweep, IsRead) {
  EXPECT_EQ(parse_sweep("rate=0.5,1,8").values, (std::vector<double>{0.5, 1, 8}));
  EXPECT_EQ(parse_sweep("rate=0.5,1,8").name(0.5), "rate=0.5");
  EXPECT_EQ(parse_sweep("users=3").variable, SweepValues::Variable::users);
  EXPECT_EQ(parse_sweep("users=3").name(3), "users=3");
  for (const char* text :
       {"", "rate", "rate=", "rate=0", "rate=-1", "rate=nan", "rate=inf", "rate=1,", "rate=1,x",
        "rate=2,1", "rate=1,1", "users=1.5", "users=0", "users=99999", "speed=1", "rate=1=2"}) {
    expect_one_line_error({text}, [&] { parse_sweep(text); });
  }
}

// Half, and one and a half times, of what the server can do, whatever the arrivals.
TEST(Sweep, SeesSaturation) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_FALSE(is_saturated({queue(5, 0.1, seed)}, 0)) << seed;
    EXPECT_FALSE(is_saturated({queue(5, 0.1, seed)}, 10)) << seed;
    EXPECT_TRUE(is_saturated({queue(15, 0.1, seed)}, 0)) << seed;
    EXPECT_TRUE(is_saturated({queue(15, 0.1, seed)}, 10)) << seed;
  }
}

// Where a number of requests is sent, the load ends with the last answer: that is no sign of rest.
TEST(Sweep, TheDrainIsNotTheLoad) {
  LoadResult load = queue(15, 0.1, 1);
  for (const RequestRecord& record : load.records) {
    load.load_end_s = std::max(load.load_end_s, record.end_s);
  }
  EXPECT_TRUE(is_saturated({load}, 0));
}

// An answer that takes a quarter of the test is slow, but the server keeps up.
TEST(Sweep, SlowIsNotSaturated) {
  LoadResult load = queue(5, 0.001, 1);
  for (RequestRecord& record : load.records) record.end_s += kDurationS / 4;
  EXPECT_FALSE(is_saturated({load}, 0));
}

TEST(Sweep, RefusingIsSaturation) {
  LoadResult load = queue(5, 0.1, 1);
  const size_t tenth = load.records.size() / 10;
  for (size_t i = 0; i < tenth; ++i) load.records[i].status = "RESOURCE_EXHAUSTED";
  EXPECT_FALSE(is_saturated({load}, 0));
  for (size_t i = 0; i < tenth + 2; ++i) load.records[i].status = "RESOURCE_EXHAUSTED";
  EXPECT_TRUE(is_saturated({load}, 0));
}

TEST(Sweep, OtherErrorsAreTheServersFailure) {
  LoadResult load = queue(5, 0.1, 1);
  const size_t tenth = load.records.size() / 10;
  for (size_t i = 0; i < tenth; ++i) load.records[i].status = "UNAVAILABLE";
  EXPECT_FALSE(server_failed({load}, 0));
  for (size_t i = 0; i < tenth + 2; ++i) load.records[i].status = "UNAVAILABLE";
  EXPECT_FALSE(is_saturated({load}, 0));
  EXPECT_TRUE(server_failed({load}, 0));
  EXPECT_FALSE(server_failed({load}, kDurationS / 2));  // in the warm-up
  load.gave_up = true;
  EXPECT_TRUE(server_failed({load}, kDurationS / 2));
  for (RequestRecord& record : load.records) record.status = "DEADLINE_EXCEEDED";
  EXPECT_FALSE(server_failed({load}, 0));
  EXPECT_FALSE(server_failed({}, 0));
}

TEST(Sweep, AnswersNeverComeWhereNothingIsMeasuredEither) {
  LoadResult given_up = queue(5, 0.1, 1);
  given_up.gave_up = true;
  EXPECT_TRUE(is_saturated({given_up}, 1e6));  // within the warm-up
  LoadResult at_once{.load_end_s = 3};         // all due at the beginning
  at_once.records.resize(20);
  EXPECT_FALSE(is_saturated({at_once}, 0));
  for (RequestRecord& record : at_once.records) record.status = "RESOURCE_EXHAUSTED";
  EXPECT_TRUE(is_saturated({at_once}, 0));
}

TEST(Sweep, OfAlmostNothingSaysNothing) {
  EXPECT_FALSE(is_saturated({}, 0));
  EXPECT_FALSE(is_saturated({{.load_end_s = 3}}, 0));
  EXPECT_FALSE(is_saturated({{.load_end_s = 3}}, 5));
  LoadResult one = queue(5, 0.1, 1);
  one.records.erase(one.records.begin(), one.records.end() - 1);  // at its very end
  EXPECT_FALSE(is_saturated({one}, 0));
}

SweepStep step(double value, double requests_per_second, double mean_ms, bool saturated = false) {
  ArmResult arm{.saturated = saturated};
  arm.report.requests = 10;
  arm.report.requests_per_second = requests_per_second;
  arm.report.e2e.count = 10;
  arm.report.e2e.mean = mean_ms;
  return {.value = value, .name = SweepValues().name(value), .arms = {arm}};
}

std::optional<size_t> knee(const std::vector<SweepStep>& steps,
                           const std::string& variable = "users") {
  SweepValues values = parse_sweep(variable + "=1");
  values.values.clear();
  for (const SweepStep& step : steps) values.values.push_back(step.value);
  return find_knee(values, results_of(0, steps));
}

TEST(Sweep, TheKneeIsWherePowerIsGreatest) {
  const SweepValues values = parse_sweep("rate=1,2,4,8");
  std::vector<SweepStep> steps = {step(1, 1, 100), step(2, 2, 110), step(4, 4, 150),
                                  step(8, 5, 200, true)};
  EXPECT_EQ(knee(steps), 2u);
  EXPECT_EQ(to_json(values, steps)["knee"], 4);
  EXPECT_EQ(to_json(values, steps)["saturated_at"], 8);
  EXPECT_EQ(verdicts(values, steps)[0],
            "Knee at rate=4, where throughput / mean latency is greatest; saturated at rate=8");
  steps[2].arms[0].report.e2e.mean = 300;
  EXPECT_EQ(knee(steps), 1u);
}

// A number of requests has its last answers behind all that was offered, and the more so the faster
// they come. Users offer what they are answered.
TEST(Sweep, TheThroughputOfARateIsWhatWasOffered) {
  std::vector<SweepStep> steps = {step(1, 0.9, 100), step(8, 1.7, 200)};
  EXPECT_EQ(knee(steps, "users"), 0u);
  EXPECT_EQ(knee(steps, "rate"), 1u);
  EXPECT_EQ(to_json(parse_sweep("rate=1,8"), steps)["knee"], 8);
  EXPECT_EQ(verdicts(parse_sweep("rate=1,8"), steps)[0].find("Knee at rate=8"), 0u);
  steps[1].arms[0].report.errors = 8;  // as many as 1.6 a second are answered
  EXPECT_EQ(knee(steps, "rate"), 0u);
}

TEST(Sweep, SaysWhereTheKneeIsOfSurvivors) {
  std::vector<SweepStep> steps = {step(1, 1, 100), step(2, 2, 100), step(4, 4, 500)};
  const SweepValues values = parse_sweep("rate=1,2,4");
  EXPECT_FALSE(has_survivors(steps));
  steps[2].arms[0].report.errors = 1;
  EXPECT_TRUE(has_survivors(steps));
  EXPECT_EQ(verdicts(values, steps)[0],
            "Knee at rate=2, where throughput / mean latency is greatest; not saturated");
  steps[1].arms[0].report.errors = 1;
  EXPECT_EQ(verdicts(values, steps)[0],
            "Knee at rate=2, where throughput / mean latency is greatest (of the answers alone); "
            "not saturated");
  EXPECT_EQ(to_json(values, steps)["steps"][0]["of_answers_alone"], false);
  EXPECT_EQ(to_json(values, steps)["steps"][1]["of_answers_alone"], true);
}

TEST(Sweep, SaysWhatItDoesNotKnow) {
  const SweepValues values = parse_sweep("rate=1,2,4");
  const std::vector<SweepStep> all = {step(1, 1, 100), step(2, 2, 100), step(4, 4, 100)};
  EXPECT_NE(verdicts(values, all)[0].find("rate=4"), std::string::npos);
  EXPECT_NE(verdicts(values, all)[0].find("the highest that was tried"), std::string::npos);
  EXPECT_NE(verdicts(values, all)[0].find("not saturated"), std::string::npos);
  EXPECT_TRUE(to_json(values, all)["saturated_at"].is_null());
  const std::vector<SweepStep> none = {step(1, 1, 100, true)};
  EXPECT_FALSE(knee(none));
  EXPECT_TRUE(to_json(values, none)["knee"].is_null());
  EXPECT_EQ(verdicts(values, none)[0], "No knee; saturated at rate=1, so more was not tried");
  EXPECT_FALSE(knee({SweepStep{.arms = {ArmResult{}}}}));  // nothing was measured
  std::vector<SweepStep> failed = {step(1, 1, 100), step(2, 2, 100)};
  failed[1].arms[0].failed = true;
  EXPECT_EQ(knee(failed), 0u);
  EXPECT_NE(
      verdicts(values, failed)[0].find("; the server failed at rate=2, so more was not tried"),
      std::string::npos);
}

// Turns that grow by no more than chance each; and one that refuses all, among others that do not.
TEST(Sweep, AddsUpTurns) {
  LoadResult growing{.load_end_s = 4};
  for (int i = 0; i < 5; ++i) {
    RequestRecord record;
    record.due_s = i < 4 ? 0.5 * i + 1.4 : 4;
    record.end_s = 10;
    growing.records.push_back(record);
  }
  EXPECT_FALSE(is_saturated({growing}, 0));
  EXPECT_TRUE(is_saturated({growing, growing, growing, growing}, 0));
  LoadResult refused{.load_end_s = 4};
  refused.records.resize(10);
  for (RequestRecord& record : refused.records) record.status = "RESOURCE_EXHAUSTED";
  const LoadResult idle = queue(5, 0.001, 1);
  EXPECT_TRUE(is_saturated({idle, refused, refused, refused, refused}, 0));
  EXPECT_FALSE(is_saturated({idle, refused, idle}, 0));
}

// Each arm has a knee of its own, and the steps that it was asked.
TEST(Sweep, OfAComparisonIsOneOfEachArm) {
  const SweepValues values = parse_sweep("rate=1,2,4,8");
  const auto both = [](SweepStep plain, const SweepStep& speculative) {
    plain.arms.push_back(speculative.arms[0]);
    plain.arms[0].arm = Arm{0};
    plain.arms[1].arm = Arm{};
    return plain;
  };
  std::vector<SweepStep> steps = {both(step(1, 1, 100), step(1, 1, 80)),
                                  both(step(2, 2, 300), step(2, 2, 90)),
                                  both(step(4, 3, 900, true), step(4, 4, 100)), step(8, 7, 150)};
  steps[3].arms[0].arm = Arm{};
  EXPECT_EQ(results_of(0, steps).size(), 3u);
  EXPECT_EQ(results_of(1, steps).size(), 4u);
  const auto lines = verdicts(values, steps);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0],
            "K=0: Knee at rate=1, where throughput / mean latency is greatest; saturated at "
            "rate=4, so more was not tried");
  EXPECT_EQ(lines[1],
            "K=adaptive: Knee at rate=8, where throughput / mean latency is greatest (the highest "
            "that was tried); not saturated");
  const auto json = to_json(values, steps);
  EXPECT_FALSE(json.contains("knee"));
  EXPECT_EQ(json["knees"].dump(), R"([{"arm":"K=0","knee":1.0,"saturated_at":4.0},)"
                                  R"({"arm":"K=adaptive","knee":8.0,"saturated_at":null}])");
  EXPECT_EQ(json["steps"][2]["compare"]["arms"][0]["saturated"], true);
  EXPECT_EQ(json["steps"][2]["compare"]["arms"][1]["saturated"], false);
  EXPECT_EQ(json["steps"][2]["compare"]["ratios"].size(), 1u);
  EXPECT_EQ(json["steps"][3]["compare"]["arms"].size(), 1u);
  EXPECT_EQ(json["steps"][3]["compare"]["ratios"].size(), 0u);
  EXPECT_EQ(ratio_table_rows(steps[3].name, steps[3].arms), "");
  EXPECT_EQ(ratio_table_rows(steps[0].name, steps[0].arms).find("rate=1, K=adaptive / K=0, TTFT"),
            0u);
}

TEST(Arms, AreRead) {
  const std::vector<Arm> arms = parse_arms("K=0,4,adaptive");
  ASSERT_EQ(arms.size(), 3u);
  EXPECT_EQ(arms[0].num_speculative_tokens, 0);
  EXPECT_EQ(arms[1].name(), "K=4");
  EXPECT_FALSE(arms[2].num_speculative_tokens);
  EXPECT_EQ(arms[2].name(), "K=adaptive");
  for (const char* text : {"", "K", "K=", "K=0", "K=0,0", "K=0,16", "K=0,-1", "K=0,1.5", "K=0,x",
                           "k=0,1", "K=0,,1", "K=0,1=2", "K=adaptive,adaptive"}) {
    expect_one_line_error({text, "K=0,4,adaptive"}, [&] { parse_arms(text); });
  }
}

// No arm profits from its place: not from what the one before it left in caches.
TEST(Arms, TakeEveryPlaceEquallyOften) {
  std::map<std::pair<size_t, size_t>, int> times;  // by place and arm
  for (int round = 0; round < 6; ++round) {
    const std::vector<size_t> order = turns(3, round);
    EXPECT_EQ(std::set(order.begin(), order.end()).size(), 3u);
    for (size_t place = 0; place < 3; ++place) ++times[{place, order[place]}];
  }
  EXPECT_EQ(times.size(), 9u);
  for (const auto& [_, count] : times) EXPECT_EQ(count, 2);
}

// Nor from which arm that is: each pair is as frequent as it is the other way round.
TEST(Arms, FollowEitherNeighbourEquallyOften) {
  for (const size_t arms : {2u, 3u, 5u}) {
    std::map<std::pair<size_t, size_t>, int> times;  // the earlier one first
    for (int round = 0; round < 2 * static_cast<int>(arms); ++round) {
      const std::vector<size_t> order = turns(arms, round);
      for (size_t i = 1; i < arms; ++i) ++times[{order[i - 1], order[i]}];
    }
    EXPECT_EQ(times.size(), arms == 2 ? 2 : 2 * arms);
    for (const auto& [pair, count] : times) {
      EXPECT_EQ(count, (times[{pair.second, pair.first}])) << arms;
    }
  }
}

ArmResult arm(std::optional<int32_t> tokens, double service_s) {
  ArmResult result{.arm = Arm{tokens}};
  for (uint64_t round = 0; round < kLeastUnits; ++round) {
    LoadResult load = queue(1, service_s, round);
    for (RequestRecord& record : load.records)
      record.question += static_cast<int64_t>(1000 * round);
    result.loads.push_back(load);
  }
  return result;
}

TEST(Comparison, TellsRatiosToTheFirstArm) {
  std::vector<ArmResult> arms = {arm(0, 0.2), arm(4, 0.1)};
  evaluate(arms, {});
  size_t requests = 0;
  for (const LoadResult& load : arms[0].loads) requests += load.records.size();
  EXPECT_EQ(arms[0].report.requests, static_cast<int64_t>(requests));
  EXPECT_EQ(arms[0].report.measured_s, kLeastUnits * kDurationS);
  EXPECT_FALSE(arms[0].tpot);
  ASSERT_TRUE(arms[1].tpot);
  EXPECT_NEAR(arms[1].tpot->p50, 0.5, 1e-9);
  EXPECT_NEAR(arms[1].tpot->ci95->low.p50, 0.5, 1e-9);  // it is the same for every answer
  EXPECT_NEAR(arms[1].tpot->ci95->high.p50, 0.5, 1e-9);
  EXPECT_LE(arms[1].e2e->p90, 0.5);  // they wait less for each other too
  EXPECT_LE(arms[1].ttft->p90, 0.5);
  EXPECT_NE(ratio_table_rows("", arms).find("K=4 / K=0, TTFT"), std::string::npos);
  EXPECT_NE(ratio_table_rows("", arms).find("K=4 / K=0, TPOT"), std::string::npos);
  EXPECT_NE(ratio_table_rows("", arms).find("0.500 (0.500 to 0.500)"), std::string::npos)
      << ratio_table_rows("", arms);
  const auto json = to_json(arms);
  EXPECT_EQ(json["rounds"], kLeastUnits);
  EXPECT_EQ(json["arms"][1]["num_speculative_tokens"], 4);
  EXPECT_EQ(json["ratios"][0]["arm"], "K=4");
  EXPECT_EQ(json["ratios"][0]["to"], "K=0");
  EXPECT_NEAR(json["ratios"][0]["tpot_ms"]["p99"]["ratio"].get<double>(), 0.5, 1e-9);
  EXPECT_TRUE(json["ratios"][0]["ttft_ms"].is_object());
  EXPECT_EQ(json["arms"][1]["gave_up"], false);
  arms[1].loads[1].gave_up = true;
  EXPECT_EQ(to_json(arms)["arms"][1]["gave_up"], true);
}

// One turn was disturbed: all its answers are slow, and they are one event, not many.
TEST(Comparison, DrawsTurns) {
  std::vector<ArmResult> arms = {{.arm = Arm{0}}, {.arm = Arm{}}};
  for (size_t round = 0; round < kLeastUnits; ++round) {
    for (ArmResult& arm : arms) {
      const bool disturbed = &arm == &arms[1] && round == 1;
      LoadResult load = queue(1, disturbed ? 0.4 : 0.1, 7);
      for (RequestRecord& record : load.records) {
        record.question += static_cast<int64_t>(1000 * round);
      }
      arm.loads.push_back(load);
    }
  }
  evaluate(arms, {});
  EXPECT_GT(arms[1].tpot->p99, 3.9);
  EXPECT_LT(arms[1].tpot->ci95->low.p99, 1.1);  // perhaps it is not slower at all
  EXPECT_LT(arms[1].report.tpot.ci95->low.p99, 0.25 * arms[1].report.tpot.p99 + 1e-9);
}

TEST(Comparison, OfFewRoundsHasNoIntervals) {
  std::vector<ArmResult> arms = {arm(0, 0.2), arm(4, 0.1)};
  for (ArmResult& one : arms) one.loads.pop_back();
  evaluate(arms, {});
  EXPECT_NEAR(arms[1].tpot->p50, 0.5, 1e-9);
  EXPECT_FALSE(arms[1].tpot->ci95);
  EXPECT_FALSE(arms[1].report.tpot.ci95);
  EXPECT_TRUE(to_json(arms)["ratios"][0]["tpot_ms"]["p50"]["ci95"].is_null());
  EXPECT_NE(ratio_table_rows("", arms).find(
                "no intervals: expected 10 rounds or more that measured, found 9 rounds"),
            std::string::npos)
      << ratio_table_rows("", arms);
}

// Ten turns, of which one measured nothing.
TEST(Comparison, OfFewRoundsThatMeasuredHasNoIntervals) {
  std::vector<ArmResult> arms = {arm(0, 0.2), arm(4, 0.1)};
  for (ArmResult& one : arms) one.loads.back().records.clear();
  evaluate(arms, {});
  EXPECT_FALSE(arms[1].tpot->ci95);
  EXPECT_NE(ratio_table_rows("", arms).find("no intervals: expected 10 rounds"), std::string::npos)
      << ratio_table_rows("", arms);
}

TEST(Comparison, OfNothingIsNull) {
  std::vector<ArmResult> arms = {arm(0, 0.2), {.arm = Arm{}, .loads = {{.load_end_s = 1}}}};
  evaluate(arms, {});
  EXPECT_FALSE(arms[1].tpot);
  EXPECT_TRUE(to_json(arms)["ratios"][0]["e2e_ms"].is_null());
  EXPECT_NE(ratio_table_rows("", arms).find("n/a"), std::string::npos);
}

}  // namespace
}  // namespace outrider
