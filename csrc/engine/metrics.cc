// See metrics.h.
#include "engine/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace outrider {
namespace {

const std::string kPrefix = "outrider_";

std::vector<std::string> phase_names() {
  std::vector<std::string> names;
  for (int i = 0; i < kNumStepPhases; ++i) {
    names.emplace_back(step_phase_name(static_cast<StepPhase>(i)));
  }
  return names;
}

std::vector<double> lookahead_bounds() {
  std::vector<double> bounds;
  for (int k = 0; k <= kMaxDraftTokens; ++k) bounds.push_back(k);
  return bounds;
}

const char* finish_reason_label(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
  }
  return "";
}

}  // namespace

const char* step_phase_name(StepPhase phase) {
  switch (phase) {
    case StepPhase::draft:
      return "draft";
    case StepPhase::target:
      return "target";
    case StepPhase::verify:
      return "verify";
    case StepPhase::exchange:
      return "exchange";
    case StepPhase::host:
      return "host";
  }
  return "";
}

std::string status_code_name(absl::StatusCode code) { return absl::StatusCodeToString(code); }

prometheus::Counter& EngineMetrics::counter(const std::string& name, const std::string& help) {
  return prometheus::BuildCounter().Name(kPrefix + name).Help(help).Register(registry_).Add({});
}

prometheus::Gauge& EngineMetrics::gauge(const std::string& name, const std::string& help) {
  return prometheus::BuildGauge().Name(kPrefix + name).Help(help).Register(registry_).Add({});
}

prometheus::Family<prometheus::Gauge>& EngineMetrics::drafter_gauge(const std::string& name,
                                                                    const std::string& help) {
  return prometheus::BuildGauge().Name(kPrefix + name).Help(help).Register(registry_);
}

EngineMetrics::EngineMetrics()
    : num_drafts_(counter("spec_decode_num_drafts_total",
                          "Decode steps of a sequence that verified drafted tokens")),
      num_draft_tokens_(counter("spec_decode_num_draft_tokens_total", "Drafted tokens verified")),
      num_accepted_tokens_(
          counter("spec_decode_num_accepted_tokens_total", "Drafted tokens accepted")),
      num_alternatives_(counter("spec_decode_num_alternatives_total",
                                "Drafted tokens verified beside the first of a step")),
      num_accepted_alternatives_(counter("spec_decode_num_accepted_alternatives_total",
                                         "Of those, tokens accepted in its place")),
      num_gathered_rows_(counter("spec_decode_num_gathered_rows_total",
                                 "Rows of logits gathered whose best did not cover what top_k, "
                                 "top_p and min_p keep")),
      prefix_queries_(counter("prefix_cache_queries_total",
                              "Tokens at admission that were looked up in the prefix cache")),
      prefix_hits_(counter("prefix_cache_hits_total",
                           "Tokens at admission that were found in the prefix cache")),
      running_(gauge("num_requests_running", "Answers that take part in steps")),
      waiting_(gauge("num_requests_waiting", "Answers that wait to run")),
      kv_cache_usage_(gauge("kv_cache_usage_ratio", "Share of the KV cache in use, 0 to 1")),
      rank_up_(prometheus::BuildGauge()
                   .Name(kPrefix + "rank_up")
                   .Help("1 while the rank takes part, 0 once it is lost")
                   .Register(registry_)),
      alpha_(drafter_gauge("spec_decode_alpha",
                           "Measured probability that a drafted token is accepted")),
      draft_cost_(drafter_gauge("spec_decode_draft_cost",
                                "A drafted token's time over a plain step's of one sequence")),
      speedup_(drafter_gauge("spec_decode_speedup",
                             "Times as fast as without drafts, predicted and measured")),
      loss_budget_(drafter_gauge("spec_decode_loss_budget_seconds",
                                 "What the drafter may lose before it is put aside")),
      ttft_(kPrefix + "time_to_first_token_seconds", "From a request's arrival to its first token",
            one_two_five(-3, 2)),
      itl_(kPrefix + "inter_token_latency_seconds",
           "Between two chunks of a stream; a chunk holds the tokens of one step",
           one_two_five(-4, 1)),
      tpot_(kPrefix + "time_per_output_token_seconds",
            "An answer's time from first to last token over the tokens between",
            one_two_five(-4, 1)),
      e2e_(kPrefix + "e2e_request_latency_seconds", "From a request's arrival to its end",
           one_two_five(-3, 3)),
      queue_time_(kPrefix + "request_queue_time_seconds",
                  "From a request's arrival to its first step", one_two_five(-4, 2)),
      step_seconds_(kPrefix + "step_seconds", "Parts of a step", one_two_five(-5, 1), "phase",
                    phase_names()),
      lookahead_(kPrefix + "lookahead_tokens", "Tokens drafted for a sequence in a decode step",
                 lookahead_bounds()) {
  auto& accepted = prometheus::BuildCounter()
                       .Name(kPrefix + "spec_decode_num_accepted_tokens_per_pos_total")
                       .Help("Drafted tokens accepted, by their place in the draft")
                       .Register(registry_);
  for (int i = 0; i < kMaxDraftTokens; ++i) {
    accepted_at_[static_cast<size_t>(i)] = &accepted.Add({{"position", std::to_string(i)}});
  }
  auto& success = prometheus::BuildCounter()
                      .Name(kPrefix + "request_success_total")
                      .Help("Requests that came to an end, by why they did")
                      .Register(registry_);
  for (size_t i = 0; i < success_.size(); ++i) {
    success_[i] =
        &success.Add({{"finished_reason", finish_reason_label(static_cast<FinishReason>(i))}});
  }
  auto& errors = prometheus::BuildCounter()
                     .Name(kPrefix + "request_errors_total")
                     .Help("Requests that failed, by status code")
                     .Register(registry_);
  errors_[0] = nullptr;  // OK is no error
  for (size_t i = 1; i < errors_.size(); ++i) {
    errors_[i] = &errors.Add({{"code", status_code_name(static_cast<absl::StatusCode>(i))}});
  }
}

