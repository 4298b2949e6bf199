// See field_error.h. The field rides as a payload of the status.
#include "engine/field_error.h"

#include <absl/strings/cord.h>
#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <limits>

#include "model/utf8.h"

namespace outrider {
namespace {

constexpr size_t kMaxExcerptBytes = 64;
constexpr char kFieldPayload[] = "outrider/field";

}  // namespace

absl::Status field_error(absl::string_view field, absl::string_view problem) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(field, " ", problem));
  status.SetPayload(kFieldPayload, absl::Cord(field));
  return status;
}

std::string exact_text(float number) {
  std::string text;
  for (int digits = 6; digits <= std::numeric_limits<float>::max_digits10; ++digits) {
    text = absl::StrFormat("%.*g", digits, number);
    float read = 0;
    if (absl::SimpleAtof(text, &read) && read == number) break;
  }
  return text;
}

std::string excerpt(std::string_view text) {
  std::string valid;
  append_utf8(text.substr(0, kMaxExcerptBytes), &valid);
  return absl::StrCat("\"", absl::Utf8SafeCEscape(valid), "\"");
}

std::string field_of(const absl::Status& status) {
  const auto payload = status.GetPayload(kFieldPayload);
  return payload.has_value() ? std::string(*payload) : std::string();
}

}  // namespace outrider
