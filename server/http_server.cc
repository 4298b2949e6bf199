// See http_server.h.
#include "server/http_server.h"

#include <httplib.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "server/address.h"
#include "server/http_connection.h"

namespace outrider {
namespace {

constexpr int kThreads = 16;        // so that a few slow clients do not make a probe wait
constexpr size_t kMaxWaiting = 32;  // connections that were accepted and have no thread yet
constexpr int kBacklog = 64;        // connections that were not accepted yet
constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kTextType[] = "text/plain; charset=utf-8";

// Threads for connections, and a bounded queue before them: enqueue() waits while it is full.
// httplib's own queue has no bound, and would take descriptors from the gRPC port.
class BoundedPool final : public httplib::TaskQueue {
 public:
  BoundedPool() {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { run(); });
  }

  void enqueue(std::function<void()> task) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.size() < kMaxWaiting; });
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  // Runs what is queued, then ends the threads.
  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      changed_.notify_all();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;  // guards tasks_ and stopping_
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// httplib parses requests and writes answers; connections are ours.
class BoundedHttp final : public httplib::Server {
 public:
  BoundedHttp(SslContext context, const HttpLimits& limits)
      : context_(std::move(context)), limits_(limits) {
    new_task_queue = [] { return new BoundedPool(); };  // httplib's to delete
    set_socket_options([](int socket) {  // no SO_REUSEPORT: a port in use is an error
      const int on = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
  }

  // httplib has the system keep five connections that nobody has accepted yet; a sixth would try
  // again a second later.
  void widen_backlog() { ::listen(svr_sock_, kBacklog); }

  // From now on connections are closed as soon as their turn comes.
  void refuse() { refusing_ = true; }
  bool refuses() const { return refusing_; }

 private:
  bool process_and_close_socket(int socket) override {
    HttpConnection connection(socket, context_.get(), limits_, refusing_);
    if (refusing_ || !connection.wait_for_first_byte() || !connection.handshake()) return false;
    bool closed = false;
    return process_request(connection, /*close_connection=*/true, closed, nullptr);
  }

  const SslContext context_;
  const HttpLimits limits_;
  std::atomic<bool> refusing_ = false;
};

}  // namespace

struct HttpServer::Impl {
  Impl(SslContext context, TokenCheck tokens, HttpSources sources, const HttpLimits& limits)
      : tokens(std::move(tokens)), sources(std::move(sources)), http(std::move(context), limits) {}

  void answer(const httplib::Request& request, httplib::Response& response) {
    const auto say = [&](int status, const std::string& body, const char* type = kTextType) {
      response.status = status;
      response.set_content(body, type);
    };
    if (request.method != "GET" && request.method != "HEAD") {
      response.set_header("Allow", "GET, HEAD");
      return say(405, "expected GET\n");
    }
    if (request.path == "/healthz") return say(200, "ok\n");
    if (request.path == "/readyz") {
      const std::string reason = sources.not_ready();
      return reason.empty() ? say(200, "ready\n") : say(503, reason + "\n");
    }
    if (request.get_header_value_count("Authorization") > 1 ||
        !tokens.tenant(request.get_header_value("Authorization"))) {
      response.set_header("WWW-Authenticate", "Bearer");
      return say(401, "expected the header Authorization: Bearer TOKEN\n");
    }
    if (request.path == "/metrics") return say(200, sources.metrics(), kMetricsType);
    say(404, "expected /metrics, /healthz or /readyz\n");
  }

  // Until it is stopped, or the system gives it no connection but an error.
  void listen() {
    http.listen_after_bind();
    if (http.refuses()) return;
    ended = true;
    spdlog::error("the HTTP port, {}, takes no connections any more", port);
  }

  const TokenCheck tokens;
  const HttpSources sources;
  BoundedHttp http;
  int port = 0;
  std::atomic<bool> ended = false;
  std::thread thread;
};

HttpServer::HttpServer(const std::string& address, int port, const TlsMaterial& tls,
                       TokenCheck tokens, HttpSources sources, const HttpLimits& limits)
    : impl_(std::make_unique<Impl>(make_ssl_context(tls), std::move(tokens), std::move(sources),
                                   limits)) {
  check_port_is_free(address, port);
  httplib::Server& http = impl_->http;
  // Before httplib's routes, which are regular expressions.
  http.set_pre_routing_handler(
      [this](const httplib::Request& request, httplib::Response& response) {
        impl_->answer(request, response);
        return httplib::Server::HandlerResponse::Handled;
      });
  impl_->port = port != 0 ? port : http.bind_to_any_port(address);
  if (port != 0 ? !http.bind_to_port(address, port) : impl_->port <= 0) {
    throw Error("cannot listen on " + host_and_port(address, port));
  }
  impl_->http.widen_backlog();
  impl_->thread = std::thread([impl = impl_.get()] { impl->listen(); });
  // stop() before that would be lost
  while (!http.is_running() && !impl_->ended) std::this_thread::yield();
}

HttpServer::~HttpServer() {
  if (!impl_->thread.joinable()) return;  // the constructor has thrown
  impl_->http.refuse();
  impl_->http.stop();
  impl_->thread.join();
}

int HttpServer::port() const { return impl_->port; }

bool HttpServer::ended() const { return impl_->ended; }

}  // namespace outrider
