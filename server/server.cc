// See server.h.
#include "server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <sys/resource.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "core/error.h"
#include "engine/metrics.h"
#include "server/address.h"
#include "server/auth_tokens.h"
#include "server/generation_service.h"
#include "server/http_server.h"

namespace outrider {
namespace {

// A client that is silent for this long is asked for a sign of life …
constexpr int kKeepaliveTimeMs = 30'000;
// … and is gone where it gives none within this.
constexpr int kKeepaliveTimeoutMs = 10'000;
// Clients may ask the same, but not more often than this; a connection that does is closed.
constexpr int kMinClientPingIntervalMs = 10'000;
// Each connection holds a descriptor: one that does not shake hands, or asks nothing for long, is
// closed. Where there are none left, this gRPC never accepts again (CVE-2023-4785).
constexpr int kHandshakeTimeoutMs = 10'000;
constexpr int kMaxIdleMs = 600'000;
constexpr int kMaxStreamsPerConnection = 256;
constexpr int kMaxMetadataBytes = 16 << 10;
// Of messages that have not come whole, and all else that connections and calls hold in gRPC.
constexpr size_t kMostUnreadBytes = size_t{512} << 20;
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

std::shared_ptr<grpc::ServerCredentials> credentials(const TlsMaterial& tls) {
  if (tls.cert.empty()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      tls.ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                     : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = tls.ca;
  options.pem_key_cert_pairs.push_back({tls.key, tls.cert});
  return grpc::SslServerCredentials(options);
}

TokenCheck load_tokens(const std::string& file) {
  return file.empty() ? TokenCheck() : TokenCheck(read_token_file(file));
}

// To what the system allows.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

const ServerOptions& checked(const ServerOptions& options) {
  check_together(options);
  return options;
}

}  // namespace

void check_together(const ServerOptions& options) {
  const TlsFiles& tls = options.tls;
  check_pair(tls);
  if (tls.cert.empty() && !tls.ca.empty()) {
    throw Error("--tls-client-ca is given without --tls-cert and --tls-key; expected all three");
  }
  if (options.reflection && !options.auth_token_file.empty()) {
    throw Error(
        "--reflection and --auth-token-file exclude each other: reflection asks nobody for "
        "a token");
  }
  if (options.port != 0 && options.http_port == options.port) {
    throw Error("--http-port and --port are both " + std::to_string(options.port) +
                "; expected two ports");
  }
}

struct Server::Impl {
  explicit Impl(const ServerOptions& options)
      : tls(load_tls(checked(options).tls, "--tls-client-ca")),
        tokens(load_tokens(options.auth_token_file)),
        log(options.log_format),
        trace(options.trace_file.empty() ? nullptr
                                         : std::make_unique<TraceWriter>(options.trace_file)),
        service(options, tokens, metrics, log, trace.get()) {}

  // reason: why it does not serve; empty: it does.
  void set_health(const std::string& reason) {
    {
      const std::lock_guard lock(mutex);
      not_ready = reason;
    }
    auto& health = *server->GetHealthCheckService();
    health.SetServingStatus(reason.empty());  // those asked for by name, and "", the whole server
    health.SetServingStatus(v1::GenerationService::service_full_name(), reason.empty());
  }

  std::string why_not_ready() {
    const std::lock_guard lock(mutex);
    return not_ready;
  }

  std::string metrics_text() {
    const EngineStats stats = service.engine_stats().value_or(EngineStats{});
    metrics.set_requests(stats.num_requests_running, stats.num_requests_waiting);
    for (int d = 0; d < kNumDrafterKinds; ++d) {
      const auto kind = static_cast<DrafterKind>(d);
      if (kind != DrafterKind::none) metrics.set_drafter(drafter_name(kind), stats.drafters[d]);
    }
    return metrics.text();
  }

  const TlsMaterial tls;
  const TokenCheck tokens;
  EngineMetrics metrics;
  RequestLog log;
  std::unique_ptr<TraceWriter> trace;
  GenerationService service;
  int port = 0;
  std::vector<std::string> addresses;
  std::unique_ptr<grpc::Server> server;
  bool is_shut_down = false;
  std::mutex mutex;  // guards not_ready
  std::string not_ready = "the model is still being loaded";
  std::unique_ptr<HttpServer> http;
};

Server::Server(const ServerOptions& options) : impl_(std::make_unique<Impl>(options)) {
  raise_descriptor_limit();
  check_port_is_free(options.address, options.port);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(host_and_port(options.address, options.port), credentials(impl_->tls),
                           &impl_->port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinClientPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kMaxIdleMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  // Which is looked at once a message has come whole, and before it is decompressed.
  grpc::ResourceQuota quota("calls");
  builder.SetResourceQuota(quota.Resize(kMostUnreadBytes));
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder.SetOption(std::make_unique<Reflection>(options.reflection));
  builder.RegisterService(&impl_->service);
  impl_->server = builder.BuildAndStart();
  if (impl_->server == nullptr || impl_->port == 0) {
    throw Error("cannot listen on " + host_and_port(options.address, options.port));
  }
  impl_->addresses = own_addresses(options.address, impl_->port);
  impl_->set_health(impl_->why_not_ready());
  if (options.http_port) {
    impl_->http = std::make_unique<HttpServer>(
        options.address, *options.http_port, impl_->tls, impl_->tokens,
        HttpSources{.metrics = [impl = impl_.get()] { return impl->metrics_text(); },
                    .not_ready = [impl = impl_.get()] { return impl->why_not_ready(); }},
        options.http_limits);
  }
}

Server::~Server() { shutdown(std::chrono::milliseconds(0)); }

int Server::port() const { return impl_->port; }

const std::vector<std::string>& Server::addresses() const { return impl_->addresses; }

int Server::http_port() const { return impl_->http == nullptr ? 0 : impl_->http->port(); }

bool Server::http_ended() const { return impl_->http != nullptr && impl_->http->ended(); }

EngineMetrics& Server::metrics() { return impl_->metrics; }

TraceWriter* Server::trace() { return impl_->trace.get(); }

void Server::start_serving(Engine& engine, ServedModel model) {
  for (int rank = 0; rank < model.num_ranks; ++rank) impl_->metrics.set_rank_up(rank, true);
  impl_->service.start(engine, std::move(model));
  impl_->set_health("");
}

void Server::fail_calls(const std::string& reason) {
  impl_->service.refuse_calls(reason);  // first, or a call that comes meanwhile would be left
  impl_->set_health(reason);
  impl_->service.calls().fail_all(absl::UnavailableError(reason));
}

void Server::drain() {
  impl_->set_health("the server is draining");
  impl_->service.drain();
}

bool Server::wait_for_calls(std::chrono::milliseconds timeout) {
  return impl_->service.calls().wait_for_admitted(timeout);
}

void Server::shutdown(std::chrono::milliseconds grace) {
  if (std::exchange(impl_->is_shut_down, true)) return;
  impl_->set_health("the server is shutting down");
  impl_->service.stop();
  CallRegistry& calls = impl_->service.calls();
  if (!calls.wait_for_admitted(grace)) {
    calls.fail_all(absl::UnavailableError("the server is shutting down"));
  }
  impl_->server->Shutdown(std::chrono::system_clock::now() + kLastWords);
}

}  // namespace outrider
