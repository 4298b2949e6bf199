// See report.h: how the numbers are written down.
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "launcher/loadtest/report.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Summary& summary) {
  Json object = {{"count", summary.count}}, intervals;
  const auto or_null = [&](double value) {
    return summary.count > 0 ? Json(value) : Json(nullptr);
  };
  for (const NamedStatistic& statistic : kStatistics) {
    object[statistic.name] = or_null(summary.*statistic.member);
    if (!summary.ci95) continue;
    const Interval interval = summary.ci95->of(statistic);
    intervals[statistic.name] = {interval.low, interval.high};
  }
  object["max"] = or_null(summary.max);
  object["ci95"] = std::move(intervals);
  return object;
}

Json to_json(const std::optional<Goodput>& goodput) {
  if (!goodput) return nullptr;
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  return {{"slo",
           {{"ttft_ms", or_null(goodput->objectives.ttft)},
            {"tpot_ms", or_null(goodput->objectives.tpot)},
            {"e2e_ms", or_null(goodput->objectives.e2e)}}},
          {"requests", goodput->requests},
          {"share", goodput->share},
          {"requests_per_second", goodput->requests_per_second}};
}

std::string row(const char* name, const Statistics& statistics) {
  std::string text = absl::StrFormat("%-16s", name);
  for (const auto& [_, member] : kStatistics) {
    absl::StrAppendFormat(&text, "%10.2f", statistics.*member);
  }
  return text;
}

// The statistics, and below them where their intervals begin and end.
std::string rows(const char* name, const Summary& summary) {
  if (summary.count == 0) return absl::StrFormat("%-16s%10s\n", name, "n/a");
  std::string text = row(name, summary) + absl::StrFormat("%10.2f\n", summary.max);
  if (summary.ci95) {
    text += row("  95 %: from", summary.ci95->low) + "\n" +
            row("          to", summary.ci95->high) + "\n";
  }
  return text;
}

// "coupled 30, off 2"
std::string counts(const std::map<std::string, int64_t>& by_name) {
  return absl::StrJoin(by_name, ", ", absl::PairFormatter(" "));
}

std::string goodput_line(const Goodput& goodput) {
  return absl::StrFormat("goodput: %d requests (%.1f %%) kept %s: %.2f requests/s\n",
                         goodput.requests, 100 * goodput.share, goodput.objectives.text(),
                         goodput.requests_per_second);
}

std::string prompts_line(const LoadReport& report) {
  const double share = report.prompt_tokens > 0 ? static_cast<double>(report.cached_tokens) /
                                                      static_cast<double>(report.prompt_tokens)
                                                : 0;
  return absl::StrFormat("prompts: %d tokens, %d of them (%.1f %%) from the prefix cache\n",
                         report.prompt_tokens, report.cached_tokens, 100 * share);
}

}  // namespace

Json to_json(const LoadReport& report) {
  return {{"ttft_ms", to_json(report.ttft)},
          {"tpot_ms", to_json(report.tpot)},
          {"itl_ms", to_json(report.itl)},
          {"itl_amortised_ms", to_json(report.itl_amortised)},
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
          {"longest_cancelled_ms", report.longest_cancelled_ms},
          {"of_answers_alone", is_of_survivors(report)},
          {"measured_s", report.measured_s},
          {"tokens_per_second", report.tokens_per_second},
          {"requests_per_second", report.requests_per_second},
          {"goodput", to_json(report.goodput)},
          {"prompt_tokens", report.prompt_tokens},
          {"cached_tokens", report.cached_tokens},
          {"completion_tokens", report.completion_tokens},
          {"speculation",
           {{"num_spec_steps", report.num_spec_steps},
            {"num_draft_tokens", report.num_draft_tokens},
            {"num_accepted_draft_tokens", report.num_accepted_draft_tokens},
            {"num_alternative_draft_tokens", report.num_alternative_draft_tokens},
            {"num_accepted_alternatives", report.num_accepted_alternatives},
            {"draft_acceptance_rate", report.draft_acceptance_rate},
            {"mean_acceptance_length", report.mean_acceptance_length},
            {"answers_by_mode", report.answers_by_mode},
            {"answers_by_drafter", report.answers_by_drafter}}}};
}

