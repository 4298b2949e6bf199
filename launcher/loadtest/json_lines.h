// Files of JSON lines: what a load test reads.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace outrider {

// Calls take(object, "FILE:LINE") for every line that is not blank. Throws Error, which names file
// and line and says what was `expected` ("a JSON object with …"), where a line is no JSON object or
// the file cannot be read.
void read_json_lines(
    const std::filesystem::path& path, const std::string& expected,
    const std::function<void(const nlohmann::json& object, const std::string& where)>& take);

}  // namespace outrider
