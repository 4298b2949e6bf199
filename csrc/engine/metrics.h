// EngineMetrics: everything that /metrics shows. Handles are looked up once; counting and observing
// are a few atomic additions, allocate nothing and never wait for a scrape.
#pragma once

#include <absl/status/status.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <array>
#include <cstdint>
#include <string>

#include "engine/histogram.h"
#include "engine/request.h"
#include "kernels/verify_types.h"
#include "spec/acceptance.h"

namespace outrider {

// Parts of a step. `host` is all that is not one of the others.
enum class StepPhase { draft, target, verify, exchange, host };
constexpr int kNumStepPhases = 5;
const char* step_phase_name(StepPhase phase);

// "OK", "INVALID_ARGUMENT", …
std::string status_code_name(absl::StatusCode code);

// Every method may be called from any thread.
class EngineMetrics {
 public:
  EngineMetrics();
  EngineMetrics(const EngineMetrics&) = delete;
  EngineMetrics& operator=(const EngineMetrics&) = delete;

  // --- Steps: the engine's thread.

  void step_phase(StepPhase phase, double seconds);
  // One sequence's part of a decode step: k tokens (0 … kMaxDraftTokens) were drafted, one behind
  // the other; what is told of them, and of the alternatives, is up to its answer's end.
  void verified(int k, const VerifiedDrafts& drafts);
  // Rows of logits whose candidates did not cover what top_k, top_p and min_p keep.
  void gathered(int num_rows);
  // Admissions looked up `queried` tokens (prompts, and what continued answers had emitted), of
  // which `hit` were in the prefix cache.
  void prefix_lookup(int64_t queried, int64_t hit);
  // Pages in use over all pages, 0 … 1.
  void set_kv_cache_usage(double ratio);

  // --- Requests: whoever hands out the tokens.

  void first_token(double seconds_since_received);
  // Between two chunks of one stream; a chunk may hold several tokens.
  void next_chunk(double seconds_since_last);
  // One answer of a request came to its end.
  void answered(const Completion& completion);
  // The request did: its end, and its times, with all of its answers.
  void finished(const Completion& completion);
  void failed(absl::StatusCode code);

  // --- State.

  void set_requests(int64_t running, int64_t waiting);
  // The next allocates for a drafter that it has not seen yet.
  void set_drafter(const std::string& drafter, const DrafterReport& report);
  // Allocates for a rank that it has not seen yet.
  void set_rank_up(int rank, bool up);

  // Prometheus' text format.
  std::string text() const;

 private:
  prometheus::Counter& counter(const std::string& name, const std::string& help);
  prometheus::Gauge& gauge(const std::string& name, const std::string& help);
  prometheus::Family<prometheus::Gauge>& drafter_gauge(const std::string& name,
                                                       const std::string& help);

  prometheus::Registry registry_;
  prometheus::Counter &num_drafts_, &num_draft_tokens_, &num_accepted_tokens_;
  prometheus::Counter &num_alternatives_, &num_accepted_alternatives_, &num_gathered_rows_;
  std::array<prometheus::Counter*, kMaxDraftTokens> accepted_at_;
  prometheus::Counter &prefix_queries_, &prefix_hits_;
  std::array<prometheus::Counter*, 3> success_;  // by FinishReason
  std::array<prometheus::Counter*, 17> errors_;  // by absl::StatusCode
  prometheus::Gauge &running_, &waiting_, &kv_cache_usage_;
  prometheus::Family<prometheus::Gauge>& rank_up_;
  prometheus::Family<prometheus::Gauge>&alpha_, &draft_cost_, &speedup_, &loss_budget_;
  HistogramFamily ttft_, itl_, tpot_, e2e_, queue_time_, step_seconds_, lookahead_;
};

}  // namespace outrider
