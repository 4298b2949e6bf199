// See http_connection.h.
#include "server/http_connection.h"

#include <absl/strings/ascii.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace outrider {
namespace {

constexpr std::string_view kRange = "range";
constexpr size_t kAnotherLine = kRange.size() + 1;

}  // namespace

HttpConnection::HttpConnection(int socket, SSL_CTX* context, const HttpLimits& limits,
                               const std::atomic<bool>& stopping)
    : socket_(socket),
      stopping_(stopping),
      first_byte_deadline_(Clock::now() + std::min(limits.first_byte, limits.duration)),
      deadline_(Clock::now() + limits.duration),
      bytes_left_(limits.max_request_bytes) {
  fcntl(socket_, F_SETFL, fcntl(socket_, F_GETFL) | O_NONBLOCK);
  if (context != nullptr) {
    ssl_.reset(SSL_new(context));
    SSL_set_fd(ssl_.get(), socket_);
  }
}

HttpConnection::~HttpConnection() {
  if (ssl_ != nullptr && SSL_is_init_finished(ssl_.get())) SSL_shutdown(ssl_.get());
  shutdown(socket_, SHUT_RDWR);
  close(socket_);
}

bool HttpConnection::wait_for(short events, Clock::time_point deadline) const {
  while (!stopping_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd entry{.fd = socket_, .events = events, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::min(left, kPollInterval).count()));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
  return false;
}

bool HttpConnection::wait_for_first_byte() const { return wait_for(POLLIN, first_byte_deadline_); }

bool HttpConnection::wait_for_ssl(int result) const {
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return wait_for(POLLIN, deadline_);
    case SSL_ERROR_WANT_WRITE:
      return wait_for(POLLOUT, deadline_);
    default:
      return false;
  }
}

bool HttpConnection::handshake() {
  if (ssl_ == nullptr) return true;
  while (true) {
    ERR_clear_error();
    const int result = SSL_accept(ssl_.get());
    if (result == 1) return true;
    if (!wait_for_ssl(result)) return false;
  }
}

ssize_t HttpConnection::receive(char* data, size_t size) {
  while (true) {
    if (ssl_ != nullptr) {
      ERR_clear_error();
      const int count = SSL_read(ssl_.get(), data, static_cast<int>(size));
      if (count > 0) return count;
      if (SSL_get_error(ssl_.get(), count) == SSL_ERROR_ZERO_RETURN) return 0;
      if (!wait_for_ssl(count)) return -1;
    } else {
      const ssize_t count = recv(socket_, data, size, 0);
      if (count >= 0) return count;
      if (errno != EAGAIN && errno != EINTR) return -1;
      if (!wait_for(POLLIN, deadline_)) return -1;
    }
  }
}

// httplib reads ranges before anybody was asked for a token: by a regular expression that recurses
// for each byte, and it answers with a copy of the body for each of them. Nothing here has ranges.
// Without its colon the header is a line that httplib skips. Bodies would change too, but nobody
// reads any.
void HttpConnection::hide_ranges(char* data, size_t size) {
  for (char* c = data; c != data + size; ++c) {
    if (*c == '\n') {
      num_matched_ = 0;
    } else if (num_matched_ < kRange.size()) {
      const char lower = absl::ascii_tolower(static_cast<unsigned char>(*c));
      num_matched_ = lower == kRange[num_matched_] ? num_matched_ + 1 : kAnotherLine;
    } else if (num_matched_ == kRange.size()) {  // until the value begins
      if (*c == ':') {
        *c = ' ';
      } else if (*c != ' ' && *c != '\t') {
        num_matched_ = kAnotherLine;
      }
    }
  }
}

ssize_t HttpConnection::read(char* data, size_t size) {
  if (begin_ == end_) {
    if (bytes_left_ == 0) return -1;
    const ssize_t count = receive(buffer_.data(), std::min(buffer_.size(), bytes_left_));
    if (count <= 0) return count;
    hide_ranges(buffer_.data(), static_cast<size_t>(count));
    begin_ = 0;
    end_ = static_cast<size_t>(count);
    bytes_left_ -= end_;
  }
  const size_t count = std::min(size, end_ - begin_);
  std::memcpy(data, buffer_.data() + begin_, count);
  begin_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t HttpConnection::write(const char* data, size_t size) {
  while (true) {
    if (ssl_ != nullptr) {
      ERR_clear_error();
      const int count = SSL_write(ssl_.get(), data, static_cast<int>(size));
      if (count > 0) return count;
      if (!wait_for_ssl(count)) return -1;
    } else {
      const ssize_t count = send(socket_, data, size, MSG_NOSIGNAL);
      if (count >= 0) return count;
      if (errno != EAGAIN && errno != EINTR) return -1;
      if (!wait_for(POLLOUT, deadline_)) return -1;
    }
  }
}

// Nothing here depends on who asks from where.
void HttpConnection::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

void HttpConnection::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

}  // namespace outrider
