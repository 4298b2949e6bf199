// Statuses as gRPC sends them.
#pragma once

#include <absl/status/status.h>
#include <grpcpp/support/status.h>

namespace outrider {

// Where the status names a field, a google.rpc.BadRequest detail names it again; where it says when
// to try again, a google.rpc.RetryInfo does.
grpc::Status to_grpc(const absl::Status& status);

}  // namespace outrider