void EngineMetrics::step_phase(StepPhase phase, double seconds) {
  step_seconds_.at(static_cast<size_t>(phase)).observe(seconds);
}

void EngineMetrics::verified(int k, const VerifiedDrafts& drafts) {
  CHECK(0 <= drafts.num_accepted && drafts.num_accepted <= drafts.num_drafted);
  CHECK(drafts.num_drafted <= k && k <= kMaxDraftTokens);
  lookahead_.at(0).observe(k);
  if (drafts.num_drafted == 0) return;
  num_drafts_.Increment();
  num_draft_tokens_.Increment(drafts.num_verified());
  num_accepted_tokens_.Increment(drafts.num_kept());
  num_alternatives_.Increment(drafts.num_alternatives);
  if (drafts.alternative >= 0) num_accepted_alternatives_.Increment();
  for (int i = 0; i < drafts.num_kept(); ++i) accepted_at_[static_cast<size_t>(i)]->Increment();
}

void EngineMetrics::gathered(int num_rows) { num_gathered_rows_.Increment(num_rows); }

void EngineMetrics::prefix_lookup(int64_t queried, int64_t hit) {
  prefix_queries_.Increment(static_cast<double>(queried));
  prefix_hits_.Increment(static_cast<double>(hit));
}

void EngineMetrics::set_kv_cache_usage(double ratio) { kv_cache_usage_.Set(ratio); }

void EngineMetrics::first_token(double seconds_since_received) {
  ttft_.at(0).observe(seconds_since_received);
}

void EngineMetrics::next_chunk(double seconds_since_last) {
  itl_.at(0).observe(seconds_since_last);
}

// What a cancelled request took says nothing of how fast the server is. Tokens that a resumed
// answer had before took another's time.
void EngineMetrics::answered(const Completion& completion) {
  const int64_t gaps = completion.speculation.num_decoded_tokens - 1;
  if (completion.finish_reason == FinishReason::cancelled || gaps <= 0) return;
  tpot_.at(0).observe(completion.timings.decode_ms / 1e3 / static_cast<double>(gaps));
}

void EngineMetrics::finished(const Completion& completion) {
  success_[static_cast<size_t>(completion.finish_reason)]->Increment();
  queue_time_.at(0).observe(completion.timings.queue_ms / 1e3);
  if (completion.finish_reason == FinishReason::cancelled) return;
  e2e_.at(0).observe(completion.timings.total_ms / 1e3);
}

void EngineMetrics::failed(absl::StatusCode code) {
  const auto i = static_cast<size_t>(code);
  CHECK(i > 0);
  errors_[i < errors_.size() ? i : static_cast<size_t>(absl::StatusCode::kUnknown)]->Increment();
}

void EngineMetrics::set_requests(int64_t running, int64_t waiting) {
  running_.Set(static_cast<double>(running));
  waiting_.Set(static_cast<double>(waiting));
}

void EngineMetrics::set_drafter(const std::string& drafter, const DrafterReport& report) {
  alpha_.Add({{"drafter", drafter}}).Set(report.alpha);
  if (report.draft_cost) draft_cost_.Add({{"drafter", drafter}}).Set(*report.draft_cost);
  if (report.predicted_speedup) {
    speedup_.Add({{"drafter", drafter}, {"kind", "predicted"}}).Set(*report.predicted_speedup);
  }
  if (report.measured_speedup) {
    speedup_.Add({{"drafter", drafter}, {"kind", "measured"}}).Set(*report.measured_speedup);
  }
  loss_budget_.Add({{"drafter", drafter}}).Set(report.budget_ms / 1e3);
}

void EngineMetrics::set_rank_up(int rank, bool up) {
  rank_up_.Add({{"rank", std::to_string(rank)}}).Set(up ? 1 : 0);
}

std::string EngineMetrics::text() const {
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  for (const HistogramFamily* histograms :
       {&ttft_, &itl_, &tpot_, &e2e_, &queue_time_, &step_seconds_, &lookahead_}) {
    families.push_back(histograms->collect());
  }
  std::sort(families.begin(), families.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace outrider
