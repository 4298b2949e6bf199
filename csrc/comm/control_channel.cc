#include "comm/control_channel.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace outrider {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kConnectTimeout{10};

// The first bytes of a connection, before any frame; the secret follows.
struct Greeting {
  uint32_t magic;
  uint32_t version;
  uint32_t rank;
};
constexpr uint32_t kGreetingMagic = 0x4752544F;  // "OTRG"
constexpr uint32_t kGreetingVersion = 1;

// Strangers that have connected and not yet said who they are; beyond this the oldest is dropped.
constexpr size_t kMaxPending = 64;

struct Pending {
  FileDescriptor fd;
  std::vector<uint8_t> greeting;  // as much as has arrived
};

// Takes the same time wherever the first difference is.
bool equal_secrets(std::span<const uint8_t> a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ static_cast<uint8_t>(b[i]);
  return difference == 0;
}

// Reads what there is of the greeting. False where the connection is of no use any more.
bool read_greeting(Pending& pending, size_t greeting_bytes) {
  while (pending.greeting.size() < greeting_bytes) {
    const size_t have = pending.greeting.size();
    pending.greeting.resize(greeting_bytes);
    const ssize_t n =
        recv(pending.fd.get(), pending.greeting.data() + have, greeting_bytes - have, MSG_DONTWAIT);
    pending.greeting.resize(have + std::max<ssize_t>(n, 0));
    if (n == 0) return false;
    if (n < 0 && errno != EINTR) return errno == EAGAIN || errno == EWOULDBLOCK;
  }
  return true;
}

// "rank 1", "ranks 1, 3"
std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

std::string numeric_host(const sockaddr* address) {
  const socklen_t length =
      address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  char host[NI_MAXHOST];
  if (getnameinfo(address, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return host;
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// Why a connection that poll() reports as ended has ended.
std::string end_reason(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? "it closed the connection" : errno_text(error);
}

constexpr short kEnded = POLLRDHUP | POLLHUP | POLLERR | POLLNVAL;

}  // namespace

std::string make_control_secret() {
  uint8_t bytes[32];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) {
    throw Error("no random bytes for the secret of this job: " + errno_text(errno));
  }
  std::string secret;
  for (const uint8_t byte : bytes) {
    secret += "0123456789abcdef"[byte >> 4];
    secret += "0123456789abcdef"[byte & 15];
  }
  return secret;
}

std::string control_host(bool all_ranks_on_this_host) {
  if (all_ranks_on_this_host) return "127.0.0.1";
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  std::string host;
  addrinfo* found = nullptr;
  if (getaddrinfo(name, nullptr, &hints, &found) == 0) {
    for (const addrinfo* a = found; a != nullptr && host.empty(); a = a->ai_next) {
      if (!is_loopback(a->ai_addr)) host = numeric_host(a->ai_addr);
    }
    freeaddrinfo(found);
  }
  // Many hosts name themselves 127.0.1.1 in /etc/hosts, which helps nobody else.
  ifaddrs* interfaces = nullptr;
  if (host.empty() && getifaddrs(&interfaces) == 0) {
    for (const ifaddrs* i = interfaces; i != nullptr && host.empty(); i = i->ifa_next) {
      if (i->ifa_addr != nullptr && i->ifa_addr->sa_family == AF_INET &&
          (i->ifa_flags & IFF_UP) != 0 && !is_loopback(i->ifa_addr)) {
        host = numeric_host(i->ifa_addr);
      }
    }
    freeifaddrs(interfaces);
  }
  if (host.empty()) {
    throw Error("control channel: host " + std::string(name) +
                " has no IPv4 address that other hosts could reach");
  }
  return host;
}

// The thread that sees connections end while rank 0 is idle or computing.
struct ControlServer::Watcher {
  Watcher(const std::vector<FrameSocket>& peers,
          std::function<void(int, const std::string&)> on_peer_lost)
      : stop(eventfd(0, EFD_CLOEXEC)) {
    if (!stop.valid()) throw Error("control channel: eventfd failed: " + errno_text(errno));
    std::vector<pollfd> polls{{stop.get(), POLLIN, 0}};
    for (const FrameSocket& peer : peers) polls.push_back({peer.fd(), POLLRDHUP, 0});
    thread = std::jthread([polls = std::move(polls), lost = std::move(on_peer_lost)]() mutable {
      while (polls[0].revents == 0) {
        if (poll(polls.data(), polls.size(), -1) < 0) continue;  // EINTR
        for (size_t rank = 1; rank < polls.size(); ++rank) {
          if ((polls[rank].revents & kEnded) == 0) continue;
          lost(static_cast<int>(rank), end_reason(polls[rank].fd));
          polls[rank].fd = -1;  // poll() leaves it out, and sets revents to 0
        }
      }
    });
  }
  ~Watcher() { CHECK(eventfd_write(stop.get(), 1) == 0); }

  FileDescriptor stop;
  std::jthread thread;  // joins before `stop` closes
};

ControlServer::ControlServer(int num_peers, std::string secret, const std::string& host)
    : num_peers_(num_peers), secret_(std::move(secret)), listener_(listen_on(host, &address_)) {
  CHECK(num_peers_ >= 0 && !secret_.empty());
}

ControlServer::~ControlServer() = default;

void ControlServer::accept_all(std::chrono::milliseconds timeout) {
  CHECK(peers_.empty());
  const Deadline deadline = steady_clock::now() + timeout;
  const size_t greeting_bytes = sizeof(Greeting) + secret_.size();
  std::vector<FileDescriptor> accepted(num_peers_);  // [rank - 1]
  std::vector<Pending> pending;
  std::vector<pollfd> polls;

  const auto missing = [&] {
    std::vector<int> ranks;
    for (int i = 0; i < num_peers_; ++i) {
      if (!accepted[i].valid()) ranks.push_back(i + 1);
    }
    return ranks;
  };

  // True once `p` needs no more attention: it has become a peer, or is a stranger.
  const auto settled = [&](Pending& p) {
    if (!read_greeting(p, greeting_bytes)) return true;
    if (p.greeting.size() < greeting_bytes) return false;
    Greeting greeting;
    std::memcpy(&greeting, p.greeting.data(), sizeof(greeting));
    if (greeting.magic != kGreetingMagic || greeting.version != kGreetingVersion ||
        !equal_secrets(std::span(p.greeting).subspan(sizeof(greeting)), secret_)) {
      return true;
    }
    if (greeting.rank < 1 || greeting.rank > static_cast<uint32_t>(num_peers_)) {
      throw Error("control channel: a peer calls itself rank " + std::to_string(greeting.rank) +
                  "; expected 1 to " + std::to_string(num_peers_));
    }
    FileDescriptor& place = accepted[greeting.rank - 1];
    if (place.valid()) {
      throw Error("control channel: rank " + std::to_string(greeting.rank) + " connected twice");
    }
    place = std::move(p.fd);
    return true;
  };

  while (!missing().empty()) {
    const int left_ms = poll_timeout_ms(deadline);
    if (left_ms == 0) {
      throw Error("control channel: " + rank_list(missing()) + " did not connect within " +
                  std::to_string(timeout.count()) + " ms");
    }
    polls.assign(1, {listener_.get(), POLLIN, 0});
    for (const Pending& p : pending) polls.push_back({p.fd.get(), POLLIN, 0});
    poll(polls.data(), polls.size(), left_ms);
    std::erase_if(pending, settled);
    FileDescriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) continue;
      throw Error("control channel: accept failed: " + errno_text(errno));
    }
    if (pending.size() == kMaxPending) pending.erase(pending.begin());
    pending.push_back({std::move(fd), {}});
  }

  for (int rank = 1; rank <= num_peers_; ++rank) {
    peers_.emplace_back(std::move(accepted[rank - 1]), "rank " + std::to_string(rank));
    polls_.push_back({peers_.back().fd(), POLLRDHUP, 0});
  }
  listener_ = FileDescriptor();
}

