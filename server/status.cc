// See status.h.
#include "server/status.h"

#include <string>

#include "engine/field_error.h"
#include "outrider/v1/status_details.pb.h"

namespace outrider {

grpc::Status to_grpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());  // the codes are the same
  const std::string message(status.message());
  const std::string field = field_of(status);
  if (field.empty()) return {code, message};

  v1::BadRequest bad_request;
  auto& violation = *bad_request.add_field_violations();
  violation.set_field(field);
  violation.set_description(message);
  v1::StatusDetails details;
  details.set_code(static_cast<int>(code));
  details.set_message(message);
  auto& any = *details.add_details();
  any.set_type_url("type.googleapis.com/google.rpc.BadRequest");
  any.set_value(bad_request.SerializeAsString());
  return {code, message, details.SerializeAsString()};
}

}  // namespace outrider
