// See server.h.
#include "server/server.h"

#include <arpa/inet.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "server/generation_service.h"

namespace outrider {
namespace {

// A client that is silent for this long is asked for a sign of life …
constexpr int kKeepaliveTimeMs = 30'000;
// … and is gone where it gives none within this.
constexpr int kKeepaliveTimeoutMs = 10'000;
// Clients may ask the same, but not more often than this; a connection that does is closed.
constexpr int kMinClientPingIntervalMs = 10'000;
constexpr int kMaxStreamsPerConnection = 256;
constexpr int kMaxMetadataBytes = 16 << 10;
// What a call that was told to end has to do so, before gRPC cuts it off.
constexpr std::chrono::milliseconds kLastWords{500};

// Reflection as the options say: libgrpc++_reflection, once linked, adds it to every server.
class Reflection final : public grpc::ServerBuilderOption {
 public:
  explicit Reflection(bool on) : on_(on) {}

  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    auto reflection = std::make_unique<grpc::reflection::ProtoServerReflectionPlugin>();
    std::erase_if(*plugins,
                  [&](const auto& plugin) { return plugin->name() == reflection->name(); });
    if (on_) plugins->push_back(std::move(reflection));
  }

 private:
  bool on_;
};

std::string host_and_port(const std::string& address, int port) {
  const bool is_ipv6 = address.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

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

// gRPC does not say why it cannot have a port, and is content with one address of several.
void check_port_is_free(const std::string& address, int port) {
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
    if (!free) {
      throw Error("cannot listen on " + host_and_port(address, port) + ": " + std::strerror(error));
    }
  }
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

struct Server::Impl {
  explicit Impl(const ServerOptions& options) : service(options) {}

  void set_health(bool serving) {
    auto& health = *server->GetHealthCheckService();
    health.SetServingStatus(serving);  // those asked for by name, and "", the server as a whole
    health.SetServingStatus(v1::GenerationService::service_full_name(), serving);
  }

  GenerationService service;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
  bool is_shut_down = false;
};

Server::Server(const ServerOptions& options) : impl_(std::make_unique<Impl>(options)) {
  check_port_is_free(options.address, options.port);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(host_and_port(options.address, options.port),
                           grpc::InsecureServerCredentials(), &impl_->port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinClientPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  builder.SetOption(std::make_unique<Reflection>(options.reflection));
  builder.RegisterService(&impl_->service);
  impl_->server = builder.BuildAndStart();
  if (impl_->server == nullptr || impl_->port == 0) {
    throw Error("cannot listen on " + host_and_port(options.address, options.port));
  }
  impl_->set_health(false);
}

Server::~Server() { shutdown(std::chrono::milliseconds(0)); }

int Server::port() const { return impl_->port; }

void Server::start_serving(Engine& engine, ServedModel model) {
  impl_->service.start(engine, std::move(model));
  impl_->set_health(true);
}

void Server::fail_calls(const std::string& reason) {
  impl_->set_health(false);
  impl_->service.calls().fail_all(absl::UnavailableError(reason));
}

void Server::shutdown(std::chrono::milliseconds grace) {
  if (std::exchange(impl_->is_shut_down, true)) return;
  impl_->set_health(false);
  impl_->service.stop();
  CallRegistry& calls = impl_->service.calls();
  if (!calls.wait_until_empty(grace)) {
    calls.fail_all(absl::UnavailableError("the server is shutting down"));
  }
  impl_->server->Shutdown(std::chrono::system_clock::now() + kLastWords);
}

}  // namespace outrider
