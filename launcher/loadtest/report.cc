// See report.h: the numbers.
#include "launcher/loadtest/report.h"

#include <algorithm>
#include <utility>

namespace outrider {
namespace {

void add_counts(const RequestRecord& record, LoadReport& report) {
  report.prompt_tokens += record.prompt_tokens;
  report.cached_tokens += record.cached_tokens;
  report.completion_tokens += static_cast<int64_t>(record.token_ids.size());
  report.num_spec_steps += record.num_spec_steps;
  report.num_draft_tokens += record.num_draft_tokens;
  report.num_accepted_draft_tokens += record.num_accepted_draft_tokens;
  report.num_alternative_draft_tokens += record.num_alternative_draft_tokens;
  report.num_accepted_alternatives += record.num_accepted_alternatives;
  report.mean_acceptance_length += record.mean_acceptance_length;
  ++report.answers_by_mode[record.mode];
  ++report.answers_by_drafter[record.drafter];
}

// The requests of one load.
void add_requests(const LoadResult& load, const ReportOptions& options, LoadReport& report) {
  for (const RequestRecord& record : load.records) {
    if (record.cancelled) {
      ++report.cancelled;
      report.longest_cancelled_ms =
          std::max(report.longest_cancelled_ms, kMsPerSecond * (record.end_s - record.due_s));
    } else if (!is_measured(record, options.warmup_s)) {
      ++report.warmup_requests;
      report.warmup_errors += record.ok() ? 0 : 1;
    } else {
      ++report.requests;
      if (record.ok()) {
        add_counts(record, report);
        if (report.goodput && options.objectives.kept_by(record)) ++report.goodput->requests;
      } else {
        ++report.errors;
        ++report.errors_by_code[record.status];
      }
    }
    if (!record.cancelled && !record.ok()) {
      report.first_error_by_code.try_emplace(record.status, record.error);
    }
  }
}

// What arrived within the measured time.
struct Arrived {
  double seconds = 0;
  int64_t answers = 0, good_answers = 0, tokens = 0;
};

// Answers that were begun in the warm-up, or cut off by an interruption, count with what they
// brought in between; what comes after the load's end does not: the server has less and less to do
// by then.
void add_arrivals(const LoadResult& load, const ReportOptions& options, Arrived& arrived) {
  if (load.load_end_s <= options.warmup_s) return;
  arrived.seconds += load.load_end_s - options.warmup_s;
  const auto measured = [&](double time_s) {
    return time_s >= options.warmup_s && time_s <= load.load_end_s;
  };
  for (const RequestRecord& record : load.records) {
    if (!record.ok() && !record.cancelled) continue;
    if (record.ok() && measured(record.end_s)) {
      ++arrived.answers;
      arrived.good_answers += options.objectives.kept_by(record) ? 1 : 0;
    }
    for (const auto& chunk : record.chunks) {
      arrived.tokens += measured(chunk.at_s) ? chunk.num_tokens : 0;
    }
  }
}

double ratio(int64_t part, double whole) {
  return whole > 0 ? static_cast<double>(part) / whole : 0;
}

}  // namespace

bool server_failed(const std::vector<LoadResult>& loads, double warmup_s) {
  int64_t requests = 0, failures = 0;
  for (const LoadResult& load : loads) {
    for (const RequestRecord& record : load.records) {
      if (!is_measured(record, load.gave_up ? 0 : warmup_s)) continue;
      ++requests;
      failures += record.ok() || record.overloaded() ? 0 : 1;
    }
  }
  return static_cast<double>(failures) > kFailedShare * static_cast<double>(requests);
}

bool has_lost_too_many(const LoadReport& report) {
  return static_cast<double>(report.errors) > kFailedShare * static_cast<double>(report.requests);
}

bool is_of_survivors(const LoadReport& report) {
  const int64_t all = report.requests + report.cancelled;
  return nearest_rank(report.answers(), 990) != nearest_rank(all, 990);
}

LoadReport make_report(const std::vector<LoadResult>& loads, const ReportOptions& options) {
  LoadReport report;
  if (options.objectives.any()) report.goodput = Goodput{.objectives = options.objectives};
  Arrived arrived;
  for (const LoadResult& load : loads) {
    add_requests(load, options, report);
    add_arrivals(load, options, arrived);
  }
  const LatencySamples samples = latency_samples(loads, options.warmup_s, options.unit);
  const std::pair<Summary&, const Samples&> summaries[] = {
      {report.ttft, samples.ttft},
      {report.tpot, samples.tpot},
      {report.itl, samples.itl},
      {report.itl_amortised, samples.itl_amortised},
      {report.e2e, samples.e2e},
      {report.queue, samples.queue},
      {report.send_delay, samples.send_delay}};
  for (const auto& [summary, of] : summaries) summary = summarise(of, options.seed);

  report.measured_s = arrived.seconds;
  report.tokens_per_second = ratio(arrived.tokens, arrived.seconds);
  report.requests_per_second = ratio(arrived.answers, arrived.seconds);
  if (report.goodput) {
    report.goodput->share = ratio(report.goodput->requests, static_cast<double>(report.requests));
    report.goodput->requests_per_second = ratio(arrived.good_answers, arrived.seconds);
  }
  report.draft_acceptance_rate =
      ratio(report.num_accepted_draft_tokens, static_cast<double>(report.num_draft_tokens));
  if (report.answers() > 0) {
    report.mean_acceptance_length /= static_cast<double>(report.answers());
  }
  return report;
}

}  // namespace outrider
