// A ResourceExhausted status that knows when it is worth trying again.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include <chrono>
#include <optional>

namespace outrider {

absl::Status retry_error(absl::string_view message, std::chrono::milliseconds delay);

// What retry_error() was given; nullopt for other statuses.
std::optional<std::chrono::milliseconds> retry_delay_of(const absl::Status& status);

}  // namespace outrider
