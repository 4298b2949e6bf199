// See address.h.
#include "server/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "comm/socket.h"
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

socklen_t size_of(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

// Returns 0, or the errno of the failure; -1 where this machine has no such family.
int try_bind(const sockaddr_storage& address, bool listens) {
  const FileDescriptor fd(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return -1;
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool free =
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size_of(address)) == 0 &&
      (!listens || listen(fd.get(), 1) == 0);
  return free ? 0 : errno;
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

std::vector<std::string> own_addresses(const std::string& address, int port) {
  if (address == "0.0.0.0") return {host_and_port("127.0.0.1", port)};
  if (address == "::") return {host_and_port("::1", port), host_and_port("127.0.0.1", port)};
  std::vector<std::string> own;
  for (const sockaddr_storage& socket_address : resolve(address, 0)) {
    if (try_bind(socket_address, false) != 0) continue;
    char host[INET6_ADDRSTRLEN];
    getnameinfo(reinterpret_cast<const sockaddr*>(&socket_address), size_of(socket_address), host,
                sizeof host, nullptr, 0, NI_NUMERICHOST);
    own.push_back(host_and_port(host, port));
  }
  return own;
}

std::string host_and_port(const std::string& address, int port) {
  const bool is_ipv6 = address.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

void check_port_is_free(const std::string& address, int port) {
  bool found = false, missing = false;
  for (const sockaddr_storage& socket_address : resolve(address, port)) {
    const int error = try_bind(socket_address, true);
    if (error == -1) continue;
    if (error == EADDRNOTAVAIL) {  // the host may have another of its name's addresses
      missing = true;
      continue;
    }
    if (error != 0) throw cannot_listen(address, port, error);
    found = true;
  }
  if (missing && !found) throw cannot_listen(address, port, EADDRNOTAVAIL);
}

}  // namespace outrider
