// See retry_error.h. The delay rides as a payload of the status.
#include "engine/retry_error.h"

#include <absl/strings/cord.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <string>

namespace outrider {
namespace {

constexpr char kRetryPayload[] = "outrider/retry-delay-ms";

}  // namespace

absl::Status retry_error(absl::string_view message, std::chrono::milliseconds delay) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kRetryPayload, absl::Cord(absl::StrCat(delay.count())));
  return status;
}

std::optional<std::chrono::milliseconds> retry_delay_of(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryPayload);
  int64_t ms = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &ms)) return std::nullopt;
  return std::chrono::milliseconds(ms);
}

}  // namespace outrider
