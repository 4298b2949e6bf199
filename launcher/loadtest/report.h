// What a load test found, from its records: numbers, a JSON object and a table.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/statistics.h"
#include "launcher/loadtest/latency.h"
#include "launcher/loadtest/request_record.h"

namespace outrider {

// How many measured answers kept every objective.
struct Goodput {
  Objectives objectives;
  int64_t requests = 0;
  double share = 0;                // of all measured requests, failed ones included
  double requests_per_second = 0;  // that ended within the measured time
};

struct LoadReport {
  // Of answers that ended well and were due in the measured time, as LatencySamples has them; in
  // milliseconds.
  Summary ttft, tpot, itl, itl_amortised, e2e, queue, send_delay;

  int64_t requests = 0;  // due in the measured time
  int64_t errors = 0;    // of them
  std::map<std::string, int64_t> errors_by_code;
  std::map<std::string, std::string> first_error_by_code;  // the warm-up's too
  int64_t warmup_requests = 0, warmup_errors = 0;
  // Under way when the test was interrupted; counted nowhere else.
  int64_t cancelled = 0;
  double longest_cancelled_ms = 0;  // that one of them had waited by then

  // What arrived within the measured time, but for answers that failed.
  double measured_s = 0;
  double tokens_per_second = 0;
  double requests_per_second = 0;
  std::optional<Goodput> goodput;  // where there are objectives

  // Of the answers above.
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompts', found in the prefix cache
  int64_t num_spec_steps = 0, num_draft_tokens = 0, num_accepted_draft_tokens = 0;
  int64_t num_alternative_draft_tokens = 0, num_accepted_alternatives = 0;  // of them
  double draft_acceptance_rate = 0;
  double mean_acceptance_length = 0;  // the mean of the answers' own
  std::map<std::string, int64_t> answers_by_mode, answers_by_drafter;

  int64_t answers() const { return requests - errors; }
  // It says something about the server: one request succeeded, and no more failed than did.
  bool valid() const { return answers() > 0 && answers() >= errors; }
};

struct ReportOptions {
  double warmup_s = 0;  // the measured time of a load is [warmup_s, load_end_s) of its own time
  Objectives objectives;
  uint64_t seed = 0;  // of the intervals
  Unit unit = Unit::question;
};

// Too many failed where so large a share did.
inline constexpr double kFailedShare = 0.1;

// Whether too many of the measured requests failed in a way that no load explains: then the server
// has ended, or does not do what it is asked. Where a load gave up, its warm-up counts too.
bool server_failed(const std::vector<LoadResult>& loads, double warmup_s);

// Whether so many failed, by whatever, that there is nothing to learn from the others.
bool has_lost_too_many(const LoadReport& report);

// Whether the P99 of the answers is not the load's: that of all requests, of which those that
// failed or were cancelled had waited longest, is another one.
bool is_of_survivors(const LoadReport& report);
inline constexpr char kOfSurvivors[] =
    "latencies are of the answers alone: with what failed or was cancelled they might be much "
    "longer";
// Behind the names of such loads in a table.
inline constexpr char kSurvivorsMark[] = " *";

// Of loads that asked the same in the same way, one after the other.
LoadReport make_report(const std::vector<LoadResult>& loads, const ReportOptions& options = {});

// ttft_ms, tpot_ms, itl_ms, itl_amortised_ms, e2e_ms, queue_ms and send_delay_ms as {count, mean,
// p50, p90, p99, p999, max, ci95}, where all but count are null without samples, and ci95, {mean:
// [low, high], …}, with samples of few units too; of_answers_alone as is_of_survivors(); the rest
// under its own name.
nlohmann::ordered_json to_json(const LoadReport& report);

// For the terminal, with a line break at the end.
std::string to_table(const LoadReport& report);

// Where some were.
std::string cancelled_line(const LoadReport& report);

// A line for each status that requests failed with.
std::string error_lines(const LoadReport& report);

// A row of a table of loads, and the table's first two lines. goodput: the rows have it. Where a
// name is marked, survivors_line() stands below.
std::string load_table_head(bool goodput);
std::string load_table_row(const std::string& name, const LoadReport& report);
std::string survivors_line();

// One request as a line of --samples.
nlohmann::ordered_json to_json(const RequestRecord& record);

}  // namespace outrider
