// What a load test found, from its records: numbers, a JSON object and a table.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "launcher/loadtest/distribution.h"
#include "launcher/loadtest/greedy_check.h"
#include "launcher/loadtest/request_record.h"

namespace outrider {

struct LoadReport {
  // Of answers that ended well and were due in the measured time; all in milliseconds.
  Distribution ttft;        // from due to the first token
  Distribution itl;         // between neighbouring chunks with tokens, of all answers together
  Distribution tpot;        // (end - first token) / (tokens - 1), of answers of two tokens and more
  Distribution e2e;         // from due to the end
  Distribution queue;       // as the server says
  Distribution send_delay;  // from due to sent: what this program itself was late

  int64_t requests = 0;  // due in the measured time
  int64_t errors = 0;    // of them
  std::map<std::string, int64_t> errors_by_code;
  std::map<std::string, std::string> first_error_by_code;
  int64_t warmup_requests = 0, warmup_errors = 0;
  int64_t cancelled = 0;  // under way when the test was interrupted; counted nowhere else

  // What arrived within the measured time, but for answers that failed.
  double measured_s = 0;
  double tokens_per_second = 0;
  double requests_per_second = 0;

  // Of the answers above.
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t num_spec_steps = 0, num_draft_tokens = 0, num_accepted_draft_tokens = 0;
  double draft_acceptance_rate = 0;
  double mean_acceptance_length = 0;  // the mean of the answers' own

  // There is something to report.
  bool valid() const { return requests > errors; }
};

// The measured time is [warmup_s, load_end_s), in seconds since the start.
LoadReport make_report(const std::vector<RequestRecord>& records, double warmup_s,
                       double load_end_s);

// ttft_ms, itl_ms, tpot_ms, e2e_ms, queue_ms and send_delay_ms as {count, mean, p50, p90, p99,
// p999, max}, where all but count are null without samples; the rest under its own name.
nlohmann::ordered_json to_json(const LoadReport& report);

// For the terminal, with a line break at the end.
std::string to_table(const LoadReport& report);

// One request as a line of --samples.
nlohmann::ordered_json to_json(const RequestRecord& record);

}  // namespace outrider
