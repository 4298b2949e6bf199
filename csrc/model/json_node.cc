#include "model/json_node.h"

#include <cmath>

#include "core/error.h"
#include "model/json_file.h"

namespace outrider {

JsonNode JsonNode::get(std::string_view key) const {
  static const nlohmann::json null;
  if (!value_->is_object()) refuse("an object");
  const auto member = value_->find(key);
  std::string name = key_.empty() ? std::string(key) : key_ + "." + std::string(key);
  return JsonNode(member == value_->end() ? null : *member, file_, std::move(name));
}

JsonNode JsonNode::operator[](std::string_view key) const {
  JsonNode member = get(key);
  if (!value_->contains(key)) throw Error(member.where() + " is missing");
  return member;
}

bool JsonNode::is_null(std::string_view key) const { return get(key).value_->is_null(); }

std::vector<JsonNode> JsonNode::elements() const {
  if (!value_->is_array()) refuse("an array");
  std::vector<JsonNode> nodes;
  nodes.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    nodes.push_back(JsonNode((*value_)[i], file_, key_ + "[" + std::to_string(i) + "]"));
  }
  return nodes;
}

const std::string& JsonNode::string() const {
  if (!value_->is_string()) refuse("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

bool JsonNode::boolean_or(std::string_view key, bool fallback) const {
  return is_null(key) ? fallback : (*this)[key].boolean();
}

int64_t JsonNode::integer(int64_t low, int64_t high) const {
  const bool fits = value_->is_number_integer() &&
                    (!value_->is_number_unsigned() || value_->get<uint64_t>() <= INT64_MAX);
  if (!fits || value_->get<int64_t>() < low || value_->get<int64_t>() > high) {
    refuse("an integer in [" + std::to_string(low) + ", " + std::to_string(high) + "]");
  }
  return value_->get<int64_t>();
}

std::vector<int32_t> JsonNode::ascending_integers(int64_t end, std::string_view what) const {
  if (!value_->is_array() || value_->empty()) refuse("an array of " + std::string(what));
  std::vector<int32_t> values;
  for (const JsonNode& value : elements()) {
    values.push_back(static_cast<int32_t>(value.integer(0, end - 1)));
    if (values.size() > 1 && values.back() <= values[values.size() - 2]) {
      value.refuse("more than the one before it, " + std::to_string(values[values.size() - 2]));
    }
  }
  return values;
}

double JsonNode::number(double low, double high) const {
  const double value = value_->is_number() ? value_->get<double>() : std::nan("");
  if (!(value >= low && value <= high)) {
    refuse("a number in [" + show(low) + ", " + show(high) + "]");
  }
  return value;
}

void JsonNode::refuse(std::string_view expected) const {
  throw Error(where() + " is " + show(*value_) + "; expected " + std::string(expected));
}

void JsonNode::expect_unset(std::string_view key) const {
  if (is_null(key)) return;
  const JsonNode member = (*this)[key];
  if (member.value_->is_boolean() && !member.boolean()) return;
  member.refuse("null");
}

}  // namespace outrider
