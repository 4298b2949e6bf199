// See sweep.h.
#include "launcher/loadtest/sweep.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kHighest[] = " (the highest that was tried)";
constexpr char kAnswersAlone[] = " (of the answers alone)";
constexpr double kGrowingShare = 0.1;
constexpr double kDeviations = 2;  // of a Poisson count: what chance may do

// The mean number of requests that were due and not over, from begin_s to end_s.
double mean_in_system(const std::vector<RequestRecord>& records, double begin_s, double end_s) {
  double total_s = 0;
  for (const RequestRecord& record : records) {
    total_s += std::max(0.0, std::min(record.end_s, end_s) - std::max(record.due_s, begin_s));
  }
  return total_s / (end_s - begin_s);
}

const char* name_of(SweepValues::Variable variable) {
  return variable == SweepValues::Variable::rate ? "rate" : "users";
}

}  // namespace

std::string SweepValues::name(double value) const {
  return absl::StrFormat("%s=%g", name_of(variable), value);
}

SweepValues parse_sweep(const std::string& text) {
  const std::string expected = ": expected rate=1,2,4 or users=1,2,4, ascending";
  const std::vector<std::string> sides = absl::StrSplit(text, '=');
  if (sides.size() != 2 || (sides[0] != "rate" && sides[0] != "users")) {
    throw Error(text + expected);
  }
  SweepValues sweep;
  const bool users = sides[0] == "users";
  if (users) sweep.variable = SweepValues::Variable::users;
  const double least = users ? 1 : kLeastRate, most = users ? kMostUsers : kMostRate;
  for (const absl::string_view part : absl::StrSplit(sides[1], ',')) {
    double value = 0;
    if (!absl::SimpleAtod(part, &value) || !(value >= least && value <= most) ||
        (users && value != std::floor(value))) {
      throw Error(absl::StrFormat("%s: \"%s\" is not a %s from %g to %g", text, part,
                                  users ? "whole number" : "number", least, most));
    }
    if (!sweep.values.empty() && value <= sweep.values.back()) throw Error(text + expected);
    sweep.values.push_back(value);
  }
  return sweep;
}

bool is_saturated(const std::vector<LoadResult>& turns, double warmup_s) {
  int64_t requests = 0, overloaded = 0, due_meanwhile = 0;
  double growth = 0;
  for (const LoadResult& load : turns) {
    if (load.gave_up) return true;
    // A number of requests ends the load with their answers: what grows is seen while they are
    // sent.
    double end_s = warmup_s;
    for (const RequestRecord& record : load.records) end_s = std::max(end_s, record.due_s);
    end_s = std::min(end_s, load.load_end_s);
    const double quarter_s = (end_s - warmup_s) / 4;
    for (const RequestRecord& record : load.records) {
      if (!is_measured(record, warmup_s)) continue;
      ++requests;
      overloaded += record.overloaded() ? 1 : 0;
      const double due_s = record.due_s - warmup_s;
      due_meanwhile += due_s >= 1.5 * quarter_s && due_s < 3.5 * quarter_s ? 1 : 0;
    }
    if (quarter_s <= 0) continue;
    growth += mean_in_system(load.records, warmup_s + 3 * quarter_s, end_s) -
              mean_in_system(load.records, warmup_s + quarter_s, warmup_s + 2 * quarter_s);
  }
  if (static_cast<double>(overloaded) > kFailedShare * static_cast<double>(requests)) return true;
  const auto due = static_cast<double>(due_meanwhile);
  return growth > std::max(kGrowingShare * due, kDeviations * std::sqrt(due + 1));
}

std::vector<const ArmResult*> results_of(size_t arm, const std::vector<SweepStep>& steps) {
  std::vector<const ArmResult*> results;
  const std::string name = steps.front().arms[arm].name();
  for (const SweepStep& step : steps) {
    for (const ArmResult& result : step.arms) {
      if (result.name() == name) results.push_back(&result);
    }
  }
  return results;
}

