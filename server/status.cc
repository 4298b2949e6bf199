// See status.h.
#include "server/status.h"

#include <string>

#include "engine/field_error.h"
#include "engine/retry_error.h"
#include "outrider/v1/status_details.pb.h"

namespace outrider {
namespace {

void add_detail(const std::string& type, const google::protobuf::MessageLite& detail,
                v1::StatusDetails& details) {
  auto& any = *details.add_details();
  any.set_type_url("type.googleapis.com/" + type);
  any.set_value(detail.SerializeAsString());
}

}  // namespace

grpc::Status to_grpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());  // the codes are the same
  const std::string message(status.message());
  v1::StatusDetails details;
  details.set_code(static_cast<int>(code));
  details.set_message(message);
  if (const std::string field = field_of(status); !field.empty()) {
    v1::BadRequest bad_request;
    auto& violation = *bad_request.add_field_violations();
    violation.set_field(field);
    violation.set_description(message);
    add_detail("google.rpc.BadRequest", bad_request, details);
  }
  if (const auto delay = retry_delay_of(status)) {
    v1::RetryInfo retry_info;
    const auto ms = delay->count();
    retry_info.mutable_retry_delay()->set_seconds(ms / 1000);
    retry_info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(ms % 1000) * 1'000'000);
    add_detail("google.rpc.RetryInfo", retry_info, details);
  }
  if (details.details().empty()) return {code, message};
  return {code, message, details.SerializeAsString()};
}

}  // namespace outrider
