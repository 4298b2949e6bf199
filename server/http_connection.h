// HttpConnection: one connection of the HTTP port, in the clear or over TLS, that is over by a
// fixed time and takes a bounded number of bytes, whatever the other side does.
#pragma once

#include <httplib.h>
#include <openssl/ssl.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "server/http_limits.h"

namespace outrider {

class HttpConnection final : public httplib::Stream {
 public:
  using Clock = std::chrono::steady_clock;

  // Takes over `socket`. context: null for a connection in the clear. stopping: once true, the
  // connection's time is over within kPollInterval.
  HttpConnection(int socket, SSL_CTX* context, const HttpLimits& limits,
                 const std::atomic<bool>& stopping);
  ~HttpConnection() override;
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // True once the other side has begun to say something; false where it does not in time.
  bool wait_for_first_byte() const;

  // The TLS handshake; true at once where there is no TLS.
  bool handshake();

  // httplib's side. read() and write() wait until the connection's time is over. read() gives no
  // header Range.
  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  ssize_t read(char* data, size_t size) override;         // 0 at the end, -1 past a limit
  ssize_t write(const char* data, size_t size) override;  // -1 past a limit
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  // Waits for poll's `events`; false once it is `deadline`.
  bool wait_for(short events, Clock::time_point deadline) const;
  // After an operation of OpenSSL that gave `result`: waits for what it needs, false where it
  // cannot go on.
  bool wait_for_ssl(int result) const;
  ssize_t receive(char* data, size_t size);
  // Makes each header Range, in what came next, a line without a name.
  void hide_ranges(char* data, size_t size);

  static constexpr std::chrono::milliseconds kPollInterval{100};

  const int socket_;
  const std::atomic<bool>& stopping_;
  const Clock::time_point first_byte_deadline_, deadline_;
  size_t bytes_left_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
  std::array<char, 4096> buffer_;  // httplib reads byte by byte
  size_t begin_ = 0, end_ = 0;     // of what is buffered
  size_t num_matched_ = 0;         // hide_ranges(): bytes of the name that the line begins with
};

}  // namespace outrider
