// `outrider generate`: asks a running server.
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "launcher/answer_printer.h"
#include "launcher/client.h"
#include "launcher/command_line.h"
#include "launcher/number_checks.h"
#include "launcher/request_flags.h"
#include "outrider/v1/generation.grpc.pb.h"

namespace outrider {
namespace {

struct GenerateOptions {
  ServerAddress server;
  RequestFlags request;
  AnswerFormat format;
  double timeout_s = 0;         // 0: none
  double wait_for_ready_s = 0;  // while nothing listens yet, or the model is still loading
};

grpc::Status ask(v1::GenerationService::Stub& stub, const v1::GenerateRequest& request,
                 double timeout_s, AnswerPrinter& printer) {
  grpc::ClientContext context;
  if (timeout_s > 0) {
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::microseconds(static_cast<int64_t>(timeout_s * 1e6)));
  }
  return stream_answer(stub, context, request, [&printer](const v1::GenerateResponse& response) {
    if (response.has_chunk()) printer.chunk(response.chunk());
    if (response.has_complete()) printer.complete(response.complete());
  });
}

int generate(const GenerateOptions& options, const v1::GenerateRequest& request) {
  const auto channel = connect_to_server(options.server);
  const auto stub = v1::GenerationService::NewStub(channel);
  const auto ready_by = seconds_from_now(options.wait_for_ready_s);
  while (true) {
    wait_until_serving(channel, ready_by);
    AnswerPrinter printer(options.format, request.sampling_params().n());
    const grpc::Status status = ask(*stub, request, options.timeout_s, printer);
    if (status.ok()) return 0;
    // It may have gone just before.
    const bool not_begun =
        status.error_code() == grpc::StatusCode::UNAVAILABLE && !printer.started();
    if (!not_begun || std::chrono::steady_clock::now() >= ready_by) {
      printer.cut_off();
      std::fprintf(stderr, "%s\n", explain_failure(status, *channel, options.server).c_str());
      return kExitFailed;
    }
    pause_before_retry(*channel);
  }
}

}  // namespace

void add_generate_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Ask a running server");
  options->server.add_to(*command);
  options->request.add_to(*command);
  options->format.add_to(*command);
  const CLI::Validator seconds = number_within(0, 1e7);
  command
      ->add_option("--timeout", options->timeout_s,
                   "Give up after so many seconds (default 0: no limit)")
      ->check(seconds);
  command
      ->add_option("--wait-for-ready", options->wait_for_ready_s,
                   "Wait so many seconds for a server that is not there yet")
      ->check(seconds);
  command->callback([options, &action] {
    action = [options, request = options->request.request()] {
      return generate(*options, request);
    };
  });
}

}  // namespace outrider
