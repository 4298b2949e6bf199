// See prompts.h.
#include "launcher/loadtest/prompts.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "launcher/loadtest/json_lines.h"

namespace outrider {

std::vector<std::string> read_prompts(const std::filesystem::path& path) {
  const std::string expected = "a JSON object with a string \"text\"";
  std::vector<std::string> prompts;
  read_json_lines(path, expected, [&](const nlohmann::json& object, const std::string& where) {
    const auto text = object.find("text");
    if (text == object.end() || !text->is_string()) {
      throw Error(where + ": expected " + expected + ", found " +
                  (text == object.end() ? "none" : text->type_name()));
    }
    prompts.push_back(text->get<std::string>());
    if (prompts.back().empty()) throw Error(where + ": \"text\" is empty");
  });
  if (prompts.empty()) {
    throw Error(path.string() + ": holds no prompt; expected JSON lines with \"text\"");
  }
  return prompts;
}

}  // namespace outrider
