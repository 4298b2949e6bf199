// An InvalidArgument status that knows which field of the request is wrong.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include <string>
#include <string_view>

namespace outrider {

// Message: "FIELD PROBLEM", e.g. field_error("sampling_params.top_p", "is 1.5; expected …").
absl::Status field_error(absl::string_view field, absl::string_view problem);

// With the digits that it takes to read back as the number: 1.0000001 is not 1.
std::string exact_text(float number);

// A client's text as a status tells it: in quotes, with escapes for ASCII's control characters, and
// no more than its first 64 bytes, since a client's gRPC takes only so much.
std::string excerpt(std::string_view text);

// The field that `status` names; empty where it names none.
std::string field_of(const absl::Status& status);

}  // namespace outrider
