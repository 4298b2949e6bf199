// CallRecord: what is counted, logged and traced of one call.
#pragma once

#include <absl/status/status.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "engine/trace.h"
#include "server/logging.h"
#include "server/service_rate.h"

namespace outrider {

class EngineMetrics;

// Where all of it goes; lives longer than the calls.
struct CallObservers {
  EngineMetrics& metrics;
  RequestLog& log;
  ServiceRate& service_rate;
  TraceWriter* trace;  // null: none
};

// Not thread-safe: the call's own lock guards it. No method waits.
class CallRecord {
 public:
  // timeout: what the client gives the call from now on; max: all the time it wants.
  CallRecord(const CallObservers& observers, std::string request_id,
             std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max())
      : observers_(observers), request_id_(std::move(request_id)), timeout_(timeout) {}

  // Tokens are there to be sent. Of several answers the first one's rhythm counts.
  void chunk(const Chunk& chunk);
  // The engine came to an answer's end. Several answers count as one of all their tokens, which
  // takes from the first step to the last token of any; it was cancelled where one of them was.
  void complete(const Completion& completion);
  const std::string& request_id() const { return request_id_; }
  // The call is over, with this status. Once. CANCELLED behind the timeout is DEADLINE_EXCEEDED.
  void end(const absl::Status& status);

 private:
  using Clock = std::chrono::steady_clock;

  const CallObservers observers_;
  const std::string request_id_;
  const std::chrono::nanoseconds timeout_;
  const Clock::time_point received_ = Clock::now();
  std::optional<Clock::time_point> last_chunk_;
  int64_t num_tokens_ = 0;                // of all chunks
  std::optional<Completion> completion_;  // of all answers
};

// 16 hex digits, for a request that came without an id.
std::string new_request_id();

}  // namespace outrider
