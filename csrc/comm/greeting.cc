#include "comm/greeting.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>

#include "core/error.h"
#include "core/host_name.h"

namespace outrider {
namespace {

constexpr std::chrono::seconds kConnectTimeout{10};

// The secret follows.
struct Greeting {
  uint32_t magic;
  uint32_t version;
  uint32_t rank;
  uint32_t use;
};
constexpr uint32_t kGreetingMagic = 0x4752544F;  // "OTRG"
constexpr uint32_t kGreetingVersion = 2;

// Beyond this the oldest that has connected and said nothing is dropped. More than the two
// connections of each of 64 ranks: a greeting may still be on its way.
constexpr size_t kMaxPending = 256;

// Takes the same time wherever the first difference is.
bool equal_secrets(std::span<const uint8_t> a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ static_cast<uint8_t>(b[i]);
  return difference == 0;
}

std::string numeric_host(const sockaddr* address) {
  const socklen_t length =
      address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  char host[NI_MAXHOST];
  if (getnameinfo(address, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return host;
}

bool is_loopback(const sockaddr* address) {
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
  return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
}

// IPv4 addresses of this host's interfaces, without loopback.
std::vector<std::string> interface_hosts() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) throw Error("getifaddrs failed: " + errno_text(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(found, &freeifaddrs);
  std::vector<std::string> hosts;
  for (const ifaddrs* i = list.get(); i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr != nullptr && i->ifa_addr->sa_family == AF_INET &&
        (i->ifa_flags & IFF_UP) != 0 && !is_loopback(i->ifa_addr)) {
      hosts.push_back(numeric_host(i->ifa_addr));
    }
  }
  return hosts;
}

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
  const std::string name = host_name();
  const std::vector<std::string> own = interface_hosts();
  if (own.empty()) {
    throw Error("control channel: host " + name +
                " has no IPv4 address that other hosts could reach");
  }
  // Many hosts name themselves 127.0.1.1 in /etc/hosts, or an address that they have no more.
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &found) == 0) {
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
    for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
      const std::string host = numeric_host(a->ai_addr);
      if (std::find(own.begin(), own.end(), host) != own.end()) return host;
    }
  }
  return own.front();
}

FileDescriptor connect_with_greeting(const std::string& address, int rank, ConnectionUse use,
                                     const std::string& secret) {
  FileDescriptor fd = connect_to(address, std::chrono::steady_clock::now() + kConnectTimeout);
  const Greeting greeting{kGreetingMagic, kGreetingVersion, static_cast<uint32_t>(rank),
                          static_cast<uint32_t>(use)};
  const int error =
      send_all(fd.get(), {reinterpret_cast<const uint8_t*>(&greeting), sizeof(greeting)},
               {reinterpret_cast<const uint8_t*>(secret.data()), secret.size()});
  if (error != 0) {
    throw Error("control channel: cannot greet " + address + ": " + errno_text(error));
  }
  return fd;
}

GreetingListener::GreetingListener(const std::string& host, std::string secret)
    : secret_(std::move(secret)), listener_(listen_on(host, &address_)) {
  CHECK(!secret_.empty());
}

void GreetingListener::append_polls(std::vector<pollfd>& polls) const {
  polls.push_back({listener_.get(), POLLIN, 0});
  for (const Pending& p : pending_) polls.push_back({p.fd.get(), POLLIN, 0});
}

std::optional<GreetingListener::Guest> GreetingListener::accept() {
  accept_pending();
  for (auto it = pending_.begin(); it != pending_.end();) {
    const Progress progress = read_greeting(*it);
    if (progress == Progress::waiting) {
      ++it;
      continue;
    }
    Pending settled = std::move(*it);
    it = pending_.erase(it);
    if (progress == Progress::stranger) continue;
    Greeting greeting;
    std::memcpy(&greeting, settled.greeting.data(), sizeof(greeting));
    return Guest{std::move(settled.fd), greeting.rank, ConnectionUse{greeting.use}};
  }
  return std::nullopt;
}

void GreetingListener::accept_pending() {
  while (true) {
    // Those who have greeted are not dropped for those who came later, who wait in the kernel.
    auto silent = pending_.end();
    if (pending_.size() == kMaxPending) {
      silent = std::find_if(pending_.begin(), pending_.end(),
                            [this](Pending& p) { return read_greeting(p) != Progress::greeted; });
      if (silent == pending_.end()) return;
    }
    FileDescriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      throw Error("control channel: accept failed: " + errno_text(errno));
    }
    if (silent != pending_.end()) pending_.erase(silent);
    pending_.push_back({std::move(fd), {}});
  }
}

// Reads what there is of the greeting.
GreetingListener::Progress GreetingListener::read_greeting(Pending& pending) const {
  std::vector<uint8_t>& bytes = pending.greeting;
  const size_t size = sizeof(Greeting) + secret_.size();
  while (bytes.size() < size) {
    const size_t have = bytes.size();
    bytes.resize(size);
    const ssize_t n = recv(pending.fd.get(), bytes.data() + have, size - have, MSG_DONTWAIT);
    const int error = errno;
    bytes.resize(have + std::max<ssize_t>(n, 0));
    if (n == 0) return Progress::stranger;
    if (n < 0 && error == EAGAIN) return Progress::waiting;
    if (n < 0 && error != EINTR) return Progress::stranger;
  }
  Greeting greeting;
  std::memcpy(&greeting, bytes.data(), sizeof(greeting));
  const bool right = greeting.magic == kGreetingMagic && greeting.version == kGreetingVersion &&
                     equal_secrets(std::span(bytes).subspan(sizeof(greeting)), secret_);
  return right ? Progress::greeted : Progress::stranger;
}

}  // namespace outrider
