// What the commands that ask a running server share: where it is and how it is reached, how it is
// asked, names of statuses.
#pragma once

#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "outrider/v1/generation.grpc.pb.h"
#include "server/tls.h"

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

// A connection of its own. Throws Error where a file of the flags is not what it should be. Warns
// of a token that will travel in the clear.
std::shared_ptr<grpc::Channel> connect_to_server(const ServerAddress& server);

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

// One line on stderr: the status's name and message.
void print_failure(const grpc::Status& status);

}  // namespace outrider
