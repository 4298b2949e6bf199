// ServingEnd: what ends serving on rank 0 from outside its step loop. A lost rank outranks a stop,
// and a stop a drain.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/liveness.h"
#include "engine/engine.h"
#include "launcher/stop_signals.h"
#include "server/server.h"

namespace outrider {

class ServingEnd {
 public:
  using OnAbandon = std::function<void(const Loss& loss, const std::string& what)>;

  // drain_limit: what running calls have to finish, once asked to drain.
  // on_abandon: told why, in words too, before the process ends without unwinding; may be empty.
  ServingEnd(std::chrono::seconds drain_limit, OnAbandon on_abandon);
  // Waits for the drain, which ends with the calls or its limit.
  ~ServingEnd();
  ServingEnd(const ServingEnd&) = delete;
  ServingEnd& operator=(const ServingEnd&) = delete;

  // The methods below may be called on any thread.

  // From now on, until engine_ended(), there is something to end. `server` outlives this.
  // peer_gone: whether a peer's end can be seen already; may be empty.
  void serving(Engine& engine, Server& server, std::function<bool()> peer_gone);
  void engine_ended();

  // Every call ends at once with the reason. Ends the process where the engine's thread, which may
  // wait for that very rank inside MPI, does not end by itself.
  void lost(const Loss& loss);
  void request(StopRequest request);
  // New clients, or those who watch the server, cannot come in: those that are here are served to
  // the end, and then it fails.
  void unreachable();

 private:
  void drain(Server& server);

  const std::chrono::seconds drain_limit_;
  const OnAbandon on_abandon_;
  std::mutex mutex_;  // guards all below
  std::condition_variable ended_changed_;
  Engine* engine_ = nullptr;
  Server* server_ = nullptr;
  std::function<bool()> peer_gone_;
  bool ended_ = false;
  bool lost_ = false;
  std::thread draining_;
};

}  // namespace outrider
