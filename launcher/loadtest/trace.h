// A trace: requests that were made once, to be made again at the same distances.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace outrider {

inline constexpr int32_t kTraceBlockTokens = 512;

struct TraceEntry {
  double due_s = 0;  // since the first entry
  std::string text;  // the prompt; empty: input_length tokens, drawn at random
  int32_t input_length = 0;
  // One for each kTraceBlockTokens tokens of input_length, the last of which may be fewer; blocks
  // of equal ids are of equal tokens. Empty: this prompt shares nothing.
  std::vector<uint64_t> hash_ids;
  std::optional<int32_t> output_length;  // max_tokens
};

// JSON lines: "timestamp" (milliseconds, never less than the line before), one of "text" and
// "input_length", and perhaps "output_length" (tokens) and, beside "input_length", "hash_ids";
// other keys and blank lines are passed over, so traces in the format that Mooncake's authors
// published are read as they are. Throws Error naming file and line where one is broken, and where
// there is no request at all.
std::vector<TraceEntry> read_trace(const std::filesystem::path& path);

}  // namespace outrider
