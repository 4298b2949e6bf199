// JsonNode: a value deep in a JSON file, objects and arrays, that knows where it stands: whatever
// is wrong with it is reported by file and key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

class JsonNode {
 public:
  // The root of a file; `value` outlives every node of it.
  JsonNode(const nlohmann::json& value, const std::filesystem::path& file)
      : JsonNode(value, file.string(), "") {}

  // Null also where the key is absent.
  bool is_null(std::string_view key) const;
  // The member `key` of an object. Throws where this is no object or has no such member.
  JsonNode operator[](std::string_view key) const;
  JsonNode get(std::string_view key) const;  // a null where it is absent
  std::vector<JsonNode> elements() const;    // of an array

  const std::string& string() const;
  bool boolean() const;
  bool boolean_or(std::string_view key, bool fallback) const;
  int64_t integer(int64_t low, int64_t high) const;  // in [low, high]
  // Of an array of at least one `what`, each more than the one before and in [0, end).
  std::vector<int32_t> ascending_integers(int64_t end, std::string_view what) const;
  double number(double low, double high) const;  // in [low, high]
  const nlohmann::json& value() const { return *value_; }

  // "FILE: KEY"
  std::string where() const { return file_ + ": " + (key_.empty() ? "the file" : key_); }
  // Throws Error "FILE: KEY is VALUE; expected EXPECTED".
  [[noreturn]] void refuse(std::string_view expected) const;
  // Throws where a member is set to anything but null or false: what would change the tokens.
  void expect_unset(std::string_view key) const;

 private:
  JsonNode(const nlohmann::json& value, std::string file, std::string key)
      : value_(&value), file_(std::move(file)), key_(std::move(key)) {}

  const nlohmann::json* value_;
  std::string file_;
  std::string key_;
};

}  // namespace outrider
