// See report.h: how the numbers are written down.
#include <absl/strings/str_format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "launcher/loadtest/report.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Distribution& distribution) {
  Json object = {{"count", distribution.count}};
  const std::pair<const char*, double> values[] = {
      {"mean", distribution.mean}, {"p50", distribution.p50},   {"p90", distribution.p90},
      {"p99", distribution.p99},   {"p999", distribution.p999}, {"max", distribution.max}};
  for (const auto& [name, value] : values) {
    object[name] = distribution.count > 0 ? Json(value) : Json(nullptr);
  }
  return object;
}

std::string row(const char* name, const Distribution& d) {
  if (d.count == 0) return absl::StrFormat("%-16s%10s\n", name, "none");
  return absl::StrFormat("%-16s%10.2f%10.2f%10.2f%10.2f%10.2f%10.2f\n", name, d.mean, d.p50, d.p90,
                         d.p99, d.p999, d.max);
}

}  // namespace

Json to_json(const LoadReport& report) {
  return {{"ttft_ms", to_json(report.ttft)},
          {"tpot_ms", to_json(report.tpot)},
          {"itl_ms", to_json(report.itl)},
          {"e2e_ms", to_json(report.e2e)},
          {"queue_ms", to_json(report.queue)},
          {"send_delay_ms", to_json(report.send_delay)},
          {"requests", report.requests},
          {"errors", report.errors},
          {"errors_by_code", report.errors_by_code},
          {"first_error_by_code", report.first_error_by_code},
          {"warmup_requests", report.warmup_requests},
          {"warmup_errors", report.warmup_errors},
          {"cancelled", report.cancelled},
          {"measured_s", report.measured_s},
          {"tokens_per_second", report.tokens_per_second},
          {"requests_per_second", report.requests_per_second},
          {"prompt_tokens", report.prompt_tokens},
          {"completion_tokens", report.completion_tokens},
          {"speculation",
           {{"num_spec_steps", report.num_spec_steps},
            {"num_draft_tokens", report.num_draft_tokens},
            {"num_accepted_draft_tokens", report.num_accepted_draft_tokens},
            {"draft_acceptance_rate", report.draft_acceptance_rate},
            {"mean_acceptance_length", report.mean_acceptance_length}}}};
}

std::string to_table(const LoadReport& report) {
  std::string text = absl::StrFormat(
      "%d requests, %d errors in %.1f s: %.2f requests/s, %.1f tokens/s\n", report.requests,
      report.errors, report.measured_s, report.requests_per_second, report.tokens_per_second);
  if (report.warmup_requests > 0) {
    text += absl::StrFormat("before it, %d requests of the warm-up, %d errors\n",
                            report.warmup_requests, report.warmup_errors);
  }
  if (report.cancelled > 0) {
    text += absl::StrFormat("%d requests were cancelled when the test was interrupted\n",
                            report.cancelled);
  }
  for (const auto& [code, count] : report.errors_by_code) {
    text += absl::StrFormat("%6d %s, the first: %s\n", count, code,
                            report.first_error_by_code.at(code));
  }
  text += absl::StrFormat("\n%-16s%10s%10s%10s%10s%10s%10s\n", "milliseconds", "mean", "P50", "P90",
                          "P99", "P99.9", "max");
  text += row("TTFT", report.ttft) + row("TPOT", report.tpot) + row("ITL", report.itl) +
          row("end to end", report.e2e) + row("queue", report.queue) +
          row("sent late", report.send_delay) + "\n";
  text += absl::StrFormat(
      "speculation: accepted %d of %d drafted tokens (%.1f %%), %.2f tokens a step\n",
      report.num_accepted_draft_tokens, report.num_draft_tokens, 100 * report.draft_acceptance_rate,
      report.mean_acceptance_length);
  return text;
}

Json to_json(const RequestRecord& record) {
  Json chunks = Json::array();
  for (const auto& chunk : record.chunks) chunks.push_back({chunk.at_s, chunk.num_tokens});
  return {{"index", record.index},
          {"prompt", record.prompt},
          {"max_tokens", record.max_tokens},
          {"due_s", record.due_s},
          {"sent_s", record.sent_s},
          {"end_s", record.end_s},
          {"status", record.status},
          {"error", record.error},
          {"cancelled", record.cancelled},
          {"stopped", record.stopped},
          {"queue_ms", record.queue_ms},
          {"prompt_tokens", record.prompt_tokens},
          {"num_draft_tokens", record.num_draft_tokens},
          {"num_accepted_draft_tokens", record.num_accepted_draft_tokens},
          {"chunks", std::move(chunks)},
          {"token_ids", record.token_ids}};
}

}  // namespace outrider
