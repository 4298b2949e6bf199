// See address.h.
#include "server/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace outrider {
namespace {

// Everything that `address` stands for.
std::vector<sockaddr_storage> resolve(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    throw Error("--address " + address + " cannot be resolved: " + gai_strerror(error));
  }
  std::vector<sockaddr_storage> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    std::memcpy(&addresses.emplace_back(), info->ai_addr, info->ai_addrlen);
  }
  freeaddrinfo(found);
  return addresses;
}

Error cannot_listen(const std::string& address, int port, int error) {
  return Error("cannot listen on " + host_and_port(address, port) + ": " + std::strerror(error));
}

}  // namespace

bool is_loopback(const std::string& address) {
  for (const sockaddr_storage& socket_address : resolve(address, 0)) {
    if (socket_address.ss_family == AF_INET) {
      const auto& v4 = reinterpret_cast<const sockaddr_in&>(socket_address);
      if (ntohl(v4.sin_addr.s_addr) >> 24 != 127) return false;
    } else {
      const auto& v6 = reinterpret_cast<const sockaddr_in6&>(socket_address);
      if (!IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr)) return false;
    }
  }
  return true;
}

std::string host_and_port(const std::string& address, int port) {
  const bool is_ipv6 = address.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

void check_port_is_free(const std::string& address, int port) {
  bool found = false, missing = false;
  for (const sockaddr_storage& socket_address : resolve(address, port)) {
    const int fd = socket(socket_address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;  // an address family that this machine does not have
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const socklen_t size =
        socket_address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    const bool free = bind(fd, reinterpret_cast<const sockaddr*>(&socket_address), size) == 0 &&
                      listen(fd, 1) == 0;
    const int error = errno;
    close(fd);
    if (!free && error == EADDRNOTAVAIL) {  // the host may have another of its name's addresses
      missing = true;
      continue;
    }
    if (!free) throw cannot_listen(address, port, error);
    found = true;
  }
  if (missing && !found) throw cannot_listen(address, port, EADDRNOTAVAIL);
}

}  // namespace outrider
