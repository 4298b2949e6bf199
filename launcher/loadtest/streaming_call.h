// StreamingCall: one Generate of a load test, timed as its messages come.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>

#include "launcher/loadtest/request_record.h"
#include "outrider/v1/generation.grpc.pb.h"

namespace outrider {

using LoadClock = std::chrono::steady_clock;

// Seconds from `start` to `time`.
inline double seconds_since(LoadClock::time_point start, LoadClock::time_point time) {
  return std::chrono::duration<double>(time - start).count();
}

// gRPC's threads call the reactions, one at a time.
class StreamingCall final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  // record: index, prompt, max_tokens and due_s are set. start: of the test. tokens: of all calls.
  // on_done: called last of all, on a thread of gRPC; the call may be destroyed from then on.
  StreamingCall(RequestRecord record, v1::GenerateRequest request, LoadClock::time_point start,
                std::atomic<int64_t>& tokens, std::function<void(StreamingCall*)> on_done)
      : record_(std::move(record)),
        request_(std::move(request)),
        start_(start),
        tokens_(tokens),
        on_done_(std::move(on_done)) {}

  // Once. timeout_s: the call's deadline.
  void send(v1::GenerationService::Stub& stub, double timeout_s);
  // Between send() and on_done.
  void cancel();

  // After on_done.
  RequestRecord& record() { return record_; }

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void take(const v1::Chunk& chunk, double now_s);
  void take(const v1::Complete& complete, double now_s);

  RequestRecord record_;
  v1::GenerateRequest request_;
  const LoadClock::time_point start_;
  std::atomic<int64_t>& tokens_;
  std::function<void(StreamingCall*)> on_done_;

  grpc::ClientContext context_;
  v1::GenerateResponse response_;
  int64_t completion_tokens_ = -1;  // as `complete` says; -1 before it
  std::atomic<bool> cancelled_ = false;
};

}  // namespace outrider
