// See report.h: the numbers.
#include "launcher/loadtest/report.h"

#include <algorithm>

namespace outrider {
namespace {

constexpr double kMsPerSecond = 1e3;

struct Samples {
  std::vector<double> ttft, itl, tpot, e2e, queue, send_delay;
};

// The latencies of an answer that ended well.
void add_latencies(const RequestRecord& record, Samples& samples) {
  samples.e2e.push_back(kMsPerSecond * (record.end_s - record.due_s));
  samples.queue.push_back(record.queue_ms);
  if (record.chunks.empty()) return;
  const double first_s = record.chunks.front().at_s;
  samples.ttft.push_back(kMsPerSecond * (first_s - record.due_s));
  for (size_t i = 1; i < record.chunks.size(); ++i) {
    samples.itl.push_back(kMsPerSecond * (record.chunks[i].at_s - record.chunks[i - 1].at_s));
  }
  const size_t num_tokens = record.token_ids.size();
  if (num_tokens < 2) return;
  samples.tpot.push_back(kMsPerSecond * (record.end_s - first_s) /
                         static_cast<double>(num_tokens - 1));
}

void add_counts(const RequestRecord& record, LoadReport& report) {
  report.prompt_tokens += record.prompt_tokens;
  report.completion_tokens += static_cast<int64_t>(record.token_ids.size());
  report.num_spec_steps += record.num_spec_steps;
  report.num_draft_tokens += record.num_draft_tokens;
  report.num_accepted_draft_tokens += record.num_accepted_draft_tokens;
  report.mean_acceptance_length += record.mean_acceptance_length;
}

// Answers that were begun in the warm-up, or cut off by an interruption, count with what they
// brought in between; what comes after the load's end does not: the server has less and less to do
// by then.
void add_throughput(const std::vector<RequestRecord>& records, double begin_s, double end_s,
                    LoadReport& report) {
  report.measured_s = std::max(0.0, end_s - begin_s);
  if (report.measured_s == 0) return;
  const auto measured = [&](double time_s) { return time_s >= begin_s && time_s <= end_s; };
  int64_t tokens = 0, answers = 0;
  for (const RequestRecord& record : records) {
    if (!record.ok() && !record.cancelled) continue;
    if (record.ok() && measured(record.end_s)) ++answers;
    for (const auto& chunk : record.chunks) tokens += measured(chunk.at_s) ? chunk.num_tokens : 0;
  }
  report.tokens_per_second = static_cast<double>(tokens) / report.measured_s;
  report.requests_per_second = static_cast<double>(answers) / report.measured_s;
}

}  // namespace

LoadReport make_report(const std::vector<RequestRecord>& records, double warmup_s,
                       double load_end_s) {
  LoadReport report;
  Samples samples;
  for (const RequestRecord& record : records) {
    if (record.cancelled) {
      ++report.cancelled;
    } else if (record.due_s < warmup_s) {
      ++report.warmup_requests;
      report.warmup_errors += record.ok() ? 0 : 1;
    } else {
      ++report.requests;
      samples.send_delay.push_back(kMsPerSecond * (record.sent_s - record.due_s));
      if (record.ok()) {
        add_latencies(record, samples);
        add_counts(record, report);
      } else {
        ++report.errors;
        ++report.errors_by_code[record.status];
        report.first_error_by_code.try_emplace(record.status, record.error);
      }
    }
  }
  report.ttft = summarise(std::move(samples.ttft));
  report.itl = summarise(std::move(samples.itl));
  report.tpot = summarise(std::move(samples.tpot));
  report.e2e = summarise(std::move(samples.e2e));
  report.queue = summarise(std::move(samples.queue));
  report.send_delay = summarise(std::move(samples.send_delay));
  if (report.num_draft_tokens > 0) {
    report.draft_acceptance_rate = static_cast<double>(report.num_accepted_draft_tokens) /
                                   static_cast<double>(report.num_draft_tokens);
  }
  if (report.valid()) {
    report.mean_acceptance_length /= static_cast<double>(report.requests - report.errors);
  }
  add_throughput(records, warmup_s, load_end_s, report);
  return report;
}

}  // namespace outrider
