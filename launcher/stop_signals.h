// StopSignals: SIGINT, SIGTERM and SIGHUP, taken by a thread of their own, and told apart by who
// sent them.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

namespace outrider {

enum class StopRequest {
  drain,  // running calls may finish; asked twice, it means now
  now,    // running calls end with UNAVAILABLE
};

// Without SIGHUP where that is ignored, as behind nohup, and SIGINT, as behind a script's &: while
// they are blocked they would come anyway.
sigset_t ending_signals();

class StopSignals {
 public:
  // Make it before any other thread is started: they inherit that these signals are blocked. Until
  // on_stop, a signal ends the process at once.
  //
  // parent_is_mpirun: a signal of this process's parent is mpirun's, which kills what has not ended
  // a second later, so it means `now`. Every other signal means `drain`.
  explicit StopSignals(bool parent_is_mpirun);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From now on a request calls `handler`, on the thread of whoever brought it. Empty: requests are
  // ignored.
  void on_stop(std::function<void(StopRequest)> handler);

  // What `outrider launch` asks for. Thread-safe.
  void deliver(StopRequest request, int signal);

 private:
  void run();

  const bool parent_is_mpirun_;
  std::mutex mutex_;  // guards has_handler_ and handler_
  bool has_handler_ = false;
  std::function<void(StopRequest)> handler_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

// This process is killed when its parent (mpirun, or its agent on another host) ends, however that
// happens: a rank never outlives its job.
void die_with_parent();

}  // namespace outrider
