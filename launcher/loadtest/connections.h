// Connections: to the server that is tested, opened as streams need them and kept from one load to
// the next, so that later ones wait for none.
#pragma once

#include <deque>
#include <memory>

#include "launcher/client.h"
#include "outrider/v1/generation.grpc.pb.h"

namespace outrider {

// On one thread.
class Connections {
 public:
  struct Connection {
    std::unique_ptr<v1::GenerationService::Stub> stub;
    int num_streams = 0;
  };

  // Opens the first. Throws Error as Connector does.
  explicit Connections(const ServerAddress& server);

  const std::shared_ptr<grpc::Channel>& first() const { return first_; }
  // One that has room for another stream. Valid as long as this is.
  Connection& with_room();

 private:
  Connector connector_;
  std::shared_ptr<grpc::Channel> first_;
  std::deque<Connection> connections_;
};

}  // namespace outrider
