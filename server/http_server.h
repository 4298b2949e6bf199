// HttpServer: the HTTP port, for Prometheus and probes: /metrics, /healthz, /readyz.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/auth_tokens.h"
#include "server/http_limits.h"
#include "server/tls.h"

namespace outrider {

// What the port answers with; called by its threads.
struct HttpSources {
  std::function<std::string()> metrics;    // Prometheus' text format
  std::function<std::string()> not_ready;  // why the server cannot serve; empty: it does
};

// /healthz and /readyz ask nobody for a token: probes have none, and they tell no more than gRPC's
// health service. A connection is for one request, within its limits; a few are answered at a time,
// some wait, and the others are not accepted before one of these is over.
class HttpServer {
 public:
  // Answers at once. Throws Error where the port cannot be had. port: 0 for any free one.
  HttpServer(const std::string& address, int port, const TlsMaterial& tls, TokenCheck tokens,
             HttpSources sources, const HttpLimits& limits);
  // Ends every connection.
  ~HttpServer();

  int port() const;
  // It takes no connections any more, though nobody has stopped it. Thread-safe.
  bool ended() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
