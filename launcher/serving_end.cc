// See serving_end.h.
#include "launcher/serving_end.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "engine/metrics.h"
#include "launcher/command_line.h"

namespace outrider {
namespace {

// For clients to be told, and then for the engine's thread to end by itself, after a loss. mpirun
// kills a second after it has seen a rank die.
constexpr std::chrono::milliseconds kTellTimeout{500};
constexpr std::chrono::milliseconds kUnwindTimeout{200};
// The last resort where ending hangs itself: the kernel ends the process.
constexpr unsigned kLostTimeoutS = 2;

}  // namespace

ServingEnd::ServingEnd(std::chrono::seconds drain_limit, OnAbandon on_abandon)
    : drain_limit_(drain_limit), on_abandon_(std::move(on_abandon)) {}

ServingEnd::~ServingEnd() {
  if (draining_.joinable()) draining_.join();
}

void ServingEnd::serving(Engine& engine, Server& server, std::function<bool()> peer_gone) {
  const std::lock_guard lock(mutex_);
  engine_ = &engine;
  server_ = &server;
  peer_gone_ = std::move(peer_gone);
}

void ServingEnd::engine_ended() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  ended_changed_.notify_all();
}

void ServingEnd::lost(const Loss& loss) {
  const std::string what = "rank " + std::to_string(loss.rank) + " is lost: " + loss.reason;
  std::unique_lock lock(mutex_);
  lost_ = true;
  if (ended_) return;
  alarm(kLostTimeoutS);
  if (engine_ != nullptr) {
    engine_->fail(what);
    server_->metrics().set_rank_up(loss.rank, false);
    server_->fail_calls(what);
    lock.unlock();
    server_->wait_for_calls(kTellTimeout);
    lock.lock();
    if (ended_changed_.wait_for(lock, kUnwindTimeout, [this] { return ended_; })) return;
  }
  if (on_abandon_) on_abandon_(loss, what);
  std::fprintf(stderr, "outrider: %s\n", what.c_str());
  _exit(kExitFailed);
}

void ServingEnd::request(StopRequest request) {
  const std::lock_guard lock(mutex_);
  if (ended_ || lost_ || engine_ == nullptr) return;
  // mpirun tells the others to end when a rank has died: that loss is on its way here.
  if (peer_gone_ && peer_gone_()) return;
  if (request == StopRequest::now || draining_.joinable()) {
    engine_->stop();
    return;
  }
  draining_ = std::thread([this, server = server_] { drain(*server); });
}

void ServingEnd::unreachable() {
  server_->drain();
  server_->wait_for_calls(drain_limit_);
  const std::lock_guard lock(mutex_);
  // Who was asked to end ends in order, whatever its ports do.
  if (ended_ || lost_ || draining_.joinable()) return;
  engine_->fail("a port takes no connections any more");
}

void ServingEnd::drain(Server& server) {
  server.drain();
  const bool ended = server.wait_for_calls(drain_limit_);
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) engine_->stop();
  }
  // Behind the rest: who reads the log may have stopped reading.
  spdlog::info("drained: {}", ended ? "all calls have ended" : "calls still ran; they are ended");
}

}  // namespace outrider
