// A comparison: the same load with different numbers of speculative tokens, in turns against one
// server, and the ratios of what users waited. A load that is not compared has one arm, and one
// turn.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/statistics.h"
#include "launcher/loadtest/report.h"
#include "launcher/loadtest/request_record.h"

namespace outrider {

// What one side of a comparison asks for.
struct Arm {
  // Exactly so many are drafted a step; nothing: the server's adaptive lookahead decides.
  std::optional<int32_t> num_speculative_tokens;

  // "K=4"
  std::string name() const;
  bool operator==(const Arm&) const = default;
};

// "K=0,4,adaptive", two at least, each once. Throws Error.
std::vector<Arm> parse_arms(const std::string& text);

// What an arm brought at one load.
struct ArmResult {
  std::optional<Arm> arm;         // nothing: there is no comparison
  std::vector<LoadResult> loads;  // one a round
  LoadReport report;
  // This arm to the first one; rounds are drawn, and each brings the turns of both arms. Nothing
  // for the first arm itself, and where one of the two measured nothing.
  std::optional<Ratios> ttft, tpot, e2e;
  bool saturated = false;  // the server, in a sweep
  bool failed = false;     // the server did, so that this says nothing of the load

  std::string name() const { return arm ? arm->name() : ""; }
  bool gave_up() const;  // some load of it
};

// "rate=4, K=0"; where one of the two is empty, the other.
std::string run_name(const std::string& load, const std::string& arm);

// In which order the arms ask in a round: rotated from round to round, and backwards in every
// second cycle of rotations. Over rounds that are a multiple of the arms each is first, second, …
// equally often; over a multiple of twice the arms each also follows its neighbour on the one side,
// within a round, as often as that on the other.
std::vector<size_t> turns(size_t num_arms, int round);

// Sets report and ratios of all arms; intervals of a comparison are drawn over turns.
void evaluate(std::vector<ArmResult>& arms, ReportOptions options);

// "rate=4, K=4 / K=0", and whether one of both was saturated: then its latencies say how long the
// test was, or leave out what came too late; or else whether one's are of survivors. load: its
// name, where there are several.
std::string ratio_name(const std::string& load, const ArmResult& arm, const ArmResult& first);

// Whether there are rounds enough for intervals, and where not, why.
bool has_intervals(const std::vector<ArmResult>& arms);
std::string why_no_intervals(const std::vector<ArmResult>& arms);

// For the terminal: the ratios with their intervals, and the table's first line. load: its name,
// where there are several.
std::string ratio_table_head();
std::string ratio_table_rows(const std::string& load, const std::vector<ArmResult>& arms);

// {rounds, arms: [{name, num_speculative_tokens, gave_up, report…}], ratios: [{arm, to, ttft_ms,
// tpot_ms, e2e_ms}]}, a ratio as {p50: {ratio, ci95}, p90, p99} or null.
nlohmann::ordered_json to_json(const std::vector<ArmResult>& arms);

}  // namespace outrider
