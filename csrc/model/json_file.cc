#include "model/json_file.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/mapped_file.h"

namespace outrider {

namespace {

using nlohmann::json;

// Bounds what copying, printing and destroying a value may recurse to.
constexpr int kMaxDepth = 16;
constexpr size_t kMaxShown = 60;  // characters of a value in a message

}  // namespace

json parse_json_object(std::span<const uint8_t> text, const std::string& where) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) throw Error(where + ": JSON is nested deeper than 16");
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key &&
        !keys.back().insert(parsed.get_ref<const std::string&>()).second) {
      throw Error(where + ": key " + show(parsed) + " stands twice in one object");
    }
    return true;
  };
  json value;
  try {
    value = json::parse(text.begin(), text.end(), check);
  } catch (const json::parse_error& error) {
    throw Error(where + ": expected JSON, found an error at byte " + std::to_string(error.byte));
  } catch (const json::exception&) {
    throw Error(where + ": expected JSON, found a number that is out of range");
  }
  if (!value.is_object()) throw Error(where + ": expected a JSON object, found " + show(value));
  return value;
}

json load_json_object(const std::filesystem::path& path, size_t max_bytes) {
  const MappedFile file(path);
  if (file.bytes().size() > max_bytes) {
    throw Error(path.string() + ": has " + std::to_string(file.bytes().size()) +
                " bytes; expected at most " + std::to_string(max_bytes));
  }
  return parse_json_object(file.bytes(), path.string());
}

std::string show(const json& value) {
  if (value.is_array()) return "an array of " + std::to_string(value.size());
  if (value.is_object()) return "an object";
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

std::string quote(std::string_view text) { return show(json(std::string(text))); }

}  // namespace outrider
