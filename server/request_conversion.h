// From the wire to the engine: a GenerateRequest as a Request that passed every check.
#pragma once

#include <absl/status/statusor.h>

#include "engine/request.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"
#include "outrider/v1/generation.pb.h"

namespace outrider {

// What requests are made with.
struct RequestContext {
  const Tokenizer& tokenizer;
  const ChatTemplate& chat_template;
  const Limits& limits;
  int64_t max_input_bytes;  // longest text that could fit into limits.max_positions
};

RequestContext make_request_context(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                    const Limits& limits);

// Renders and tokenises, then checks: takes as long as the text is long. InvalidArgument (with the
// field, see field_error.h) for whatever cannot be carried out exactly as asked, fields that are
// not known here included; FailedPrecondition for a chat without a usable template.
absl::StatusOr<Request> to_request(const v1::GenerateRequest& proto, const RequestContext& context);

}  // namespace outrider
