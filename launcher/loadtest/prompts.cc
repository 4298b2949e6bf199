// See prompts.h.
#include "launcher/loadtest/prompts.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace outrider {
namespace {

std::string read_prompt(const std::string& line, const std::string& where) {
  const std::string expected = where + ": expected a JSON object with a string \"text\", found ";
  const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) throw Error(expected + "what is no JSON");
  if (!object.is_object()) throw Error(expected + object.type_name());
  const auto text = object.find("text");
  if (text == object.end()) throw Error(expected + "none");
  if (!text->is_string()) throw Error(expected + text->type_name());
  if (text->get_ref<const std::string&>().empty()) throw Error(where + ": \"text\" is empty");
  return text->get<std::string>();
}

}  // namespace

std::vector<std::string> read_prompts(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw Error(path.string() + ": cannot be opened");
  std::vector<std::string> prompts;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    prompts.push_back(read_prompt(line, path.string() + ":" + std::to_string(number)));
  }
  if (file.bad()) throw Error(path.string() + ": cannot be read");
  if (prompts.empty()) {
    throw Error(path.string() + ": holds no prompt; expected JSON lines with \"text\"");
  }
  return prompts;
}

}  // namespace outrider
