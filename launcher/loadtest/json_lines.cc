// See json_lines.h.
#include "launcher/loadtest/json_lines.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace outrider {

void read_json_lines(
    const std::filesystem::path& path, const std::string& expected,
    const std::function<void(const nlohmann::json& object, const std::string& where)>& take) {
  std::ifstream file(path);
  if (!file) throw Error(path.string() + ": cannot be opened");
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = path.string() + ":" + std::to_string(number);
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) {
      throw Error(where + ": expected " + expected + ", found " +
                  (object.is_discarded() ? "what is no JSON" : object.type_name()));
    }
    take(object, where);
  }
  if (file.bad()) throw Error(path.string() + ": cannot be read");
}

}  // namespace outrider
