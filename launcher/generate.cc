// `outrider generate`: asks a running server.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "launcher/answer_printer.h"
#include "launcher/command_line.h"
#include "launcher/request_flags.h"
#include "outrider/v1/generation.grpc.pb.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxAnswerBytes = 64 << 20;
constexpr int kReconnectMs = 100;

struct GenerateOptions {
  std::string address = "127.0.0.1";
  int port = 50051;
  RequestFlags request;
  AnswerFormat format;
  double timeout_s = 0;         // 0: none
  double wait_for_ready_s = 0;  // while nothing listens yet, or the model is still loading
};

// HOST, HOST:PORT, [IPV6] or [IPV6]:PORT.
std::string target_of(const GenerateOptions& options) {
  const std::string& address = options.address;
  const bool is_bare_ipv6 =
      address[0] != '[' && std::count(address.begin(), address.end(), ':') > 1;
  if (is_bare_ipv6) return "[" + address + "]:" + std::to_string(options.port);
  const size_t host_end = address[0] == '[' ? address.find(']') : 0;
  const bool has_port = address.find(':', host_end) != std::string::npos;
  return has_port ? address : address + ":" + std::to_string(options.port);
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

std::shared_ptr<grpc::Channel> connect(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // what http_proxy names is for the web
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetMaxReceiveMessageSize(kMaxAnswerBytes);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

grpc::Status ask(v1::GenerationService::Stub& stub, const v1::GenerateRequest& request,
                 double timeout_s, AnswerPrinter& printer) {
  grpc::ClientContext context;
  if (timeout_s > 0) {
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::microseconds(static_cast<int64_t>(timeout_s * 1e6)));
  }
  const auto stream = stub.Generate(&context, request);
  v1::GenerateResponse response;
  while (stream->Read(&response)) {
    if (response.has_chunk()) printer.chunk(response.chunk());
    if (response.has_complete()) printer.complete(response.complete());
  }
  return stream->Finish();
}

int generate(const GenerateOptions& options) {
  const v1::GenerateRequest request = options.request.request();
  const auto channel = connect(target_of(options));
  const auto stub = v1::GenerationService::NewStub(channel);
  const auto ready_by = Clock::now() + std::chrono::duration<double>(options.wait_for_ready_s);
  while (true) {
    AnswerPrinter printer(options.format);
    const grpc::Status status = ask(*stub, request, options.timeout_s, printer);
    if (status.ok()) return 0;
    const bool not_ready =
        status.error_code() == grpc::StatusCode::UNAVAILABLE && !printer.started();
    if (!not_ready || Clock::now() >= ready_by) {
      std::fprintf(stderr, "%s: %s\n", status_name(status.error_code()),
                   status.error_message().c_str());
      return kExitFailed;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kReconnectMs));
  }
}

}  // namespace

void add_generate_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Ask a running server");
  command->add_option("--address", options->address, "HOST or HOST:PORT (default 127.0.0.1)")
      ->check([](const std::string& text) { return text.empty() ? "is empty" : ""; });
  command->add_option("--port", options->port, "Where the address names none (default 50051)")
      ->check(CLI::Range(1, 65535));
  options->request.add_to(*command);
  options->format.add_to(*command);
  command->add_option("--timeout", options->timeout_s, "Give up after so many seconds")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--wait-for-ready", options->wait_for_ready_s,
                   "Wait so many seconds for a server that is not there yet")
      ->check(CLI::NonNegativeNumber);
  command->callback([options, &action] { action = [options] { return generate(*options); }; });
}

}  // namespace outrider
