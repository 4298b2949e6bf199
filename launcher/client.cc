// See client.h.
#include "launcher/client.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_interceptor.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <future>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "launcher/command_line.h"
#include "server/address.h"
#include "server/auth_tokens.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;
using HealthStub = grpc::TemplatedGenericStub<v1::HealthCheckRequest, v1::HealthCheckResponse>;

constexpr int kMostPort = 65535;
constexpr double kHealthTimeoutS = 5;  // of one question, where many may be asked
constexpr int kMaxAnswerBytes = 64 << 20;
// What an attempt to connect may take, until the server's first frame: longer than a busy machine
// needs, and shorter than anybody waits for an address where nothing answers.
constexpr int kConnectTimeoutMs = 5000;
// Pings, no more often than the server permits, of a connection that has a call.
constexpr int kKeepaliveTimeMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
constexpr int kRetryMs = 100;  // between attempts, the first ones of a connection and calls
// gRPC's pauses between attempts grow to minutes; a server that is waited for is found sooner.
constexpr int kLongestPauseMs = 1000;

// Shows the token with every call; gRPC's own call credentials refuse a connection without TLS.
class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(std::string token) : header_("Bearer " + std::move(token)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->insert({"authorization", header_});
    }
    methods->Proceed();
  }

 private:
  std::string header_;
};

class TokenInterceptors final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptors(std::string token) : token_(std::move(token)) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new TokenInterceptor(token_);  // gRPC's to delete
  }

 private:
  std::string token_;
};

std::shared_ptr<grpc::ChannelCredentials> credentials(const TlsFiles& files) {
  if (files.ca.empty()) return grpc::InsecureChannelCredentials();
  TlsMaterial material = load_tls(files, "--tls-ca");
  return grpc::SslCredentials({.pem_root_certs = std::move(material.ca),
                               .pem_private_key = std::move(material.key),
                               .pem_cert_chain = std::move(material.cert)});
}

struct HostAndPort {
  std::string host;
  std::optional<std::string> port;  // as it was written
};

// HOST, HOST:PORT, IPV6, [IPV6] or [IPV6]:PORT, taken apart.
HostAndPort parts_of(const std::string& address) {
  const bool bare_ipv6 = address[0] != '[' && std::count(address.begin(), address.end(), ':') > 1;
  if (bare_ipv6) return {address, std::nullopt};
  const size_t colon = address.find(':', address[0] == '[' ? address.find(']') : 0);
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (colon == std::string::npos) return {host, std::nullopt};
  return {host, address.substr(colon + 1)};
}

// gRPC would take a port modulo 65536, and say of a missing host what no user can read.
CLI::Validator right_parts() {
  return {[](const std::string& address) {
            const auto [host, port] = parts_of(address);
            if (host.empty()) {
              return absl::StrCat("is \"", address, "\"; expected HOST or HOST:PORT");
            }
            int number = 0;
            const bool right =
                !port || (absl::SimpleAtoi(*port, &number) && number >= 1 && number <= kMostPort);
            return right ? std::string()
                         : absl::StrCat("is \"", address, "\"; expected a port from 1 to ",
                                        kMostPort, " behind the host");
          },
          ""};
}

}  // namespace

void ServerAddress::add_to(CLI::App& command) {
  command.add_option("--address", address, "HOST or HOST:PORT (default 127.0.0.1)")
      ->check(not_empty("HOST or HOST:PORT"))
      ->check(right_parts());
  command.add_option("--port", port, "Where the address names none (default 50051)")
      ->check(CLI::Range(1, kMostPort));
  const CLI::Validator file = not_empty("a file");
  auto* ca = command.add_option("--tls-ca", tls.ca,
                                "PEM of what signed the server's certificate; without it, no TLS");
  auto* cert = command.add_option("--tls-cert", tls.cert,
                                  "PEM of your certificate, for a server that wants one");
  auto* key = command.add_option("--tls-key", tls.key, "PEM of its private key");
  ca->check(file);
  cert->check(file)->needs(ca)->needs(key);
  key->check(file)->needs(ca)->needs(cert);
  command.add_option("--auth-token-file", auth_token_file, "Its first line is your token")
      ->check(file);
}

