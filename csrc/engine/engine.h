// Engine: rank 0's step loop. Takes submissions in, lets the scheduler plan, publishes the plan,
// executes it and hands the tokens to delivery.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/control_channel.h"
#include "engine/delivery.h"
#include "engine/executor.h"
#include "engine/inbox.h"
#include "engine/lookahead_planner.h"
#include "engine/quarantine.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/shared_reports.h"
#include "engine/step_observers.h"
#include "model/tokenizer.h"

namespace outrider {

// Live totals since the start; what GetServerInfo reports.
struct EngineStats {
  int64_t num_requests_running = 0;  // answers, where requests ask for several
  int64_t num_requests_waiting = 0;
  int64_t num_tokens_waiting = 0;  // of the prompts that wait, and emitted_token_ids
  int64_t num_requests_finished = 0;
  int64_t num_requests_failed = 0;
  int64_t num_steps = 0;
  int64_t num_draft_tokens = 0;
  int64_t num_accepted_draft_tokens = 0;
  int64_t num_completion_tokens = 0;
  int64_t num_preemptions = 0;
  int64_t kv_pages_used = 0, kv_pages = 0;
  int64_t prefix_cache_queries = 0, prefix_cache_hits = 0;  // tokens
  std::array<DrafterReport, kNumDrafterKinds> drafters;     // by DrafterKind
};

// What an engine's scheduler goes by.
SchedulerLimits scheduler_limits(const Executor& executor);

class Engine {
 public:
  // control: the connection to the other ranks; null where this rank is alone. quarantine: of the
  // job's earlier starts; null where nobody starts it again. They outlive the engine.
  Engine(Executor& executor, ControlServer* control, StepObservers observers = {},
         Quarantine* quarantine = nullptr);

  // Thread-safe; takes no lock and never waits for a step. The request was validated against
  // limits(). Refused (sink->on_error) with UNAVAILABLE once the engine is stopping, and with
  // FAILED_PRECONDITION where it is in quarantine.
  void submit(Request request, std::shared_ptr<RequestSink> sink);

  // Runs steps on the calling thread, which is the one that may call MPI, until stop(); the caller
  // then says goodbye to the other ranks. Throws Error where a rank is lost or the ranks disagree,
  // after failing each running and queued request with the reason.
  void run();

  // Thread-safe: running and queued requests end with UNAVAILABLE and run() returns.
  void stop();
  // Thread-safe: the same, but run() throws Error(reason).
  void fail(const std::string& reason);

  const Limits& limits() const { return limits_; }
  const Tokenizer& tokenizer() const { return executor_.tokenizer(); }
  const Executor& executor() const { return executor_; }
  EngineStats stats() const;  // thread-safe; takes no lock and allocates nothing

 private:
  // A sequence from its submission to its end.
  struct Sequence {
    std::shared_ptr<Answer> answer;
    TokenEnd end;
    std::optional<OutputStream> text;  // where there are stop strings: to end with the step that
                                       // makes one, as delivery does
    int64_t next_prompt_row = 0;       // whose log-probabilities were not delivered yet
    int32_t top_logprobs = -1, top_prompt_logprobs = 0;
    bool started = false;    // was admitted once
    bool has_state = false;  // has decoded since it was admitted: a draft head can go on from there
  };

  // Waits until there is something to do; false once the engine is stopping.
  bool wait_for_work();
  void start(Submission& submission);
  // Sequences whose clients are gone, or whose request has failed.
  void drop_ended();
  // well: with an answer.
  void end_sequence(int64_t id, bool well);
  void step();
  void propose(StepPlan& plan);
  // What the scheduler need not know of those that are admitted.
  void note_admissions(StepPlan& plan);
  void apply(const SlotOutcome& outcome);
  // The step has taken so long: what Lookahead learns from it, and each of its answers hears.
  void account_for_step(double ms);
  // position: the one that the row predicts.
  void fail_non_finite(const SlotOutcome& outcome, int64_t position);
  void publish_stats();
  // Every request ends with `status`.
  void fail_all(const absl::Status& status);
  void wake();

  Executor& executor_;
  ControlServer* control_;
  StepObservers observers_;
  Quarantine* quarantine_;
  Limits limits_;
  std::string fingerprint_;
  const uint64_t prefix_salt_;  // no client can foresee the prefix cache's keys
  Scheduler scheduler_;
  LookaheadPlanner lookahead_;
  std::unordered_map<int64_t, Sequence> sequences_;
  int64_t next_id_ = 0;
  int64_t tokens_waiting_ = 0;  // of sequences that were never admitted
  uint64_t next_step_ = 1;
  struct NonFinite {
    uint64_t step;
    uint64_t prompt;  // its digest: who asks again for the same shows nothing new
    Digest128 request;
  };
  std::vector<NonFinite> non_finite_;      // the latest requests that failed for it
  std::vector<Delivered> delivered_;       // of the last step, until the next is published
  std::vector<LookaheadOutcome> decoded_;  // by the step under way
  const EngineClock::time_point epoch_ = EngineClock::now();

  Inbox inbox_;
  std::atomic<uint32_t> wakeups_ = 0;
  std::atomic<bool> stopping_ = false;
  mutable std::mutex failure_mutex_;
  std::optional<std::string> failure_;

  struct SharedStats {
    std::atomic<int64_t> running = 0, waiting = 0, waiting_tokens = 0, steps = 0, preemptions = 0;
    std::atomic<int64_t> pages_used = 0, prefix_queries = 0, prefix_hits = 0;
    SharedReports drafters;
  };
  SharedStats shared_stats_;
  std::optional<Delivery> delivery_;  // ends first: it speaks of all the others
};

}  // namespace outrider
