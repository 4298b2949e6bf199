// See trace.h.
#include "launcher/loadtest/trace.h"

#include <absl/strings/str_format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "launcher/loadtest/json_lines.h"

namespace outrider {
namespace {

constexpr double kMsPerSecond = 1e3;

// object[key] as a number of tokens; nothing where the key is not there.
std::optional<int32_t> read_length(const nlohmann::json& object, const char* key,
                                   const std::string& where) {
  const auto value = object.find(key);
  if (value == object.end()) return std::nullopt;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (!value->is_number_integer() || value->get<double>() < 1 || value->get<double>() > kMost) {
    throw Error(absl::StrFormat("%s: \"%s\" is %s; expected a whole number of tokens above 0",
                                where, key, value->dump()));
  }
  return value->get<int32_t>();
}

// Nothing where the key is not there. input_length: nothing where the prompt is a text.
std::vector<uint64_t> read_hash_ids(const nlohmann::json& object,
                                    std::optional<int32_t> input_length, const std::string& where) {
  const auto ids = object.find("hash_ids");
  if (ids == object.end()) return {};
  if (!input_length) {
    throw Error(where +
                ": expected \"hash_ids\" beside \"input_length\", found it beside \"text\"");
  }
  if (!ids->is_array()) {
    throw Error(where + ": expected an array \"hash_ids\", found " + ids->type_name());
  }
  for (const nlohmann::json& id : *ids) {
    if (id.is_number_unsigned()) continue;
    throw Error(where + ": \"hash_ids\" holds " + id.dump() +
                "; expected whole numbers of 0 and above");
  }
  const int64_t blocks = (int64_t{*input_length} + kTraceBlockTokens - 1) / kTraceBlockTokens;
  if (static_cast<int64_t>(ids->size()) != blocks) {
    throw Error(absl::StrFormat(
        "%s: expected %d \"hash_ids\", one for each %d of \"input_length\" tokens, found %d", where,
        blocks, kTraceBlockTokens, ids->size()));
  }
  return ids->get<std::vector<uint64_t>>();
}

TraceEntry read_entry(const nlohmann::json& object, const std::string& where) {
  TraceEntry entry;
  const auto timestamp = object.find("timestamp"), text = object.find("text");
  if (timestamp == object.end() || !timestamp->is_number() ||
      !std::isfinite(timestamp->get<double>())) {
    throw Error(where + ": expected a number \"timestamp\", in milliseconds, found " +
                (timestamp == object.end() ? "none" : timestamp->type_name()));
  }
  entry.due_s = timestamp->get<double>() / kMsPerSecond;
  const std::optional<int32_t> input_length = read_length(object, "input_length", where);
  if (input_length.has_value() == (text != object.end())) {
    throw Error(where + ": expected either \"text\" or \"input_length\", found " +
                (input_length ? "both" : "neither"));
  }
  if (text != object.end()) {
    if (!text->is_string() || text->get_ref<const std::string&>().empty()) {
      throw Error(where + ": expected a string \"text\" that is not empty");
    }
    entry.text = text->get<std::string>();
  }
  entry.input_length = input_length.value_or(0);
  entry.hash_ids = read_hash_ids(object, input_length, where);
  entry.output_length = read_length(object, "output_length", where);
  return entry;
}

}  // namespace

std::vector<TraceEntry> read_trace(const std::filesystem::path& path) {
  std::vector<TraceEntry> trace;
  read_json_lines(
      path, "a JSON object with \"timestamp\" and \"text\" or \"input_length\"",
      [&](const nlohmann::json& object, const std::string& where) {
        trace.push_back(read_entry(object, where));
        if (trace.size() > 1 && trace.back().due_s < trace[trace.size() - 2].due_s) {
          throw Error(where + ": \"timestamp\" is less than that of the request before");
        }
      });
  if (trace.empty()) {
    throw Error(path.string() + ": holds no request; expected JSON lines with \"timestamp\"");
  }
  const double first_s = trace.front().due_s;
  for (TraceEntry& entry : trace) entry.due_s -= first_s;
  return trace;
}

}  // namespace outrider
