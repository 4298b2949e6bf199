#include "model/normalizer.h"

#include <utf8proc.h>

#include <cstdlib>
#include <new>

#include "core/error.h"
#include "model/json_node.h"
#include "model/unicode_newer.h"

namespace outrider {
namespace {

// In place of a character that is left as it is: the bytes of `text` before it and its own.
struct Cut {
  size_t before, bytes;
};

// The first character of `text` that the package does not know; at the end where there is none.
Cut find_newer(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    int32_t code_point = 0;
    const auto bytes =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(&text[at]),
                         static_cast<utf8proc_ssize_t>(text.size() - at), &code_point);
    CHECK(bytes > 0);
    if (code_point >= kNewerNormalized[0].first) {
      for (const CodePointRange& range : kNewerNormalized) {
        if (range.first <= code_point && code_point <= range.last) {
          return {at, static_cast<size_t>(bytes)};
        }
      }
    }
    at += static_cast<size_t>(bytes);
  }
  return {text.size(), 0};
}

void append_normal_form(std::string_view text, int form, std::string* normal) {
  utf8proc_uint8_t* mapped = nullptr;
  const auto bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                  static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                  static_cast<utf8proc_option_t>(form));
  if (bytes == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  CHECK(bytes >= 0);
  normal->append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(bytes));
  std::free(mapped);
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
