// See comparison.h.
#include "launcher/loadtest/comparison.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kMostSpeculativeTokens = 15;  // as the schema says

// Means are no percentile, and of few requests P99.9 is the greatest alone.
constexpr NamedStatistic kCompared[] = {
    {"p50", &Statistics::p50}, {"p90", &Statistics::p90}, {"p99", &Statistics::p99}};

Json to_json(const std::optional<Ratios>& ratios) {
  if (!ratios) return nullptr;
  Json json;
  for (const NamedStatistic& statistic : kCompared) {
    Json ci95;
    if (ratios->ci95) {
      const Interval interval = ratios->ci95->of(statistic);
      ci95 = {interval.low, interval.high};
    }
    json[statistic.name] = {{"ratio", (*ratios).*statistic.member}, {"ci95", std::move(ci95)}};
  }
  return json;
}

std::string ratio_row(const std::string& name, const std::optional<Ratios>& ratios) {
  std::string text = absl::StrFormat("%-42s", name);
  for (const NamedStatistic& statistic : kCompared) {
    std::string cell = ratios ? absl::StrFormat("%.3f", (*ratios).*statistic.member) : "n/a";
    if (ratios && ratios->ci95) {
      const Interval interval = ratios->ci95->of(statistic);
      absl::StrAppendFormat(&cell, " (%.3f to %.3f)", interval.low, interval.high);
    }
    absl::StrAppendFormat(&text, "%24s", cell);
  }
  return text + "\n";
}

}  // namespace

std::string Arm::name() const {
  return num_speculative_tokens ? absl::StrFormat("K=%d", *num_speculative_tokens) : "K=adaptive";
}

bool ArmResult::gave_up() const {
  return std::ranges::any_of(loads, [](const LoadResult& load) { return load.gave_up; });
}

std::string run_name(const std::string& load, const std::string& arm) {
  return load.empty() || arm.empty() ? load + arm : load + ", " + arm;
}

std::vector<Arm> parse_arms(const std::string& text) {
  const Error wrong(text +
                    ": expected two or more of 0 … 15 and adaptive, each once, as "
                    "K=0,4,adaptive");
  const std::vector<std::string> sides = absl::StrSplit(text, '=');
  if (sides.size() != 2 || sides[0] != "K") throw wrong;
  std::vector<Arm> arms;
  for (const absl::string_view part : absl::StrSplit(sides[1], ',')) {
    Arm arm;
    if (part != "adaptive") {
      int32_t number = 0;
      if (!absl::SimpleAtoi(part, &number) || number < 0 || number > kMostSpeculativeTokens) {
        throw wrong;
      }
      arm.num_speculative_tokens = number;
    }
    if (std::ranges::find(arms, arm) != arms.end()) throw wrong;
    arms.push_back(arm);
  }
  if (arms.size() < 2) throw wrong;
  return arms;
}

std::vector<size_t> turns(size_t num_arms, int round) {
  const auto number = static_cast<size_t>(round);
  std::vector<size_t> order(num_arms);
  for (size_t i = 0; i < num_arms; ++i) order[i] = (i + number) % num_arms;
  if (number / num_arms % 2 == 1) std::ranges::reverse(order);
  return order;
}

void evaluate(std::vector<ArmResult>& arms, ReportOptions options) {
  if (arms.front().arm) options.unit = Unit::turn;
  LatencySamples first;
  for (ArmResult& arm : arms) {
    arm.report = make_report(arm.loads, options);
    LatencySamples samples = latency_samples(arm.loads, options.warmup_s, options.unit);
    if (&arm == &arms.front()) {
      first = std::move(samples);
    } else {
      arm.ttft = compare(samples.ttft, first.ttft, options.seed);
      arm.tpot = compare(samples.tpot, first.tpot, options.seed);
      arm.e2e = compare(samples.e2e, first.e2e, options.seed);
    }
  }
}

std::string ratio_name(const std::string& load, const ArmResult& arm, const ArmResult& first) {
  return run_name(load, arm.name() + " / " + first.name()) +
         (arm.saturated || first.saturated                               ? " (saturated)"
          : is_of_survivors(arm.report) || is_of_survivors(first.report) ? " (answers alone)"
                                                                         : "");
}

bool has_intervals(const std::vector<ArmResult>& arms) {
  return std::any_of(arms.begin(), arms.end(), [](const ArmResult& arm) {
    return (arm.ttft && arm.ttft->ci95) || (arm.tpot && arm.tpot->ci95) ||
           (arm.e2e && arm.e2e->ci95);
  });
}

std::string why_no_intervals(const std::vector<ArmResult>& arms) {
  return absl::StrFormat("no intervals: expected %d rounds or more that measured, found %d rounds",
                         kLeastUnits, arms.front().loads.size());
}

std::string ratio_table_head() {
  return absl::StrFormat("%-42s%24s%24s%24s\n", "ratio (95 % interval)", "P50", "P90", "P99");
}

std::string ratio_table_rows(const std::string& load, const std::vector<ArmResult>& arms) {
  if (arms.size() < 2) return "";
  std::string text;
  for (size_t i = 1; i < arms.size(); ++i) {
    const std::string name = ratio_name(load, arms[i], arms.front());
    text += ratio_row(name + ", TTFT", arms[i].ttft) + ratio_row(name + ", TPOT", arms[i].tpot) +
            ratio_row(name + ", end to end", arms[i].e2e);
  }
  if (has_intervals(arms)) return text;
  return text + (load.empty() ? "" : load + ": ") + why_no_intervals(arms) + "\n";
}

Json to_json(const std::vector<ArmResult>& arms) {
  Json list = Json::array(), ratios = Json::array();
  for (const ArmResult& result : arms) {
    const auto& tokens = result.arm->num_speculative_tokens;
    Json one = {{"name", result.name()},
                {"num_speculative_tokens", tokens ? Json(*tokens) : Json(nullptr)},
                {"gave_up", result.gave_up()}};
    one.update(to_json(result.report));
    list.push_back(std::move(one));
    if (&result == &arms.front()) continue;
    ratios.push_back({{"arm", result.name()},
                      {"to", arms.front().name()},
                      {"ttft_ms", to_json(result.ttft)},
                      {"tpot_ms", to_json(result.tpot)},
                      {"e2e_ms", to_json(result.e2e)}});
  }
  return {{"rounds", arms.front().loads.size()},
          {"arms", std::move(list)},
          {"ratios", std::move(ratios)}};
}

}  // namespace outrider
