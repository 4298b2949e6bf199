// Calls: one Generate or GenerateOnce between gRPC and the engine. Whatever the engine says is
// queued here and written as fast as the client reads; a call that nobody reads ends by itself.
#pragma once

#include <absl/status/status.h>
#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "engine/request.h"
#include "outrider/v1/generation.pb.h"
#include "server/call_record.h"
#include "server/server.h"

namespace outrider {

class Call;

// The calls that gRPC has not let go of.
class CallRegistry {
 public:
  void add(Call* call);
  void remove(Call* call);
  // Every call that has not ended does so with `status`; what was queued is still written.
  void fail_all(const absl::Status& status);
  // The call is the tenant's from now on; false where `max` of them are under way, 0 being no
  // limit.
  bool admit(Call* call, uint64_t tenant, int64_t max);
  // Tells the engine to end the tenant's calls of that request that are under way; how many there
  // are.
  int abort(const std::string& request_id, uint64_t tenant);
  // True once no admitted call is left; false after `timeout`.
  bool wait_for_admitted(std::chrono::milliseconds timeout);

 private:
  std::mutex mutex_;  // taken before a call's own
  std::condition_variable none_admitted_;
  std::unordered_set<Call*> calls_;
  int64_t num_admitted_ = 0;  // of them
};

// What both kinds share. Kept alive by gRPC until its last reaction, and by the engine until it has
// dropped the sink: the engine may well speak to a call that is over.
class Call : public RequestSink, public std::enable_shared_from_this<Call> {
 public:
  Call(grpc::CallbackServerContext* context, CallRegistry& registry, CallLimits limits,
       CallRecord record)
      : limits_(limits), record_(std::move(record)), context_(context), registry_(registry) {}

  const std::string& request_id() const { return record_.request_id(); }
  // The engine drops the request at its next step.
  void cancel() { cancelled_ = true; }

  // The call is gRPC's from now on, until released().
  void hold();

  void on_error(absl::Status status) override { end(std::move(status)); }
  bool cancelled() const override { return cancelled_; }

 protected:
  // The call ends with `status` once what is queued was written; only the first end counts.
  virtual void end(absl::Status status) = 0;

  // mutex_ held.
  void has_ended(const absl::Status& status) {
    record_.end(status);
    ended_ = true;
  }
  // The client has cancelled, or its deadline has passed: nothing more is sent.
  void gone() {
    under_way_ = false;
    cancel();
  }
  // Called by gRPC's last reaction.
  void released();

  // From now on the call is given up where gRPC takes nothing more of it for collect_timeout. Call
  // once, with mutex_ held.
  void start_collect_timer();
  // gRPC has just taken some of it, which it does as the client reads; mutex_ held.
  void was_taken() { last_taken_ = std::chrono::steady_clock::now(); }

  const CallLimits limits_;
  std::mutex mutex_;
  CallRecord record_;  // guarded by mutex_
  std::atomic<bool> cancelled_ = false;
  std::atomic<bool> under_way_ = true;  // something is left to be sent
  std::atomic<bool> ended_ = false;     // how is decided

 private:
  friend class CallRegistry;

  // mutex_ held.
  void await_taking(std::chrono::steady_clock::duration time);
  void give_up_unless_taken();

  std::optional<uint64_t> tenant_;        // once admitted; guarded by the registry's mutex
  grpc::CallbackServerContext* context_;  // until released
  CallRegistry& registry_;
  // Guarded by mutex_.
  std::unique_ptr<grpc::Alarm> collect_timer_;
  std::chrono::steady_clock::time_point last_taken_;
  bool released_ = false;

  std::shared_ptr<Call> self_;  // gRPC's share
};

class StreamCall final : public Call, public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  using Call::Call;

  void on_chunk(Chunk chunk) override;
  void on_complete(Completion completion) override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override { gone(); }
  void OnDone() override { released(); }

 private:
  void end(absl::Status status) override;
  void push(v1::GenerateResponse response);  // mutex_ held
  // Starts the next write, or ends the call, where neither is under way.
  void advance();

  // Guarded by mutex_, but for current_ while a write is under way.
  std::deque<v1::GenerateResponse> queue_;
  int64_t undelivered_bytes_ = 0;
  v1::GenerateResponse current_;
  bool writing_ = false;
  std::optional<absl::Status> end_;
  bool finished_ = false;  // Finish() was called
};

class UnaryCall final : public Call, public grpc::ServerUnaryReactor {
 public:
  UnaryCall(grpc::CallbackServerContext* context, CallRegistry& registry, CallLimits limits,
            CallRecord record, v1::GenerateOnceResponse* response)
      : Call(context, registry, limits, std::move(record)), response_(response) {}

  void on_chunk(Chunk chunk) override;
  void on_complete(Completion completion) override;

  void OnCancel() override { gone(); }
  void OnDone() override { released(); }

 private:
  void end(absl::Status status) override;
  v1::GenerateOnceResponse& answer(int index);  // mutex_ held

  v1::GenerateOnceResponse* response_;  // gRPC's; guarded by mutex_, until the end
  int64_t answer_bytes_ = 0;            // guarded by mutex_
  bool too_large_ = false;              // the delivery's
};

}  // namespace outrider
