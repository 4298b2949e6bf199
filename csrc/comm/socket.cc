#include "comm/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "core/error.h"

namespace outrider {
namespace {

struct FrameHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t kind;
  uint64_t number;
  uint64_t bytes;
};
static_assert(sizeof(FrameHeader) == 24);

constexpr uint32_t kFrameMagic = 0x4352544F;  // "OTRC"
constexpr uint16_t kFrameVersion = 1;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int result = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (result != 0) {
    throw Error("control channel: cannot resolve " + host + ": " + gai_strerror(result));
  }
  return {found, &freeaddrinfo};
}

// "127.0.0.1:4711", "[::1]:4711"
std::string local_address(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof(host), port,
                  sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    throw Error("control channel: the listening socket has no address: " + errno_text(errno));
  }
  if (address.ss_family == AF_INET6) return std::string("[").append(host).append("]:").append(port);
  return std::string(host).append(":").append(port);
}

void set_option(int fd, int level, int option, int value) {
  if (setsockopt(fd, level, option, &value, sizeof(value)) != 0) {
    throw Error("control channel: setsockopt failed: " + errno_text(errno));
  }
}

// Returns 0, or the errno of the failure. fd does not block.
int connect_until(int fd, const addrinfo& to, Deadline deadline) {
  if (connect(fd, to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  pollfd wait{fd, POLLOUT, 0};
  int ready;
  do {
    ready = poll(&wait, 1, poll_timeout_ms(deadline));
  } while (ready < 0 && errno == EINTR);
  if (ready < 0) return errno;
  if (ready == 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

}  // namespace

int poll_timeout_ms(Deadline deadline) {
  if (deadline == kNoDeadline) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
}

std::string errno_text(int error) { return std::generic_category().message(error); }

std::string end_reason(int error) {
  // A reset is what a close looks like where something was still unread.
  return error == 0 || error == ECONNRESET || error == EPIPE ? "it closed the connection"
                                                             : errno_text(error);
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

FileDescriptor listen_on(const std::string& host, std::string* address) {
  const AddressList list = resolve(host, "0", AI_PASSIVE);
  FileDescriptor fd(socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() || bind(fd.get(), list->ai_addr, list->ai_addrlen) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    throw Error("control channel: cannot listen on " + host + ": " + errno_text(errno));
  }
  *address = local_address(fd.get());
  return fd;
}

FileDescriptor connect_to(const std::string& address, Deadline deadline) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    throw Error("control channel: address is \"" + address + "\"; expected host:port");
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  const AddressList list = resolve(host, address.substr(colon + 1), AI_NUMERICSERV);
  FileDescriptor fd(socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int error = fd.valid() ? connect_until(fd.get(), *list, deadline) : errno;
  if (error != 0) {
    throw Error("control channel: cannot connect to " + address + ": " + errno_text(error));
  }
  return fd;
}

int send_all(int fd, std::span<const uint8_t> first, std::span<const uint8_t> second) {
  while (!first.empty() || !second.empty()) {
    iovec parts[2] = {{const_cast<uint8_t*>(first.data()), first.size()},
                      {const_cast<uint8_t*>(second.data()), second.size()}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno;
    const size_t of_first = std::min<size_t>(sent, first.size());
    first = first.subspan(of_first);
    second = second.subspan(sent - of_first);
  }
  return 0;
}

FrameSocket::FrameSocket(FileDescriptor fd, std::string peer)
    : fd_(std::move(fd)), peer_(std::move(peer)) {
  const int flags = fcntl(fd_.get(), F_GETFL);
  if (flags < 0 || fcntl(fd_.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) {
    throw Error("control channel: fcntl failed: " + errno_text(errno));
  }
  set_option(fd_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
}

void FrameSocket::send(FrameKind kind, std::span<const uint8_t> bytes) {
  CHECK(bytes.size() <= kMaxFrameBytes);
  const FrameHeader header{kFrameMagic, kFrameVersion, static_cast<uint16_t>(kind), frames_sent_++,
                           bytes.size()};
  const int error =
      send_all(fd_.get(), {reinterpret_cast<const uint8_t*>(&header), sizeof(header)}, bytes);
  if (error != 0) throw PeerGoneError(peer_ + " is lost: " + end_reason(error));
}

size_t FrameSocket::receive_some(std::span<uint8_t> into) {
  ssize_t received;
  do {
    received = recv(fd_.get(), into.data(), into.size(), MSG_DONTWAIT);
  } while (received < 0 && errno == EINTR);
  if (received > 0) return received;
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
  throw PeerGoneError(peer_ + " is lost: " + end_reason(received == 0 ? 0 : errno));
}

Frame FrameSocket::receive_rest(std::span<uint8_t> header_bytes, size_t received) {
  const auto receive_all = [&](std::span<uint8_t> left) {
    while (!left.empty()) {
      const size_t n = receive_some(left);
      left = left.subspan(n);
      pollfd wait{fd_.get(), POLLIN, 0};
      if (n == 0) poll(&wait, 1, -1);  // whatever ended it, receive_some() says what is the matter
    }
  };
  receive_all(header_bytes.subspan(received));
  FrameHeader header;
  std::memcpy(&header, header_bytes.data(), sizeof(header));
  const auto refuse = [&](const char* field, uint64_t found, const std::string& expected) {
    throw Error("control channel: frame from " + peer_ + " has " + field + " " +
                std::to_string(found) + "; expected " + expected);
  };
  if (header.magic != kFrameMagic) refuse("magic", header.magic, std::to_string(kFrameMagic));
  if (header.version != kFrameVersion) {
    refuse("version", header.version, std::to_string(kFrameVersion));
  }
  if (header.kind != static_cast<uint16_t>(FrameKind::message) &&
      header.kind != static_cast<uint16_t>(FrameKind::goodbye)) {
    refuse("kind", header.kind, "1 or 2");
  }
  if (header.number != frames_received_) {
    refuse("number", header.number, std::to_string(frames_received_));
  }
  if (header.bytes > kMaxFrameBytes) {
    refuse("length", header.bytes, "at most " + std::to_string(kMaxFrameBytes));
  }
  Frame frame{static_cast<FrameKind>(header.kind), std::vector<uint8_t>(header.bytes)};
  receive_all(frame.bytes);
  ++frames_received_;
  return frame;
}

std::optional<Frame> FrameSocket::try_receive() {
  uint8_t header[sizeof(FrameHeader)];
  const size_t received = receive_some(header);
  if (received == 0) return std::nullopt;
  return receive_rest(header, received);
}

std::optional<Frame> FrameSocket::receive(Deadline deadline) {
  for (;;) {
    std::optional<Frame> frame = try_receive();
    if (frame) return frame;
    const int timeout = poll_timeout_ms(deadline);
    if (timeout == 0) return std::nullopt;
    pollfd wait{fd_.get(), POLLIN, 0};
    poll(&wait, 1, timeout);
  }
}

}  // namespace outrider
