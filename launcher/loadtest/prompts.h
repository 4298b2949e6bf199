// What a load test asks.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace outrider {

// Chat, code, summaries and prose, from a few words to a page, in no special order.
const std::vector<std::string>& builtin_prompts();

// JSON lines, each an object with a string "text"; other keys and blank lines are passed over.
// Throws Error naming file and line where one is broken, and where there is no prompt at all.
std::vector<std::string> read_prompts(const std::filesystem::path& path);

}  // namespace outrider
