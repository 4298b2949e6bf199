// JSON files that come from outside (config.json, a safetensors header), parsed within bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

namespace outrider {

// Parses one object. `where` (the file, say) opens the message of the Error that is thrown for
// whatever is not valid JSON, not an object, nested deeper than 16 or names a key twice.
nlohmann::json parse_json_object(std::span<const uint8_t> text, const std::string& where);

// The same for a whole file; throws Error where it has more than `max_bytes`.
nlohmann::json load_json_object(const std::filesystem::path& path, size_t max_bytes);

// A value as a message can show it: on one line, short, printable.
std::string show(const nlohmann::json& value);
std::string quote(std::string_view text);

}  // namespace outrider
