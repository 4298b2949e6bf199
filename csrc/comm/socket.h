// TCP sockets of the control channel: descriptors with an owner, and messages in frames.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace outrider {

using Deadline = std::chrono::steady_clock::time_point;
constexpr Deadline kNoDeadline = Deadline::max();

// What poll() takes: milliseconds until `deadline`, rounded up; -1 for kNoDeadline.
int poll_timeout_ms(Deadline deadline);

// "Connection reset by peer" and the like.
std::string errno_text(int error);

// Why a connection has ended. error: an errno, 0 for the end of what the peer sent.
std::string end_reason(int error);

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Listens on a free port of `host`; `address` becomes "host:port" in figures.
FileDescriptor listen_on(const std::string& host, std::string* address);

// Throws Error naming the address where it is malformed or nobody answers until `deadline`.
FileDescriptor connect_to(const std::string& address, Deadline deadline);

// Sends both parts whole, as one. Returns 0, or the errno of the failure.
int send_all(int fd, std::span<const uint8_t> first, std::span<const uint8_t> second);

// A peer has gone without a goodbye, or never came.
class PeerGoneError : public Error {
 public:
  using Error::Error;
};

enum class FrameKind : uint16_t { message = 1, goodbye = 2 };

struct Frame {
  FrameKind kind;
  std::vector<uint8_t> bytes;
};

// A connection that carries frames: a header (magic, version, kind, number, length) and a body.
// Frames are numbered from 0 in each direction; one that is missing is an error. No delay (Nagle).
// Throws Error naming the peer ("rank 1") for whatever goes wrong, PeerGoneError where it is gone.
class FrameSocket {
 public:
  // A longer frame is refused before memory is taken for it.
  static constexpr uint64_t kMaxFrameBytes = uint64_t{256} << 20;

  FrameSocket(FileDescriptor fd, std::string peer);

  int fd() const { return fd_.get(); }
  const std::string& peer() const { return peer_; }

  void send(FrameKind kind, std::span<const uint8_t> bytes);

  // The next frame; nullopt where nothing of one has arrived.
  std::optional<Frame> try_receive();
  // Waits for the next frame; nullopt where nothing of one has come until `deadline`.
  std::optional<Frame> receive(Deadline deadline);

 private:
  Frame receive_rest(std::span<uint8_t> header, size_t received);
  // Bytes received, 0 where there are none yet.
  size_t receive_some(std::span<uint8_t> into);

  FileDescriptor fd_;
  std::string peer_;
  uint64_t frames_sent_ = 0, frames_received_ = 0;
};

}  // namespace outrider
