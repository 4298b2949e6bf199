// Server: the gRPC port, and the HTTP port beside it. Both are bound first, so that a port in use
// is known before weights are loaded, and serve once there is an engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/engine.h"
#include "engine/trace.h"
#include "server/http_limits.h"
#include "server/logging.h"
#include "server/served_model.h"
#include "server/tls.h"

namespace outrider {

class EngineMetrics;

struct CallLimits {
  // Bytes that a client may leave unread beyond what gRPC buffers.
  int64_t max_undelivered_bytes = 1 << 20;
  // Of the answers of one GenerateOnce.
  int64_t max_answer_bytes = 16 << 20;
  // How long a call that has ended waits for gRPC to take more of it, as it does as the client
  // reads.
  std::chrono::milliseconds collect_timeout{30'000};
};

struct ServerOptions {
  std::string address = "127.0.0.1";  // a host name or number, without the port
  int port = 50051;                   // 0: any free one
  TlsFiles tls;                       // without a certificate: in the clear
  std::string auth_token_file;        // empty: nobody is asked for a token
  bool reflection = false;            // not with tokens: it asks nobody for one
  std::optional<int> http_port;       // unset: no HTTP; 0: any free one
  HttpLimits http_limits;
  std::string trace_file;  // empty: no trace
  LogFormat log_format = LogFormat::text;
  int max_message_bytes = 4 << 20;       // of one request
  int64_t max_waiting_requests = 1024;   // beyond: RESOURCE_EXHAUSTED
  int64_t max_waiting_tokens = 1 << 20;  // of their prompts; beyond: the same
  int64_t max_streams_per_tenant = 0;    // calls under way; beyond: the same; 0: no limit
  CallLimits calls;
};

// Whether the options go together, as far as that takes no file to know. Throws Error.
void check_together(const ServerOptions& options);

class Server {
 public:
  // Answers at once: health NOT_SERVING, calls UNAVAILABLE. Throws Error where the address or port
  // cannot be had or a file of the options is not what it should be, saying why.
  explicit Server(const ServerOptions& options);
  ~Server();  // shuts down, with no grace

  int port() const;
  // 0 where there is no HTTP.
  int http_port() const;
  // HTTP takes no connections any more, though nobody has stopped it. Thread-safe.
  bool http_ended() const;

  // Where the port can be reached from this machine: own_addresses, as names stood for when the
  // server was made. That they cannot be resolved for a while says nothing of the port.
  const std::vector<std::string>& addresses() const;

  // What /metrics shows: for the engine to count with.
  EngineMetrics& metrics();
  // Where steps are traced to; null where nobody asked for a trace.
  TraceWriter* trace();

  // Health SERVING, /readyz 200. `engine` lives until shutdown() has returned.
  void start_serving(Engine& engine, ServedModel model);

  // Health NOT_SERVING, and every call, new ones too, ends with UNAVAILABLE and `reason`, whatever
  // the engine does. Thread-safe; does not wait for clients to read it.
  void fail_calls(const std::string& reason);

  // Health NOT_SERVING and new calls UNAVAILABLE; those that run go on. Thread-safe.
  void drain();

  // True once no call is left that was accepted; false after `timeout`. Thread-safe.
  bool wait_for_calls(std::chrono::milliseconds timeout);

  // Health NOT_SERVING, new calls UNAVAILABLE; calls that run have `grace` to end, then they end
  // with UNAVAILABLE. Returns when nothing is left, at most a second after `grace`.
  void shutdown(std::chrono::milliseconds grace);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
