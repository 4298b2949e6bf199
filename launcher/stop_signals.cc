// See stop_signals.h.
#include "launcher/stop_signals.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <utility>

namespace outrider {
namespace {

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&signals, signal);
  return signals;
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([this] { run(); });
}

StopSignals::~StopSignals() {
  ended_ = true;
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
}

void StopSignals::on_stop(std::function<void()> handler) {
  const std::lock_guard lock(mutex_);
  has_handler_ = true;
  handler_ = std::move(handler);
}

void StopSignals::run() {
  const sigset_t signals = stop_signals();
  while (true) {
    int signal = 0;
    sigwait(&signals, &signal);
    if (ended_) return;
    const std::lock_guard lock(mutex_);
    if (!has_handler_) _exit(128 + signal);
    if (handler_) handler_();
  }
}

void die_with_parent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

}  // namespace outrider
