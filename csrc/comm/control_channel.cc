#include "comm/control_channel.h"

#include <sys/socket.h>

#include <cerrno>
#include <thread>
#include <utility>

#include "core/error.h"

namespace outrider {
namespace {

using std::chrono::steady_clock;

// "rank 1", "ranks 1, 3"
std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

// 0 where none is pending.
int socket_error(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

constexpr short kEnded = POLLRDHUP | POLLHUP | POLLERR | POLLNVAL;

}  // namespace

ControlServer::ControlServer(int num_peers, std::string secret, const std::string& host)
    : num_peers_(num_peers), listener_(std::in_place, host, std::move(secret)) {
  CHECK(num_peers_ >= 0);
}

ControlServer::~ControlServer() = default;

void ControlServer::accept_all(std::chrono::milliseconds timeout) {
  CHECK(peers_.empty());
  const Deadline deadline = steady_clock::now() + timeout;
  std::vector<FileDescriptor> plans(num_peers_), heartbeats(num_peers_);  // [rank - 1]

  const auto missing = [&] {
    std::vector<int> ranks;
    for (int i = 0; i < num_peers_; ++i) {
      if (!plans[i].valid() || !heartbeats[i].valid()) ranks.push_back(i + 1);
    }
    return ranks;
  };

  const auto seat = [&](GreetingListener::Guest guest) {
    if (guest.rank < 1 || guest.rank > static_cast<uint32_t>(num_peers_)) {
      throw Error("control channel: a peer calls itself rank " + std::to_string(guest.rank) +
                  "; expected 1 to " + std::to_string(num_peers_));
    }
    auto& places = guest.use == ConnectionUse::heartbeats ? heartbeats : plans;
    FileDescriptor& place = places[guest.rank - 1];
    if (place.valid()) {
      throw Error("control channel: rank " + std::to_string(guest.rank) + " connected twice");
    }
    place = std::move(guest.fd);
  };

  std::vector<pollfd> polls;
  while (!missing().empty()) {
    const int left_ms = poll_timeout_ms(deadline);
    if (left_ms == 0) {
      throw PeerGoneError("control channel: " + rank_list(missing()) + " did not connect within " +
                          std::to_string(timeout.count()) + " ms");
    }
    polls.clear();
    listener_->append_polls(polls);
    poll(polls.data(), polls.size(), left_ms);
    while (std::optional<GreetingListener::Guest> guest = listener_->accept()) {
      seat(*std::move(guest));
    }
  }

  for (int rank = 1; rank <= num_peers_; ++rank) {
    peers_.emplace_back(std::move(plans[rank - 1]), "rank " + std::to_string(rank));
    polls_.push_back({peers_.back().fd(), POLLRDHUP, 0});
    heartbeats_.push_back({rank, std::move(heartbeats[rank - 1])});
  }
  listener_.reset();
}

std::vector<Liveness::Peer> ControlServer::take_heartbeats() { return std::move(heartbeats_); }

void ControlServer::throw_if_peer_gone() {
  if (poll(polls_.data(), polls_.size(), 0) <= 0) return;
  for (size_t i = 0; i < polls_.size(); ++i) {
    if ((polls_[i].revents & kEnded) == 0) continue;
    // As Liveness says it: whoever notices first tells the clients.
    throw PeerGoneError(peers_[i].peer() + " is lost: " + end_reason(socket_error(polls_[i].fd)));
  }
}

void ControlServer::publish(std::span<const uint8_t> message) {
  throw_if_peer_gone();  // the first send to a closed connection would succeed
  for (FrameSocket& peer : peers_) peer.send(FrameKind::message, message);
}

std::vector<std::vector<uint8_t>> ControlServer::gather(std::chrono::milliseconds timeout) {
  const Deadline deadline = steady_clock::now() + timeout;
  std::vector<std::vector<uint8_t>> messages(peers_.size());
  std::vector<pollfd> silent = polls_;  // fd < 0: has spoken
  for (pollfd& p : silent) p.events |= POLLIN;
  for (;;) {
    std::vector<int> ranks;
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (silent[i].fd < 0) continue;
      if (std::optional<Frame> frame = peers_[i].try_receive()) {
        messages[i] = std::move(frame->bytes);
        silent[i].fd = -1;
      } else {
        ranks.push_back(static_cast<int>(i) + 1);
      }
    }
    if (ranks.empty()) return messages;
    throw_if_peer_gone();
    const int left_ms = poll_timeout_ms(deadline);
    if (left_ms == 0) {
      throw Error("control channel: " + rank_list(ranks) + " said nothing within " +
                  std::to_string(timeout.count()) + " ms");
    }
    poll(silent.data(), silent.size(), left_ms);
  }
}

void ControlServer::goodbye() {
  for (FrameSocket& peer : peers_) {
    try {
      peer.send(FrameKind::goodbye, {});
    } catch (const Error&) {
      // One that has gone already needs none, and the others still do.
    }
  }
}

ControlClient::ControlClient(const std::string& address, int rank, const std::string& secret)
    : server_(connect_with_greeting(address, rank, ConnectionUse::plans, secret), "rank 0"),
      heartbeats_(connect_with_greeting(address, rank, ConnectionUse::heartbeats, secret)) {}

std::vector<Liveness::Peer> ControlClient::take_heartbeats() {
  std::vector<Liveness::Peer> peers;
  peers.push_back({0, std::move(heartbeats_)});
  return peers;
}

std::optional<std::vector<uint8_t>> ControlClient::receive(std::chrono::microseconds spin) {
  std::optional<Frame> frame;
  const Deadline busy_until = steady_clock::now() + spin;
  while (!(frame = server_.try_receive()) && steady_clock::now() < busy_until) {
    std::this_thread::yield();  // free where nobody else wants the core
  }
  if (!frame) frame = server_.receive(kNoDeadline);
  if (frame->kind == FrameKind::goodbye) return std::nullopt;
  return std::move(frame->bytes);
}

void ControlClient::send(std::span<const uint8_t> message) {
  server_.send(FrameKind::message, message);
}

}  // namespace outrider
