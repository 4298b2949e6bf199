// TraceWriter: what steps and requests took, as Chrome trace events, for chrome://tracing and
// Perfetto.
#pragma once

#include <absl/status/status.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/request.h"
#include "engine/step_record.h"

namespace outrider {

// Events lie in a bounded queue until a thread of its own writes them; what finds the queue full is
// dropped and counted. Viewers read the file at any moment, the closing bracket being optional in
// their array format; a process that dies loses the last fifth of a second.
class TraceWriter {
 public:
  using Clock = std::chrono::steady_clock;

  // A file with events that is there already is renamed to PATH.1, PATH.2, … Throws Error where the
  // file cannot be written, or another writer has it.
  explicit TraceWriter(const std::string& path, size_t max_queued = 1 << 16);
  // Writes what is queued, and the closing bracket.
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // The next two may be called from any thread; they allocate nothing and wait for moments only.

  // A span for the whole step, with what it was made of, and within it its parts.
  void step(const StepRecord& record);
  // A request that ended at `end` with `code`: a span for its whole time, and within it queue,
  // prefill and decode. Of one that came to no answer total_ms is all there is.
  void request(std::string_view request_id, Clock::time_point end, absl::StatusCode code,
               const Completion& completion);

  int64_t num_dropped() const;

 private:
  struct Event {
    const char* name;  // of a step or its part, a literal; null: a request
    int64_t begin_ns, end_ns;
    uint64_t step;
    bool whole;  // step: what follows is set
    int64_t prompt_rows, sequences, drafted, alternatives, accepted, refed;
    absl::StatusCode code;
    double queue_ms, prefill_ms, decode_ms;
    int64_t completion_tokens;
    std::array<char, 40> request_id;  // cut, ends with a zero
  };

  // All of them, or none.
  void push(std::span<const Event> events);
  void run();
  void write(const Event& event);
  void write_step(const Event& event);
  void write_span(const char* name, int64_t begin_ns, int64_t end_ns, const std::string& arguments);
  int64_t since_start(Clock::time_point time) const;

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  const std::string path_;
  const size_t max_queued_;
  const Clock::time_point start_ = Clock::now();
  std::unique_ptr<std::FILE, Close> file_;  // the writer's thread's, from here …
  std::vector<Event> writing_;
  std::string text_;  // of a batch
  uint64_t num_requests_ = 0;
  bool failed_ = false;  // … to here

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::vector<Event> queue_;  // has room for max_queued_
  int64_t num_dropped_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace outrider
