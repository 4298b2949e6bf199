// Control channel: host side, TCP, rank 0 in the middle. Rank 0 publishes numbered messages of
// bytes (the engine's plans); the other ranks sleep until one comes. MPI carries tensors only.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/greeting.h"
#include "comm/liveness.h"
#include "comm/socket.h"

namespace outrider {

// Rank 0's end. One thread uses it.
class ControlServer {
 public:
  // Listens on a free port of `host`, for ranks 1 … num_peers.
  ControlServer(int num_peers, std::string secret, const std::string& host = "127.0.0.1");
  // Without a goodbye() before, the peers see a broken connection.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // "host:port", where the peers connect to.
  std::string address() const { return listener_->address(); }

  // Waits until every peer has connected, for plans and for heartbeats, then stops listening. A
  // connection that does not present the secret is dropped. Throws PeerGoneError naming the ranks
  // that are missing after `timeout`.
  void accept_all(std::chrono::milliseconds timeout);

  // The heartbeat connections, for a Liveness. Call it after accept_all, at most once.
  std::vector<Liveness::Peer> take_heartbeats();

  // To every peer. Throws PeerGoneError naming the rank where one is.
  void publish(std::span<const uint8_t> message);

  // One message of each peer, [rank - 1]. Throws PeerGoneError naming the rank where one is, or
  // Error those that have said nothing after `timeout`.
  std::vector<std::vector<uint8_t>> gather(std::chrono::milliseconds timeout);

  // The orderly end: the receive() of every peer that is left returns nullopt.
  void goodbye();

 private:
  void throw_if_peer_gone();

  int num_peers_;
  std::optional<GreetingListener> listener_;
  std::vector<FrameSocket> peers_;  // [rank - 1]
  std::vector<pollfd> polls_;       // [rank - 1], for the end of a connection
  std::vector<Liveness::Peer> heartbeats_;
};

// Every other rank's end. One thread uses it.
class ControlClient {
 public:
  // Throws Error where rank 0 cannot be reached.
  ControlClient(const std::string& address, int rank, const std::string& secret);

  // The heartbeat connection to rank 0, for a Liveness. At most once.
  std::vector<Liveness::Peer> take_heartbeats();

  // The next message; nullopt once rank 0 has said goodbye. Polls busily for `spin`, then sleeps in
  // the kernel (no CPU time). Throws PeerGoneError where the connection ends without a goodbye, and
  // Error where a message is missing.
  std::optional<std::vector<uint8_t>> receive(std::chrono::microseconds spin);

  void send(std::span<const uint8_t> message);

 private:
  FrameSocket server_;
  FileDescriptor heartbeats_;
};

}  // namespace outrider
