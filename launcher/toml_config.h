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
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }
  // Throws CLI::ConfigError naming line and reason for what is not TOML, or a value that no flag
  // can take.
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;
};

}  // namespace outrider
