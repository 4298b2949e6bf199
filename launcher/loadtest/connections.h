// Connections: to the server that is tested, opened before a load or as its streams need them, and
// kept from one load to the next, so that later ones wait for none.
#pragma once

#include <cstdint>
#include <deque>
#include <iterator>
#include <memory>

#include "launcher/client.h"
#include "outrider/v1/generation.grpc.pb.h"

namespace outrider {

// On one thread.
class Connections {
 public:
  struct Connection {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::GenerationService::Stub> stub;
    int num_streams = 0;
  };

  // The first is opened by its first call. Throws Error as Connector does.
  explicit Connections(const ServerAddress& server);

  const std::shared_ptr<grpc::Channel>& first() const { return connections_.front().channel; }
  // Opens as many as so many streams need.
  void reserve(int64_t num_streams);
  // One that has room for another stream. Opens it where there is none: what that takes is the
  // client's own delay, since nothing is sent meanwhile. Valid as long as this is.
  Connection& with_room();

  int64_t size() const { return std::ssize(connections_); }

 private:
  Connection& add();
  // Adds one and waits until it is there. Where one was not in time, requests wait for it and for
  // all behind it: that is the server's doing.
  void open();

  Connector connector_;
  std::deque<Connection> connections_;
  bool in_time_ = true;
};

}  // namespace outrider