void ControlServer::watch(std::function<void(int, const std::string&)> on_peer_lost) {
  CHECK(watcher_ == nullptr);
  watcher_ = std::make_unique<Watcher>(peers_, std::move(on_peer_lost));
}

void ControlServer::throw_if_peer_gone() {
  if (poll(polls_.data(), polls_.size(), 0) <= 0) return;
  for (size_t i = 0; i < polls_.size(); ++i) {
    if ((polls_[i].revents & kEnded) == 0) continue;
    throw Error("control channel: " + peers_[i].peer() + " is gone: " + end_reason(polls_[i].fd));
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
  watcher_.reset();  // the peers' closing is no loss from here on
  for (FrameSocket& peer : peers_) {
    try {
      peer.send(FrameKind::goodbye, {});
    } catch (const Error&) {
      // One that has gone already needs none, and the others still do.
    }
  }
}

ControlClient::ControlClient(const std::string& address, int rank, const std::string& secret)
    : server_(connect_to(address, steady_clock::now() + kConnectTimeout), "rank 0"),
      last_message_(steady_clock::now()) {
  const Greeting greeting{kGreetingMagic, kGreetingVersion, static_cast<uint32_t>(rank)};
  const int error =
      send_all(server_.fd(), {reinterpret_cast<const uint8_t*>(&greeting), sizeof(greeting)},
               {reinterpret_cast<const uint8_t*>(secret.data()), secret.size()});
  if (error != 0) {
    throw Error("control channel: cannot greet rank 0 at " + address + ": " + errno_text(error));
  }
}

std::optional<std::vector<uint8_t>> ControlClient::receive(std::chrono::microseconds spin) {
  std::optional<Frame> frame;
  while (!(frame = server_.try_receive()) && steady_clock::now() - last_message_ < spin) {
    std::this_thread::yield();  // free where nobody else wants the core
  }
  if (!frame) frame = server_.receive(kNoDeadline);
  last_message_ = steady_clock::now();
  if (frame->kind == FrameKind::goodbye) return std::nullopt;
  return std::move(frame->bytes);
}

void ControlClient::send(std::span<const uint8_t> message) {
  server_.send(FrameKind::message, message);
}

}  // namespace outrider
