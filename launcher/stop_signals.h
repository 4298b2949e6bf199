// StopSignals: SIGINT, SIGTERM and SIGUSR1 (by which `outrider launch` asks rank 0 to stop), taken
// by a thread of their own.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

namespace outrider {

class StopSignals {
 public:
  // Make it before any other thread is started: they inherit that these signals are blocked. Until
  // on_stop, a signal ends the process at once.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From now on a signal calls `handler`, on the thread of the signals. Empty: signals are ignored.
  void on_stop(std::function<void()> handler);

 private:
  void run();

  std::mutex mutex_;  // guards has_handler_ and handler_
  bool has_handler_ = false;
  std::function<void()> handler_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

// This process is killed when its parent (mpirun, or its agent on another host) ends, however that
// happens: a rank never outlives its job.
void die_with_parent();

}  // namespace outrider
