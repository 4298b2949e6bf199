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
  sigset_t signals = ending_signals();
  sigaddset(&signals, kWake);
  return signals;
}

}  // namespace

sigset_t ending_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  for (const int signal : {SIGINT, SIGHUP}) {
    struct sigaction found {};
    sigaction(signal, nullptr, &found);
    if (found.sa_handler != SIG_IGN) sigaddset(&signals, signal);
  }
  return signals;
}

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
  bool asked = false;
  while (true) {
    siginfo_t info{};
    const int signal = sigwaitinfo(&signals, &info);
    if (ended_) return;
    if (signal < 0 || signal == kWake) continue;
    // A closed terminal says so twice, and says nothing new to who was asked before.
    if (std::exchange(asked, true) && signal == SIGHUP) continue;
    const bool from_mpirun = parent_is_mpirun_ && info.si_pid == getppid();
    deliver(from_mpirun ? StopRequest::now : StopRequest::drain, signal);
  }
}

void die_with_parent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

}  // namespace outrider