std::string ServerAddress::target() const {
  const HostAndPort parts = parts_of(address);
  return parts.port ? address : host_and_port(parts.host, port);
}

Connector::Connector(const ServerAddress& server)
    : target_(server.target()), credentials_(credentials(server.tls)) {
  if (server.auth_token_file.empty()) return;
  if (server.tls.ca.empty() && !is_loopback(parts_of(server.address).host)) {
    spdlog::warn("without --tls-ca the token travels to {} in the clear", server.address);
  }
  token_ = read_token_file(server.auth_token_file).front();
}

std::shared_ptr<grpc::Channel> Connector::connect() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);          // what http_proxy names is for the web
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // not one that another channel uses
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kRetryMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestPauseMs);
  // By its name a pause, by its effect the time that an attempt has.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  // A host that has gone says nothing, and a stream that only reads would wait for it for ever.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // any number of them
  arguments.SetMaxReceiveMessageSize(kMaxAnswerBytes);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (token_) interceptors.push_back(std::make_unique<TokenInterceptors>(*token_));
  return grpc::experimental::CreateCustomChannelWithInterceptors(target_, credentials_, arguments,
                                                                 std::move(interceptors));
}

std::shared_ptr<grpc::Channel> connect_to_server(const ServerAddress& server) {
  return Connector(server).connect();
}

grpc::Status check_health(const std::shared_ptr<grpc::Channel>& channel, double timeout_s,
                          v1::HealthCheckResponse& health) {
  HealthStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::microseconds(static_cast<int64_t>(timeout_s * 1e6)));
  const v1::HealthCheckRequest request;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &health,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  return done.get_future().get();
}

Clock::time_point seconds_from_now(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void wait_until_serving(const std::shared_ptr<grpc::Channel>& channel, Clock::time_point until) {
  while (Clock::now() < until) {
    const double left_s = std::chrono::duration<double>(until - Clock::now()).count();
    v1::HealthCheckResponse health;
    const grpc::Status status = check_health(channel, std::min(left_s, kHealthTimeoutS), health);
    const bool may_come = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                          status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
                          (status.ok() && health.status() != v1::HealthCheckResponse::SERVING);
    if (!may_come) return;
    pause_before_retry(*channel);
  }
}

void pause_before_retry(grpc::Channel& channel) {
  const auto until = std::chrono::system_clock::now() + std::chrono::milliseconds(kRetryMs);
  if (channel.GetState(false) == GRPC_CHANNEL_READY) {
    std::this_thread::sleep_until(until);
  } else {
    channel.WaitForConnected(until);
  }
}

grpc::Status stream_answer(v1::GenerationService::Stub& stub, grpc::ClientContext& context,
                           const v1::GenerateRequest& request,
                           const std::function<void(const v1::GenerateResponse&)>& hear) {
  const auto stream = stub.Generate(&context, request);
  v1::GenerateResponse response;
  while (stream->Read(&response)) hear(response);
  return stream->Finish();
}

const char* status_name(grpc::StatusCode code) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  return code >= 0 && code < static_cast<int>(std::size(kNames)) ? kNames[code] : "UNKNOWN";
}

std::string explain_failure(const grpc::Status& status, grpc::Channel& channel,
                            const ServerAddress& server) {
  const bool nobody_there = status.error_code() == grpc::StatusCode::UNAVAILABLE &&
                            channel.GetState(false) == GRPC_CHANNEL_TRANSIENT_FAILURE;
  return absl::StrCat(status_name(status.error_code()), ": ", status.error_message(),
                      nobody_there
                          ? absl::StrCat("; is a server running at ", server.target(),
                                         server.tls.ca.empty() ? ", without TLS" : ", with TLS",
                                         "? outrider launch starts one, --address names another")
                          : "");
}

}  // namespace outrider
