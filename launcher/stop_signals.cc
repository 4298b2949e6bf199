// See stop_signals.h.
#include "launcher/stop_signals.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <utility>

namespace outrider {
namespace {

constexpr int kWake = SIGUSR1;  // ends the thread

sigset_t awaited_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, kWake}) sigaddset(&signals, signal);
  return signals;
}

}  // namespace

StopSignals::StopSignals(bool parent_is_mpirun) : parent_is_mpirun_(parent_is_mpirun) {
  const sigset_t signals = awaited_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([this] { run(); });
}

StopSignals::~StopSignals() {
  ended_ = true;
  pthread_kill(thread_.native_handle(), kWake);
  thread_.join();
}

void StopSignals::on_stop(std::function<void(StopRequest)> handler) {
  const std::lock_guard lock(mutex_);
  has_handler_ = true;
  handler_ = std::move(handler);
}

void StopSignals::deliver(StopRequest request, int signal) {
  const std::lock_guard lock(mutex_);
  if (!has_handler_) _exit(128 + signal);
  if (handler_) handler_(request);
}

void StopSignals::run() {
  const sigset_t signals = awaited_signals();
  while (true) {
    siginfo_t info{};
    const int signal = sigwaitinfo(&signals, &info);
    if (ended_) return;
    if (signal != SIGINT && signal != SIGTERM) continue;
    const bool from_mpirun = parent_is_mpirun_ && info.si_pid == getppid();
    deliver(from_mpirun ? StopRequest::now : StopRequest::drain, signal);
  }
}

void die_with_parent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

}  // namespace outrider
