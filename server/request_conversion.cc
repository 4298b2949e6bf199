// See request_conversion.h. Cheap checks come first, so that a wrong parameter is not found only
// after a long prompt was tokenised.
#include "server/request_conversion.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "engine/field_error.h"
#include "model/utf8.h"

namespace outrider {
namespace {

// Special tokens count as long as this: token_bytes() has no text for them.
constexpr size_t kLongestSpecialToken = 64;
// Unicode normalisation may shorten a text before it is cut into tokens, by at most this.
constexpr int64_t kNormalisationRatio = 4;

// A newer client's field that this server has never heard of. prefix: of the message's fields.
absl::Status check_known(const google::protobuf::Message& message, const std::string& prefix) {
  const google::protobuf::Reflection& fields = *message.GetReflection();
  const google::protobuf::UnknownFieldSet& unknown = fields.GetUnknownFields(message);
  if (!unknown.empty()) {
    return field_error(absl::StrCat(prefix, unknown.field(0).number()),
                       "is no field that this server knows; expected those of its schema");
  }
  std::vector<const google::protobuf::FieldDescriptor*> set;
  fields.ListFields(message, &set);
  for (const google::protobuf::FieldDescriptor* field : set) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string inner = absl::StrCat(prefix, field->name(), ".");
    if (!field->is_repeated()) {
      const absl::Status status = check_known(fields.GetMessage(message, field), inner);
      if (!status.ok()) return status;
      continue;
    }
    for (int i = 0; i < fields.FieldSize(message, field); ++i) {
      const absl::Status status = check_known(fields.GetRepeatedMessage(message, field, i), inner);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status read_mode(v1::SpeculationMode mode, SpeculationParams& speculation) {
  switch (mode) {
    case v1::SPECULATION_MODE_UNSPECIFIED:
      return absl::OkStatus();
    case v1::SPECULATION_MODE_REJECTION:
      speculation.mode = VerifyMode::rejection;
      return absl::OkStatus();
    case v1::SPECULATION_MODE_COUPLED:
      speculation.mode = VerifyMode::coupled;
      return absl::OkStatus();
    case v1::SPECULATION_MODE_OFF:
      speculation.off = true;
      return absl::OkStatus();
    default:
      return field_error("speculation.mode", absl::StrCat("is ", static_cast<int>(mode),
                                                          "; expected REJECTION, COUPLED or OFF"));
  }
}

void read_sampling(const v1::SamplingParams& proto, SamplingParams& sampling) {
  if (proto.has_temperature()) sampling.temperature = proto.temperature();
  if (proto.has_top_p()) sampling.top_p = proto.top_p();
  if (proto.has_top_k()) sampling.top_k = proto.top_k();
  if (proto.has_min_p()) sampling.min_p = proto.min_p();
  if (proto.has_repetition_penalty()) sampling.repetition_penalty = proto.repetition_penalty();
  if (proto.has_presence_penalty()) sampling.presence_penalty = proto.presence_penalty();
  if (proto.has_frequency_penalty()) sampling.frequency_penalty = proto.frequency_penalty();
  sampling.logit_bias.insert(proto.logit_bias().begin(), proto.logit_bias().end());
  if (proto.has_seed()) sampling.seed = proto.seed();
  if (proto.has_max_tokens()) sampling.max_tokens = proto.max_tokens();
  if (proto.has_min_tokens()) sampling.min_tokens = proto.min_tokens();
  sampling.stop.assign(proto.stop().begin(), proto.stop().end());
  sampling.stop_token_ids.assign(proto.stop_token_ids().begin(), proto.stop_token_ids().end());
  sampling.ignore_eos = proto.ignore_eos();
  if (proto.has_n()) sampling.n = proto.n();
  if (proto.has_logprobs()) sampling.logprobs = proto.logprobs();
  if (proto.has_prompt_logprobs()) sampling.prompt_logprobs = proto.prompt_logprobs();
}

// gRPC refuses ill-formed text by itself; requests that are made in this process come here first.
absl::Status check_text(absl::string_view field, std::string_view text,
                        const RequestContext& context) {
  if (static_cast<int64_t>(text.size()) > context.max_input_bytes) {
    return field_error(
        field, absl::StrCat("has ", text.size(), " bytes, more than ", context.limits.max_positions,
                            " tokens can hold; expected at most ", context.max_input_bytes));
  }
  if (!is_valid_utf8(text)) return field_error(field, "is not valid UTF-8");
  return absl::OkStatus();
}

// Of a text that is too long no more pieces are read than tell that.
absl::StatusOr<std::vector<int32_t>> encode(std::string_view text, bool add_special_tokens,
                                            const RequestContext& context) {
  const int64_t most = context.limits.max_positions - 1;
  std::vector<int32_t> ids = context.tokenizer.encode(text, add_special_tokens, most);
  if (static_cast<int64_t>(ids.size()) <= most) return ids;
  return field_error("input",
                     absl::StrCat("has more than ", most, " tokens; expected at most ", most));
}

absl::StatusOr<std::vector<int32_t>> tokenise_chat(const v1::Chat& chat,
                                                   const RequestContext& context) {
  if (chat.messages_size() > context.limits.max_positions) {
    return field_error("messages.messages",
                       absl::StrCat("has ", chat.messages_size(), " messages; expected at most ",
                                    context.limits.max_positions, ", one a token"));
  }
  std::vector<ChatMessage> messages;
  for (const v1::ChatMessage& message : chat.messages()) {
    if (!is_chat_role(message.role())) {
      return field_error(absl::StrCat("messages.messages[", messages.size(), "].role"),
                         absl::StrCat("is ", excerpt(message.role()),
                                      "; expected \"system\", \"user\" or \"assistant\""));
    }
    messages.push_back({message.role(), message.content()});
  }
  if (!messages.empty() && messages.back().content.empty()) {
    return field_error(absl::StrCat("messages.messages[", messages.size() - 1, "].content"),
                       "is empty; expected text to answer");
  }
  const auto text = context.chat_template.render(messages);
  if (absl::IsInvalidArgument(text.status())) {
    return field_error("messages", absl::StrCat("cannot be rendered: ", text.status().message()));
  }
  if (!text.ok()) return text.status();
  if (auto status = check_text("messages", *text, context); !status.ok()) return status;
  // The template writes the special tokens that it wants.
  return encode(*text, false, context);
}

absl::StatusOr<std::vector<int32_t>> tokenise(const v1::GenerateRequest& proto,
                                              const RequestContext& context) {
  switch (proto.input_case()) {
    case v1::GenerateRequest::kText:
      if (auto status = check_text("text", proto.text(), context); !status.ok()) {
        return status;
      }
      return encode(proto.text(), true, context);
    case v1::GenerateRequest::kTokenized: {
      const auto& ids = proto.tokenized().input_ids();
      if (ids.empty()) {
        return field_error("tokenized.input_ids", "has 0 tokens; expected at least 1");
      }
      return std::vector<int32_t>(ids.begin(), ids.end());
    }
    case v1::GenerateRequest::kMessages:
      return tokenise_chat(proto.messages(), context);
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return field_error("input", "is unset; expected exactly one of text, tokenized, messages");
}

}  // namespace

RequestContext make_request_context(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                    const Limits& limits) {
  size_t longest = kLongestSpecialToken;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.token_bytes(id).size());
  }
  return {tokenizer, chat_template, limits,
          limits.max_positions * static_cast<int64_t>(longest) * kNormalisationRatio};
}

absl::StatusOr<Request> to_request(const v1::GenerateRequest& proto,
                                   const RequestContext& context) {
  if (auto status = check_known(proto, ""); !status.ok()) return status;
  Request request;
  request.request_id = proto.request_id();
  request.emitted.assign(proto.emitted_token_ids().begin(), proto.emitted_token_ids().end());
  request.priority = proto.priority();
  request.stream_stats = proto.stream_stats();
  read_sampling(proto.sampling_params(), request.sampling);
  if (auto status = read_mode(proto.speculation().mode(), request.speculation); !status.ok()) {
    return status;
  }
  if (proto.speculation().has_drafter()) {
    request.speculation.drafter = proto.speculation().drafter();
  }
  if (proto.speculation().has_num_speculative_tokens()) {
    request.speculation.num_speculative_tokens = proto.speculation().num_speculative_tokens();
  }
  if (proto.speculation().has_num_alternatives()) {
    request.speculation.num_alternatives = proto.speculation().num_alternatives();
  }
  if (proto.speculation().has_tpot_slo_ms()) {
    request.speculation.tpot_slo_ms = proto.speculation().tpot_slo_ms();
  }
  if (proto.speculation().has_lenience()) {
    request.speculation.lenience = proto.speculation().lenience();
  }
  if (auto status = validate_parameters(request, context.limits); !status.ok()) return status;
  auto prompt = tokenise(proto, context);
  if (!prompt.ok()) return prompt.status();
  request.prompt = *std::move(prompt);
  if (auto status = validate(request, context.limits); !status.ok()) return status;
  return request;
}

}  // namespace outrider
