// Server: the gRPC port. It is bound first, so that a port in use is known before weights are
// loaded, and serves once there is an engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "server/served_model.h"

namespace outrider {

struct CallLimits {
  // Bytes that a client may leave unread beyond what gRPC buffers.
  int64_t max_undelivered_bytes = 1 << 20;
  // How long a call that has ended waits for the client to read the rest.
  std::chrono::milliseconds collect_timeout{30'000};
};

struct ServerOptions {
  std::string address = "127.0.0.1";  // a host name or number, without the port
  int port = 50051;                   // 0: any free one
  bool reflection = false;
  int max_message_bytes = 16 << 20;     // of one request
  int64_t max_waiting_requests = 1024;  // beyond: RESOURCE_EXHAUSTED
  CallLimits calls;
};

// True for addresses that only this machine can reach.
bool is_loopback(const std::string& address);

class Server {
 public:
  // Answers at once: health NOT_SERVING, calls UNAVAILABLE. Throws Error where the address or port
  // cannot be had, saying why.
  explicit Server(const ServerOptions& options);
  ~Server();  // shuts down, with no grace

  int port() const;

  // Health SERVING. `engine` lives until shutdown() has returned.
  void start_serving(Engine& engine, ServedModel model);

  // Health NOT_SERVING, and every call ends with UNAVAILABLE and `reason`, whatever the engine
  // does. Thread-safe; does not wait for clients to read it.
  void fail_calls(const std::string& reason);

  // Health NOT_SERVING, new calls UNAVAILABLE; calls that run have `grace` to end, then they end
  // with UNAVAILABLE. Returns when nothing is left, at most a second after `grace`.
  void shutdown(std::chrono::milliseconds grace);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
