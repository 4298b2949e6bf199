#include "model/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "model/json_node.h"
#include "model/unicode_newer.h"

namespace outrider {
namespace {

// In place of a character that is left as it is: the bytes of `text` before it and its own.
struct Cut {
  size_t before, bytes;
};

utf8proc_int32_t take_code_point(std::string_view* text) {
  utf8proc_int32_t code_point = 0;
  const auto bytes = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text->data()),
                                      static_cast<utf8proc_ssize_t>(text->size()), &code_point);
  CHECK(bytes > 0);
  text->remove_prefix(static_cast<size_t>(bytes));
  return code_point;
}

// The first character of `text` that the package does not know; at the end where there is none.
Cut find_newer(std::string_view text) {
  for (std::string_view left = text; !left.empty();) {
    const size_t before = text.size() - left.size();
    const utf8proc_int32_t code_point = take_code_point(&left);
    if (code_point < kNewerNormalized[0].first) continue;
    for (const CodePointRange& range : kNewerNormalized) {
      if (range.first <= code_point && code_point <= range.last) {
        return {before, text.size() - left.size() - before};
      }
    }
  }
  return {text.size(), 0};
}

// The canonical order of each run of marks. utf8proc_decompose() has it too, but by swapping
// neighbours: in a time that grows with the square of the longest run.
void order_marks(std::vector<utf8proc_int32_t>* code_points) {
  const auto mark_class = [](utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  };
  for (auto run = code_points->begin(); run != code_points->end();) {
    const auto end = std::find_if(run, code_points->end(),
                                  [&](utf8proc_int32_t c) { return mark_class(c) == 0; });
    std::ranges::stable_sort(run, end, {}, mark_class);
    run = end == code_points->end() ? end : std::next(end);
  }
}

void append_normal_form(std::string_view text, int form, std::string* normal) {
  const auto options = static_cast<utf8proc_option_t>(form);
  std::array<utf8proc_int32_t, 32> parts;  // no character has more than 18
  std::vector<utf8proc_int32_t> code_points;
  while (!text.empty()) {
    int bound_class = 0;
    const auto count = utf8proc_decompose_char(take_code_point(&text), parts.data(), parts.size(),
                                               options, &bound_class);
    CHECK(count >= 0 && count <= std::ssize(parts));
    code_points.insert(code_points.end(), parts.begin(), parts.begin() + count);
  }
  order_marks(&code_points);
  const auto count = utf8proc_normalize_utf32(code_points.data(), std::ssize(code_points), options);
  CHECK(count >= 0);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    std::array<utf8proc_uint8_t, 4> bytes;
    const auto num_bytes = utf8proc_encode_char(code_points[i], bytes.data());
    normal->append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(num_bytes));
  }
}

std::string normalize(std::string_view text, int form) {
  std::string normal;
  while (!text.empty()) {
    const Cut cut = find_newer(text);
    append_normal_form(text.substr(0, cut.before), form, &normal);
    normal += text.substr(cut.before, cut.bytes);
    text.remove_prefix(cut.before + cut.bytes);
  }
  return normal;
}

}  // namespace

Normalizer::Normalizer(const JsonNode& node) {
  if (!node.value().is_null()) read(node);
}

void Normalizer::read(const JsonNode& node) {
  const std::string& type = node["type"].string();
  if (type == "NFC") {
    forms_.push_back(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  } else if (type == "NFD") {
    forms_.push_back(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  } else if (type == "NFKC") {
    forms_.push_back(UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
  } else if (type == "NFKD") {
    forms_.push_back(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  } else if (type == "Sequence") {
    for (const JsonNode& element : node["normalizers"].elements()) read(element);
  } else {
    node["type"].refuse("\"NFC\", \"NFD\", \"NFKC\", \"NFKD\" or \"Sequence\"");
  }
}

std::string Normalizer::operator()(std::string_view text) const {
  std::string normal(text);
  for (int form : forms_) normal = normalize(normal, form);
  return normal;
}

}  // namespace outrider
