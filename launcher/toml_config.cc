// See toml_config.h.
#include "launcher/toml_config.h"

#include <absl/strings/str_cat.h>
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <sstream>

#include "launcher/nearest_name.h"

namespace outrider {
namespace {

[[noreturn]] void refuse(const toml::source_region& where, const std::string& why) {
  throw CLI::ConfigError("line " + std::to_string(where.begin.line) + ": " + why);
}

std::string value_text(const std::string& key, const toml::node& node) {
  std::ostringstream text;
  if (const auto* string = node.as_string()) {
    text << string->get();
  } else if (const auto* integer = node.as_integer()) {
    text << integer->get();
  } else if (node.is_floating_point() || node.is_boolean()) {
    node.visit([&](const auto& value) { text << toml::node_view<const toml::node>(value); });
  } else {
    refuse(node.source(), key + " is no text, number, truth value or list of these");
  }
  return text.str();
}

// The inner command that a table stands for. Throws CLI::ConfigError.
const CLI::App& command_of(const CLI::App& command, const std::string& table,
                           const toml::source_region& where) {
  std::vector<std::string> names;
  for (const CLI::App* inner : command.get_subcommands({})) {
    if (inner->get_name() == table) return *inner;
    names.push_back(inner->get_name());
  }
  refuse(where, "unknown table " + table + did_you_mean(table, names));
}

// Throws CLI::ConfigError where no flag has the key's name.
const CLI::Option& option_of(const CLI::App& command, const std::string& key,
                             const std::string& flag, const toml::source_region& where) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (option->check_name("--" + flag) || option->check_name(flag)) return *option;
    for (std::string name : option->get_lnames()) {
      std::replace(name.begin(), name.end(), '-', '_');
      names.push_back(std::move(name));
    }
  }
  refuse(where, "unknown key " + key + did_you_mean(key, names));
}

void flatten(const CLI::App& command, const toml::table& table,
             const std::vector<std::string>& parents, std::vector<CLI::ConfigItem>& items) {
  std::map<const CLI::Option*, toml::source_region> given;
  for (const auto& [toml_key, node] : table) {
    const std::string key(toml_key.str());
    if (const toml::table* inner = node.as_table()) {
      std::vector<std::string> path = parents;
      path.push_back(key);
      flatten(command_of(command, key, node.source()), *inner, path, items);
      continue;
    }
    CLI::ConfigItem item;
    item.parents = parents;
    item.name = key;
    std::replace(item.name.begin(), item.name.end(), '_', '-');
    const CLI::Option& option = option_of(command, key, item.name, toml_key.source());
    const auto [first, is_new] = given.emplace(&option, toml_key.source());
    if (!is_new) {  // - comes before _, wherever they stand
      const auto& [earlier, later] =
          std::minmax(first->second, toml_key.source(),
                      [](const auto& a, const auto& b) { return a.begin < b.begin; });
      refuse(later, absl::StrCat(option.get_name(), " is given twice, on line ", earlier.begin.line,
                                 " too"));
    }
    if (const toml::array* array = node.as_array()) {
      for (const toml::node& element : *array) item.inputs.push_back(value_text(key, element));
    } else {
      item.inputs.push_back(value_text(key, node));
    }
    // CLI11 takes an empty text for true, as of a switch that stands alone.
    if (option.get_items_expected_max() == 0 &&
        (item.inputs.size() != 1 || item.inputs.front().empty())) {
      refuse(node.source(), key + " is no truth value; expected true or false");
    }
    items.push_back(std::move(item));
  }
}

}  // namespace

std::vector<CLI::ConfigItem> TomlConfig::from_config(std::istream& input) const {
  std::vector<CLI::ConfigItem> items;
  const std::string file = app_.get_config_ptr()->as<std::string>();
  try {
    flatten(app_, toml::parse(input), {}, items);
  } catch (const toml::parse_error& error) {
    throw CLI::ConfigError("--config " + file + ": line " +
                           std::to_string(error.source().begin.line) + ": " +
                           std::string(error.description()));
  } catch (const CLI::ConfigError& error) {
    throw CLI::ConfigError("--config " + file + ": " + error.what());
  }
  return items;
}

}  // namespace outrider
