// An InvalidArgument status that knows which field of the request is wrong.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include <string>

namespace outrider {

// Message: "FIELD PROBLEM", e.g. field_error("sampling_params.top_p", "is 1.5; expected …").
absl::Status field_error(absl::string_view field, absl::string_view problem);

// The field that `status` names; empty where it names none.
std::string field_of(const absl::Status& status);

}  // namespace outrider
