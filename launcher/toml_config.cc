// See toml_config.h.
#include "launcher/toml_config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <sstream>

namespace outrider {
namespace {

std::string value_text(const std::string& key, const toml::node& node) {
  std::ostringstream text;
  if (const auto* string = node.as_string()) {
    text << string->get();
  } else if (node.is_integer() || node.is_floating_point() || node.is_boolean()) {
    node.visit([&](const auto& value) { text << toml::node_view<const toml::node>(value); });
  } else {
    throw CLI::ConfigError("--config: line " + std::to_string(node.source().begin.line) + ": " +
                           key + " is no text, number, truth value or list of these");
  }
  return text.str();
}

void flatten(const toml::table& table, const std::vector<std::string>& parents,
             std::vector<CLI::ConfigItem>& items) {
  for (const auto& [toml_key, node] : table) {
    std::string key(toml_key.str());
    if (const toml::table* inner = node.as_table()) {
      std::vector<std::string> path = parents;
      path.push_back(key);
      flatten(*inner, path, items);
      continue;
    }
    std::replace(key.begin(), key.end(), '_', '-');
    CLI::ConfigItem item;
    item.parents = parents;
    item.name = key;
    if (const toml::array* array = node.as_array()) {
      for (const toml::node& element : *array) item.inputs.push_back(value_text(key, element));
    } else {
      item.inputs.push_back(value_text(key, node));
    }
    items.push_back(std::move(item));
  }
}

}  // namespace

std::vector<CLI::ConfigItem> TomlConfig::from_config(std::istream& input) const {
  std::vector<CLI::ConfigItem> items;
  try {
    flatten(toml::parse(input), {}, items);
  } catch (const toml::parse_error& error) {
    throw CLI::ConfigError("--config: line " + std::to_string(error.source().begin.line) + ": " +
                           std::string(error.description()));
  }
  return items;
}

}  // namespace outrider
