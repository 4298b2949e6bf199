// What the commands that ask a running server share: where it is and how it is reached, how it is
// asked, names of statuses.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "outrider/v1/generation.grpc.pb.h"
#include "outrider/v1/health.pb.h"
#include "server/tls.h"

namespace CLI {
class App;
}  // namespace CLI

namespace outrider {

// --address, --port, --tls-ca, --tls-cert, --tls-key and --auth-token-file.
struct ServerAddress {
  std::string address = "127.0.0.1";
  int port = 50051;
  TlsFiles tls;                 // without a CA: in the clear
  std::string auth_token_file;  // its first token is shown with every call; empty: none

  void add_to(CLI::App& command);
  // What gRPC connects to. The address is HOST, HOST:PORT, [IPV6] or [IPV6]:PORT.
  std::string target() const;
};

// Makes connections to one server. Reads the files of the flags once, since a pipe or a file that
// is being renewed can be read no second time.
class Connector {
 public:
  // Throws Error where a file is not what it should be. Warns of a token that will travel in the
  // clear.
  explicit Connector(const ServerAddress& server);

  // A connection that shares nothing with another.
  std::shared_ptr<grpc::Channel> connect() const;

 private:
  std::string target_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::optional<std::string> token_;
};

std::shared_ptr<grpc::Channel> connect_to_server(const ServerAddress& server);

// One question for its health. The server needs no token for that.
grpc::Status check_health(const std::shared_ptr<grpc::Channel>& channel, double timeout_s,
                          v1::HealthCheckResponse& health);

// Returns as soon as the server serves, or cannot say whether it does, or at `until`.
void wait_until_serving(const std::shared_ptr<grpc::Channel>& channel,
                        std::chrono::steady_clock::time_point until);
std::chrono::steady_clock::time_point seconds_from_now(double seconds);

// Between two calls to a server that is waited for: returns as soon as there is a connection, or
// after a tenth of a second where there is none yet, or where there was one already and the model
// is still loading. A connection makes progress only while somebody waits for it here or in a call.
void pause_before_retry(grpc::Channel& channel);

// Calls Generate; `hear` gets each response as it comes.
grpc::Status stream_answer(v1::GenerationService::Stub& stub, grpc::ClientContext& context,
                           const v1::GenerateRequest& request,
                           const std::function<void(const v1::GenerateResponse&)>& hear);

// "UNAVAILABLE"
const char* status_name(grpc::StatusCode code);

// In a line: the status's name and message, and what to do where nobody answers there at all.
std::string explain_failure(const grpc::Status& status, grpc::Channel& channel,
                            const ServerAddress& server);

}  // namespace outrider
