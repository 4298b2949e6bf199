// LoadGenerator: sends what a plan says when it is due, and records what comes back. One thread
// sends; gRPC's few threads receive, however many streams are open.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <queue>
#include <unordered_map>
#include <vector>

#include "launcher/loadtest/connections.h"
#include "launcher/loadtest/load_plan.h"
#include "launcher/loadtest/request_record.h"
#include "launcher/loadtest/streaming_call.h"

namespace outrider {

struct LoadProgress {
  double elapsed_s;
  int64_t running, done, errors;
  int64_t tokens;  // received so far
};

struct LoadOptions {
  double timeout_s = 600;        // of one request; it ends with DEADLINE_EXCEEDED
  double progress_every_s = 10;  // 0: never
  std::function<void(const LoadProgress&)> on_progress;
};

// Where the first so many all fail, and nothing has succeeded by then, no more are sent: the server
// is not there, or refuses what is asked.
constexpr int64_t kGiveUpAfter = 20;

class LoadGenerator {
 public:
  struct Ask {
    int prompt;
    v1::GenerateRequest request;
  };

  // connections: used on run()'s thread; those of a closed loop are opened here already, before its
  // time begins. ask: makes the next request; called on run()'s thread in the order of sending.
  LoadGenerator(Connections& connections, LoadPlan plan, std::function<Ask()> ask,
                LoadOptions options);
  ~LoadGenerator();
  LoadGenerator(const LoadGenerator&) = delete;
  LoadGenerator& operator=(const LoadGenerator&) = delete;

  // Once. Returns when everything that was sent has ended. start: when the plan's time began.
  LoadResult run(LoadClock::time_point start = LoadClock::now());

  // From any thread: nothing more is sent, what runs is cancelled.
  void stop();

 private:
  struct Running {
    std::unique_ptr<StreamingCall> call;
    Connections::Connection* connection;
  };

  // What is due, but no more at once than leave ends and signals to be seen in time.
  void send_due();
  void send(double due_s);
  // Waits for an answer, for the next request to be due or for a line to be reported.
  void wait();
  // Takes the calls that have ended.
  void collect();
  void finished(StreamingCall& call);
  void cut_short();
  void report();
  double now_s() const { return seconds_since(start_, LoadClock::now()); }

  Connections& connections_;
  const LoadPlan plan_;
  const std::function<Ask()> ask_;
  const LoadOptions options_;

  LoadClock::time_point start_;
  std::priority_queue<double, std::vector<double>, std::greater<>> due_s_;  // what is left to send
  std::unordered_map<StreamingCall*, Running> running_;
  LoadResult result_;
  bool sending_ = true;
  int64_t sent_ = 0, succeeded_ = 0, failed_ = 0;
  int64_t first_failed_ = 0;  // of the first kGiveUpAfter
  double last_end_s_ = 0;
  double cut_short_s_ = std::numeric_limits<double>::infinity();
  double next_report_s_;
  std::atomic<int64_t> tokens_ = 0;

  std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::vector<StreamingCall*> ended_;
  bool stop_ = false;
};

}  // namespace outrider
