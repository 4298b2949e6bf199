// `outrider health`: whether a server serves, as an exit code; for probes of containers.
#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <cstdio>
#include <future>
#include <memory>

#include "launcher/client.h"
#include "launcher/command_line.h"
#include "launcher/number_checks.h"
#include "outrider/v1/generation.grpc.pb.h"  // gRPC's serialisation of messages
#include "outrider/v1/health.pb.h"

namespace outrider {
namespace {

using HealthStub = grpc::TemplatedGenericStub<v1::HealthCheckRequest, v1::HealthCheckResponse>;

struct HealthOptions {
  ServerAddress server;
  double timeout_s = 5;
};

int health(const HealthOptions& options) {
  HealthStub stub(connect_to_server(options.server));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::microseconds(static_cast<int64_t>(options.timeout_s * 1e6)));
  const v1::HealthCheckRequest request;
  v1::HealthCheckResponse response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &response,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  const grpc::Status status = done.get_future().get();
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", status_name(status.error_code()),
                 status.error_message().c_str());
    return kExitFailed;
  }
  const bool serving = response.status() == v1::HealthCheckResponse::SERVING;
  std::printf("%s\n", serving ? "SERVING" : "NOT_SERVING");
  return serving ? 0 : kExitFailed;
}

}  // namespace

void add_health_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<HealthOptions>();
  CLI::App* command = app.add_subcommand("health", "Whether a server serves: exit code 0 or 1");
  options->server.add_to(*command);
  command->add_option("--timeout", options->timeout_s, "Seconds (default 5)")
      ->check(number_within(0.001, 1e7));
  command->callback([options, &action] { action = [options] { return health(*options); }; });
}

}  // namespace outrider