bool has_survivors(const std::vector<SweepStep>& steps) {
  return std::ranges::any_of(steps, [](const SweepStep& step) {
    return std::ranges::any_of(step.arms,
                               [](const ArmResult& arm) { return is_of_survivors(arm.report); });
  });
}

std::optional<size_t> find_knee(const SweepValues& values,
                                const std::vector<const ArmResult*>& results) {
  std::optional<size_t> knee;
  double greatest_power = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const LoadReport& report = results[i]->report;
    if (results[i]->saturated || results[i]->failed) continue;
    if (report.e2e.count == 0 || report.e2e.mean <= 0) continue;
    const double answered =
        static_cast<double>(report.answers()) / static_cast<double>(report.requests);
    const double throughput = values.variable == SweepValues::Variable::rate
                                  ? answered * values.values[i]
                                  : report.requests_per_second;
    const double power = throughput / report.e2e.mean;
    if (power <= greatest_power) continue;
    greatest_power = power;
    knee = i;
  }
  return knee;
}

std::vector<std::string> verdicts(const SweepValues& values, const std::vector<SweepStep>& steps) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < steps.front().arms.size(); ++i) {
    const std::vector<const ArmResult*> results = results_of(i, steps);
    const ArmResult& last = *results.back();
    const SweepStep& last_step = steps[results.size() - 1];
    std::string line = last.arm ? last.name() + ": " : "";
    if (const std::optional<size_t> knee = find_knee(values, results)) {
      line += "Knee at " + steps[*knee].name + ", where throughput / mean latency is greatest";
      if (is_of_survivors(results[*knee]->report)) line += kAnswersAlone;
      if (*knee + 1 == results.size()) line += kHighest;
    } else {
      line += "No knee";
    }
    if (last.saturated || last.failed) {
      line += (last.failed ? "; the server failed at " : "; saturated at ") + last_step.name;
      if (last_step.value != values.values.back()) line += ", so more was not tried";
    } else if (values.variable == SweepValues::Variable::users) {
      // Users wait for their answers, so that the requests in the server never grow.
      const auto most = std::ranges::max_element(
          results, {}, [](const ArmResult* result) { return result->report.tokens_per_second; });
      const auto step = static_cast<size_t>(most - results.begin());
      line += "; throughput is greatest at " + steps[step].name;
      if (step + 1 == results.size()) line += kHighest;
    } else {
      line += "; not saturated";
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

Json to_json(const SweepValues& values, const std::vector<SweepStep>& steps) {
  Json list = Json::array(), knees = Json::array();
  const auto ended = [](const ArmResult& result) {
    return Json{{"saturated", result.saturated}, {"failed", result.failed}};
  };
  for (const SweepStep& step : steps) {
    Json one = {{"value", step.value}};
    const ArmResult& first = step.arms.front();
    if (first.arm) {
      one["compare"] = to_json(step.arms);
      Json& arms = one["compare"]["arms"];
      for (size_t i = 0; i < arms.size(); ++i) arms[i].update(ended(step.arms[i]));
    } else {
      one.update(ended(first));
      one["gave_up"] = first.gave_up();
      one.update(to_json(first.report));
    }
    list.push_back(std::move(one));
  }
  for (size_t i = 0; i < steps.front().arms.size(); ++i) {
    const std::vector<const ArmResult*> results = results_of(i, steps);
    const std::optional<size_t> knee = find_knee(values, results);
    knees.push_back(
        {{"arm", results.front()->name()},
         {"knee", knee ? Json(steps[*knee].value) : Json(nullptr)},
         {"saturated_at",
          results.back()->saturated ? Json(steps[results.size() - 1].value) : Json(nullptr)}});
  }
  Json json = {{"variable", name_of(values.variable)},
               {"values", values.values},
               {"steps", std::move(list)}};
  if (steps.front().arms.front().arm) {
    json["knees"] = std::move(knees);
  } else {
    json["knee"] = knees[0]["knee"];
    json["saturated_at"] = knees[0]["saturated_at"];
  }
  return json;
}

}  // namespace outrider
