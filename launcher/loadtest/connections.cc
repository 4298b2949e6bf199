// See connections.h.
#include "launcher/loadtest/connections.h"

#include <algorithm>

namespace outrider {
namespace {

// Streams that share a connection. Servers allow so many on one (Outrider 256) and gRPC silently
// queues what is beyond; a queue in the client is none that a load test should measure.
constexpr int kStreamsPerConnection = 100;

}  // namespace

Connections::Connections(const ServerAddress& server)
    : connector_(server), first_(connector_.connect()) {
  connections_.push_back({v1::GenerationService::NewStub(first_)});
}

Connections::Connection& Connections::with_room() {
  const auto found = std::ranges::find_if(connections_, [](const Connection& connection) {
    return connection.num_streams < kStreamsPerConnection;
  });
  if (found != connections_.end()) return *found;
  return connections_.emplace_back(v1::GenerationService::NewStub(connector_.connect()));
}

}  // namespace outrider
