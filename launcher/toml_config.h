// --config: flags from a TOML file, as CLI11 takes them.
#pragma once

#include <CLI/CLI.hpp>
#include <istream>
#include <string>
#include <vector>

namespace outrider {

// [serve] port = 50051 stands for `serve --port 50051`; keys are written with - or _.
class TomlConfig final : public CLI::Config {
 public:
  // app: whose flags these are, and which has the --config. It outlives this.
  explicit TomlConfig(const CLI::App& app) : app_(app) {}

  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }
  // Throws CLI::ConfigError naming file, line and reason for what is not TOML, a table or key that
  // stands for no command or flag, a flag that is given twice, or a value that no flag can take.
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

 private:
  const CLI::App& app_;
};

}  // namespace outrider
