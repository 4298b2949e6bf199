// See connections.h.
#include "launcher/loadtest/connections.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace outrider {
namespace {

// Streams that share a connection. Servers allow so many on one (Outrider 256) and gRPC silently
// queues what is beyond; a queue in the client is none that a load test should measure.
constexpr int kStreamsPerConnection = 100;

// A server that is there is faster, and Ctrl-C is not seen meanwhile.
constexpr std::chrono::seconds kLongestWait{5};

}  // namespace

Connections::Connections(const ServerAddress& server) : connector_(server) { add(); }

void Connections::reserve(int64_t num_streams) {
  while (in_time_ && size() * kStreamsPerConnection < num_streams) open();
}

Connections::Connection& Connections::with_room() {
  const auto found = std::ranges::find_if(connections_, [](const Connection& connection) {
    return connection.num_streams < kStreamsPerConnection;
  });
  if (found != connections_.end()) return *found;
  open();
  return connections_.back();
}

Connections::Connection& Connections::add() {
  std::shared_ptr<grpc::Channel> channel = connector_.connect();
  auto stub = v1::GenerationService::NewStub(channel);
  return connections_.emplace_back(std::move(channel), std::move(stub));
}

void Connections::open() {
  const auto until = std::chrono::system_clock::now() + kLongestWait;
  Connection& added = add();
  in_time_ = in_time_ && added.channel->WaitForConnected(until);
}

}  // namespace outrider
