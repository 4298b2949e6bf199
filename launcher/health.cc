// `outrider health`: whether a server serves, as an exit code; for probes of containers.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "launcher/client.h"
#include "launcher/command_line.h"
#include "launcher/number_checks.h"

namespace outrider {
namespace {

struct HealthOptions {
  ServerAddress server;
  double timeout_s = 5;
};

int health(const HealthOptions& options) {
  const auto channel = connect_to_server(options.server);
  v1::HealthCheckResponse response;
  const grpc::Status status = check_health(channel, options.timeout_s, response);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", explain_failure(status, *channel, options.server).c_str());
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
