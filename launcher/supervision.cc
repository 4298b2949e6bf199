// See supervision.h.
#include "launcher/supervision.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace outrider {
namespace {

constexpr std::string_view kServing = "serving";
constexpr std::string_view kServingOnGpus = "serving on GPUs";
constexpr std::string_view kFinished = "finished";
constexpr std::string_view kFailed = "failed ";
constexpr std::string_view kLost = "lost ";
constexpr std::string_view kDrain = "drain";
constexpr std::string_view kStop = "stop";

std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string text_of(const Frame& frame) { return {frame.bytes.begin(), frame.bytes.end()}; }

}  // namespace

std::unique_ptr<SupervisorLink> SupervisorLink::connect(StopSignals& signals) {
  const char* address = std::getenv(kSupervisorAddressVariable);
  const char* secret = std::getenv(kSupervisorSecretVariable);
  if (address == nullptr || secret == nullptr) return nullptr;
  FileDescriptor connection = connect_with_greeting(address, 0, ConnectionUse::supervision, secret);
  return std::unique_ptr<SupervisorLink>(new SupervisorLink(std::move(connection), signals));
}

SupervisorLink::SupervisorLink(FileDescriptor connection, StopSignals& signals)
    : socket_(std::move(connection), "outrider launch"),
      thread_([this, &signals] { receive(signals); }) {}

SupervisorLink::~SupervisorLink() {
  ending_ = true;
  shutdown(socket_.fd(), SHUT_RD);
  thread_.join();
}

void SupervisorLink::send(std::string_view text) {
  const std::lock_guard lock(mutex_);
  try {
    socket_.send(FrameKind::message, bytes_of(text));
  } catch (const Error&) {
    // The launcher has gone: receive() acts on that.
  }
}

void SupervisorLink::serving(bool on_gpus) { send(on_gpus ? kServingOnGpus : kServing); }

void SupervisorLink::failed(const std::string& why) { send(std::string(kFailed) + why); }

void SupervisorLink::lost(const std::string& what) { send(std::string(kLost) + what); }

void SupervisorLink::finished() { send(kFinished); }

void SupervisorLink::receive(StopSignals& signals) {
  try {
    while (true) {
      const std::optional<Frame> frame = socket_.receive(kNoDeadline);
      const bool drain = text_of(*frame) == kDrain;
      signals.deliver(drain ? StopRequest::drain : StopRequest::now, SIGTERM);
    }
  } catch (const Error&) {
    if (!ending_) signals.deliver(StopRequest::now, SIGTERM);
  }
}

JobLink::JobLink(const std::string& host)
    : secret_(make_control_secret()),
      listener_(std::in_place, host, secret_),
      address_(listener_->address()) {}

void JobLink::append_polls(std::vector<pollfd>& polls) const {
  if (listener_) listener_->append_polls(polls);
  if (connected()) polls.push_back({socket_->fd(), POLLIN, 0});
}

void JobLink::update() {
  if (listener_) {
    if (std::optional<GreetingListener::Guest> guest = listener_->accept()) {
      socket_.emplace(std::move(guest->fd), "rank 0");
      listener_.reset();
    }
  }
  if (!connected()) return;
  try {
    while (const std::optional<Frame> frame = socket_->try_receive()) {
      const std::string text = text_of(*frame);
      if (text == kServing || text == kServingOnGpus) served_ = true;
      if (text == kServingOnGpus) served_on_gpus_ = true;
      if (text == kFinished) finished_ = true;
      if (text.starts_with(kFailed)) failure_ = text.substr(kFailed.size());
      if (text.starts_with(kLost)) {
        failure_ = text.substr(kLost.size());
        lost_ = true;
      }
    }
  } catch (const Error&) {
    ended_ = true;
  }
}

void JobLink::request(StopRequest request) {
  if (!connected()) return;
  try {
    socket_->send(FrameKind::message, bytes_of(request == StopRequest::drain ? kDrain : kStop));
  } catch (const Error&) {
    ended_ = true;
  }
}

}  // namespace outrider
