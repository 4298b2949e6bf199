// When a refused client is told to try again.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>

#include "outrider/v1/status_details.pb.h"

namespace outrider {

// Seconds: the delay of the google.rpc.RetryInfo in a status; nullopt where it has none.
inline std::optional<double> retry_delay_s(const grpc::Status& status) {
  v1::StatusDetails details;
  if (!details.ParseFromString(status.error_details())) return std::nullopt;
  for (const auto& detail : details.details()) {
    v1::RetryInfo info;
    if (detail.type_url() == "type.googleapis.com/google.rpc.RetryInfo" &&
        info.ParseFromString(detail.value())) {
      return static_cast<double>(info.retry_delay().seconds()) + info.retry_delay().nanos() / 1e9;
    }
  }
  return std::nullopt;
}

}  // namespace outrider