std::string to_table(const LoadReport& report) {
  std::string text = absl::StrFormat(
      "%d requests, %d errors in %.1f s: %.2f requests/s, %.1f tokens/s\n", report.requests,
      report.errors, report.measured_s, report.requests_per_second, report.tokens_per_second);
  if (report.warmup_requests > 0) {
    text += absl::StrFormat("before it, %d requests of the warm-up, %d errors\n",
                            report.warmup_requests, report.warmup_errors);
  }
  if (report.cancelled > 0) text += cancelled_line(report) + "\n";
  text += error_lines(report);
  if (is_of_survivors(report)) text += std::string(kOfSurvivors) + "\n";
  text += absl::StrFormat("\n%-16s%10s%10s%10s%10s%10s%10s\n", "milliseconds", "mean", "P50", "P90",
                          "P99", "P99.9", "max");
  text += rows("TTFT", report.ttft) + rows("TPOT", report.tpot) + rows("ITL", report.itl) +
          rows("ITL, amortised", report.itl_amortised) + rows("end to end", report.e2e) +
          rows("queue", report.queue) + rows("sent late", report.send_delay) + "\n";
  if (report.goodput) text += goodput_line(*report.goodput);
  if (report.answers() == 0) return text;
  text += prompts_line(report);
  text += absl::StrFormat("speculation: accepted %d of %d drafted tokens (%.1f %%)",
                          report.num_accepted_draft_tokens, report.num_draft_tokens,
                          100 * report.draft_acceptance_rate);
  if (report.num_alternative_draft_tokens > 0) {
    text += absl::StrFormat(", %d of %d that stood beside a first one",
                            report.num_accepted_alternatives, report.num_alternative_draft_tokens);
  }
  text +=
      absl::StrFormat(", %.2f tokens a step; answers by %s; %s\n", report.mean_acceptance_length,
                      counts(report.answers_by_mode), counts(report.answers_by_drafter));
  return text;
}

std::string cancelled_line(const LoadReport& report) {
  return absl::StrFormat(
      "%d requests were cancelled when the test was interrupted, the longest after %.0f ms",
      report.cancelled, report.longest_cancelled_ms);
}

std::string error_lines(const LoadReport& report) {
  std::string text;
  for (const auto& [code, count] : report.errors_by_code) {
    absl::StrAppendFormat(&text, "%6d %s, the first: %s\n", count, code,
                          report.first_error_by_code.at(code));
  }
  return text;
}

std::string load_table_head(bool goodput) {
  std::string quantities, percentiles;
  for (const char* quantity : {"TTFT, ms", "TPOT, ms", "end to end, ms"}) {
    absl::StrAppendFormat(&quantities, "%27s", quantity);
    absl::StrAppendFormat(&percentiles, "%9s%9s%9s", "P50", "P90", "P99");
  }
  return absl::StrFormat("%-23s%9s%9s%7s%s%s\n", "", "requests", "tokens", "", quantities,
                         goodput ? "   good" : "") +
         absl::StrFormat("%-23s%9s%9s%7s%s%s\n", "", "/s", "/s", "errors", percentiles,
                         goodput ? "      %" : "");
}

std::string load_table_row(const std::string& name, const LoadReport& report) {
  std::string text =
      absl::StrFormat("%-23s%9.2f%9.1f%7d", name + (is_of_survivors(report) ? kSurvivorsMark : ""),
                      report.requests_per_second, report.tokens_per_second, report.errors);
  for (const Summary* summary : {&report.ttft, &report.tpot, &report.e2e}) {
    for (const double value : {summary->p50, summary->p90, summary->p99}) {
      text += summary->count > 0 ? absl::StrFormat("%9.1f", value) : absl::StrFormat("%9s", "n/a");
    }
  }
  if (report.goodput) absl::StrAppendFormat(&text, "%7.1f", 100 * report.goodput->share);
  return text + "\n";
}

std::string survivors_line() { return std::string("*: ") + kOfSurvivors + "\n"; }

Json to_json(const RequestRecord& record) {
  Json chunks = Json::array();
  for (const auto& chunk : record.chunks) chunks.push_back({chunk.at_s, chunk.num_tokens});
  return {{"index", record.index},
          {"question", record.question},
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
          {"cached_tokens", record.cached_tokens},
          {"num_draft_tokens", record.num_draft_tokens},
          {"num_accepted_draft_tokens", record.num_accepted_draft_tokens},
          {"num_alternative_draft_tokens", record.num_alternative_draft_tokens},
          {"num_accepted_alternatives", record.num_accepted_alternatives},
          {"mode", record.mode},
          {"drafter", record.drafter},
          {"chunks", std::move(chunks)},
          {"token_ids", record.token_ids}};
}

}  // namespace outrider
