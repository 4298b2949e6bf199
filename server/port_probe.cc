// See port_probe.h.
#include "server/port_probe.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/error.h"

namespace outrider {
namespace {

// No protocol's beginning: whoever accepts, with TLS or without, answers it or closes.
constexpr uint8_t kNoise[] = "outrider looks whether anybody is there\r\n\r\n";

FileDescriptor take_spare() { return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

PortProbe::PortProbe(std::vector<std::string> addresses, std::function<void()> on_dead,
                     ProbeTimes times, std::function<bool()> other_ended)
    : addresses_(std::move(addresses)),
      on_dead_(std::move(on_dead)),
      times_(times),
      other_ended_(std::move(other_ended)),
      spare_(take_spare()),
      thread_([this] { run(); }) {}

PortProbe::~PortProbe() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ended_changed_.notify_all();
  thread_.join();
}

void PortProbe::run() {
  int unanswered = 0;
  std::unique_lock lock(mutex_);
  while (!ended_changed_.wait_for(lock, times_.between, [this] { return ended_; })) {
    lock.unlock();
    if (other_ended_ && other_ended_()) return on_dead_();
    const bool answered = std::ranges::any_of(
        addresses_, [this](const std::string& address) { return is_answered(address); });
    unanswered = answered ? 0 : unanswered + 1;
    if (unanswered == kProbes) return on_dead_();
    lock.lock();
  }
}

bool PortProbe::is_answered(const std::string& address) {
  spare_ = FileDescriptor();
  bool answered = false;
  try {
    const Deadline deadline = std::chrono::steady_clock::now() + times_.answer;
    const FileDescriptor connection = connect_to(address, deadline);
    send_all(connection.get(), kNoise, {});
    pollfd readable{connection.get(), POLLIN, 0};
    answered = poll(&readable, 1, poll_timeout_ms(deadline)) > 0;
  } catch (const Error&) {
  }
  spare_ = take_spare();
  return answered;
}

}  // namespace outrider
