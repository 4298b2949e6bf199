// Engine: rank 0's step loop. Takes submissions, plans, publishes the plan, executes it and hands
// the tokens to their sinks. One request runs at a time; further ones wait in order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/control_channel.h"
#include "engine/executor.h"
#include "engine/output_stream.h"
#include "engine/request.h"
#include "model/tokenizer.h"

namespace outrider {

// Live totals since the start; what GetServerInfo reports.
struct EngineStats {
  int64_t num_requests_running = 0;
  int64_t num_requests_waiting = 0;
  int64_t num_requests_finished = 0;
  int64_t num_requests_failed = 0;
  int64_t num_steps = 0;
  int64_t num_draft_tokens = 0;
  int64_t num_accepted_draft_tokens = 0;
  int64_t num_completion_tokens = 0;
};

class Engine {
 public:
  // control: the connection to the other ranks; null where this rank is alone. Both outlive the
  // engine.
  Engine(Executor& executor, ControlServer* control);

  // Thread-safe; never waits for a step. The request was validated against limits(). Refused
  // (sink->on_error, UNAVAILABLE) once the engine is stopping.
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
  EngineStats stats() const;  // thread-safe

 private:
  struct Submission {
    Request request;
    std::shared_ptr<RequestSink> sink;
  };
  // The request that runs; its sequence holds slot 0.
  struct Running {
    Submission submission;
    OutputStream output;
    int64_t max_length;
    uint64_t seed;
    DrafterKind drafter;
    int lookahead;
    bool admitted = false;  // a plan has said so
    SpeculationStats speculation;
    std::chrono::steady_clock::time_point started, first_token, last_token;
  };

  // Waits until there is a request to run; false once the engine is stopping.
  bool take_submission();
  Running start(Submission submission) const;
  void step();
  StepPlan next_plan();
  void apply(const SlotOutcome& outcome);
  void count(const SlotOutcome& outcome, int num_emitted);
  void complete(FinishReason reason);
  // Waiting requests whose clients are gone make room.
  void drop_cancelled();
  // The running request is over.
  void retire(bool failed);
  // Every request ends with `status`.
  void fail_all(const absl::Status& status);

  Executor& executor_;
  ControlServer* control_;
  Limits limits_;
  std::string fingerprint_;
  uint64_t next_step_ = 1;
  std::optional<Running> running_;
  bool slot_used_ = false;  // by a request that has ended: the next admission releases it first

  mutable std::mutex mutex_;  // guards all below; held for moments only
  std::condition_variable wake_;
  std::deque<Submission> waiting_;
  bool stopping_ = false;
  std::optional<std::string> failure_;
  EngineStats stats_;
};

}  // namespace outrider
