// `outrider inspect`: what a checkpoint holds, and how it would shard.
#include "model/inspect.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "launcher/command_line.h"

namespace outrider {
namespace {

struct InspectOptions {
  std::filesystem::path directory;
  int ranks = 1;
};

int inspect(const InspectOptions& options) {
  const std::string report = inspect_checkpoint(options.directory, options.ranks);
  std::fputs(report.c_str(), stdout);
  return 0;
}

}  // namespace

void add_inspect_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand("inspect", "Say what a checkpoint holds");
  command->add_option("directory", options->directory, "A Hugging Face directory")->required();
  command->add_option("--ranks", options->ranks, "How it would shard over so many (default 1)")
      ->check(CLI::Range(1, 1024));
  command->callback([options, &action] { action = [options] { return inspect(*options); }; });
}

}  // namespace outrider
