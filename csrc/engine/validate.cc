// Checks a request against the engine's limits: whatever passes here, a step can carry out.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/field_error.h"
#include "engine/named_drafter.h"
#include "engine/request.h"
#include "model/utf8.h"

namespace outrider {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;
constexpr float kMaxBias = 100;   // of a token's logit, either way
constexpr float kMaxPenalty = 2;  // presence and frequency, either way

template <typename T>
absl::Status unexpected(absl::string_view field, const T& found, absl::string_view expected) {
  return field_error(field, absl::StrCat("is ", found, "; expected ", expected));
}

absl::Status unexpected(absl::string_view field, float found, absl::string_view expected) {
  return unexpected(field, exact_text(found), expected);
}

// ids: of the vocabulary; names the first one that is not.
absl::Status validate_ids(absl::string_view field, const std::vector<int32_t>& ids,
                          int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return unexpected(absl::StrCat(field, "[", i, "]"), ids[i],
                        absl::StrCat("a token id in [0, ", vocab_size, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status validate_prompt(const Request& request, const Limits& limits) {
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) return field_error("input", "has 0 tokens; expected at least 1");
  if (length >= limits.max_positions) {
    return field_error("input", absl::StrCat("has ", length, " tokens; expected at most ",
                                             limits.max_positions - 1));
  }
  if (auto status = validate_ids("tokenized.input_ids", request.prompt, limits.vocab_size);
      !status.ok()) {
    return status;
  }
  const auto& max_tokens = request.sampling.max_tokens;
  const int64_t room = limits.max_positions - length;
  if (max_tokens.has_value() && (*max_tokens < 1 || *max_tokens > room)) {
    return unexpected("sampling_params.max_tokens", *max_tokens,
                      absl::StrCat("1 … ", room, " (", limits.max_positions,
                                   " positions less the prompt's ", length, ")"));
  }
  // What could never run is told now.
  const int32_t n = request.sampling.n;
  const int64_t each = limits.max_kv_tokens / n - kMaxDraftTokens - 1;
  if (length >= each) {
    return unexpected("sampling_params.n", n,
                      absl::StrCat("fewer answers to a prompt of ", length,
                                   " tokens: together they must fit into the KV cache's ",
                                   limits.max_kv_tokens, " tokens"));
  }
  if (request.sampling.min_tokens > std::min(room, each - length)) {
    return unexpected("sampling_params.min_tokens", request.sampling.min_tokens,
                      absl::StrCat("at most ", std::min(room, each - length),
                                   ", as many as fit behind a prompt of ", length));
  }
  if (max_tokens.has_value() && length + *max_tokens > each) {
    return unexpected(
        "sampling_params.max_tokens", *max_tokens,
        absl::StrCat("at most ", each - length, ": ", n, " answers of prompt, max_tokens and ",
                     kMaxDraftTokens + 1, " tokens of a step must fit into the KV cache's ",
                     limits.max_kv_tokens, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status validate_emitted(const Request& request, const Limits& limits) {
  const auto emitted = static_cast<int64_t>(request.emitted.size());
  if (emitted == 0) return absl::OkStatus();
  if (request.sampling.n != 1) {
    return field_error("emitted_token_ids",
                       absl::StrCat("needs sampling_params.n 1; found ", request.sampling.n));
  }
  const auto room = limits.max_positions - static_cast<int64_t>(request.prompt.size());
  const int64_t most = request.sampling.max_tokens.value_or(room) - 1;
  if (emitted > most) {
    return field_error("emitted_token_ids",
                       absl::StrCat("has ", emitted, " tokens; expected at most ", most,
                                    ", fewer than max_tokens"));
  }
  return validate_ids("emitted_token_ids", request.emitted, limits.vocab_size);
}

absl::Status validate_bias(const SamplingParams& sampling, const Limits& limits) {
  constexpr absl::string_view kField = "sampling_params.logit_bias";
  if (sampling.logit_bias.size() > static_cast<size_t>(limits.max_logit_bias)) {
    return field_error(kField, absl::StrCat("has ", sampling.logit_bias.size(),
                                            " tokens; expected at most ", limits.max_logit_bias));
  }
  for (const auto& [token, bias] : sampling.logit_bias) {
    if (token < 0 || token >= limits.vocab_size) {
      return unexpected(kField, absl::StrCat("of token ", token),
                        absl::StrCat("token ids in [0, ", limits.vocab_size, ")"));
    }
    if (!(bias >= -kMaxBias && bias <= kMaxBias)) {
      return unexpected(kField, absl::StrCat(exact_text(bias), " for token ", token),
                        absl::StrCat("a number in [", -kMaxBias, ", ", kMaxBias, "]"));
    }
  }
  return absl::OkStatus();
}

absl::Status validate_min_tokens(const SamplingParams& sampling, const Limits& limits) {
  constexpr absl::string_view kField = "sampling_params.min_tokens";
  const int64_t most = sampling.max_tokens.value_or(limits.max_positions);
  if (sampling.min_tokens < 0 || (sampling.min_tokens > 0 && sampling.min_tokens > most)) {
    return unexpected(kField, sampling.min_tokens,
                      sampling.max_tokens
                          ? absl::StrCat("at least 0, and at most max_tokens, ", most)
                          : absl::StrCat("0 … ", most));
  }
  std::set<int32_t> ends(sampling.stop_token_ids.begin(), sampling.stop_token_ids.end());
  ends.insert(limits.eos_token_ids.begin(), limits.eos_token_ids.end());
  if (sampling.min_tokens > 0 && static_cast<int64_t>(ends.size()) >= limits.vocab_size) {
    return unexpected(kField, sampling.min_tokens,
                      "0 where every token of the vocabulary ends the answer");
  }
  return absl::OkStatus();
}

absl::Status validate_penalties(const SamplingParams& sampling) {
  const float repetition = sampling.repetition_penalty;
  if (!(repetition > 0) || !std::isfinite(repetition)) {
    return unexpected("sampling_params.repetition_penalty", repetition,
                      "a finite number above 0 (1: off)");
  }
  for (const auto& [field, penalty] :
       {std::pair{"sampling_params.presence_penalty", sampling.presence_penalty},
        std::pair{"sampling_params.frequency_penalty", sampling.frequency_penalty}}) {
    if (!(penalty >= -kMaxPenalty && penalty <= kMaxPenalty)) {
      return unexpected(field, penalty,
                        absl::StrCat("a number in [", -kMaxPenalty, ", ", kMaxPenalty, "]"));
    }
  }
  return absl::OkStatus();
}

absl::Status validate_sampling(const SamplingParams& sampling, const Limits& limits) {
  if (!(sampling.temperature >= 0) || !std::isfinite(sampling.temperature)) {
    return unexpected("sampling_params.temperature", sampling.temperature,
                      "a finite number of at least 0");
  }
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return unexpected("sampling_params.top_p", sampling.top_p, "a number in (0, 1]");
  }
  if (sampling.top_k < 0) {
    return unexpected("sampling_params.top_k", sampling.top_k, "at least 0 (0: off)");
  }
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1)) {
    return unexpected("sampling_params.min_p", sampling.min_p, "a number in [0, 1] (0: off)");
  }
  if (auto status = validate_penalties(sampling); !status.ok()) return status;
  if (auto status = validate_bias(sampling, limits); !status.ok()) return status;
  if (sampling.n < 1 || sampling.n > limits.max_choices) {
    return unexpected("sampling_params.n", sampling.n, absl::StrCat("1 … ", limits.max_choices));
  }
  for (const auto& [field, wanted] :
       {std::pair{"sampling_params.logprobs", sampling.logprobs},
        std::pair{"sampling_params.prompt_logprobs", sampling.prompt_logprobs}}) {
    if (wanted.has_value() && (*wanted < 0 || *wanted > limits.max_logprobs)) {
      return unexpected(field, *wanted, absl::StrCat("0 … ", limits.max_logprobs));
    }
  }
  if (sampling.stop.size() > static_cast<size_t>(limits.max_stop_strings)) {
    return field_error("sampling_params.stop",
                       absl::StrCat("has ", sampling.stop.size(), " strings; expected at most ",
                                    limits.max_stop_strings));
  }
  for (size_t i = 0; i < sampling.stop.size(); ++i) {
    const std::string field = absl::StrCat("sampling_params.stop[", i, "]");
    const size_t bytes = sampling.stop[i].size();
    if (bytes < 1 || bytes > static_cast<size_t>(limits.max_stop_bytes)) {
      return field_error(
          field, absl::StrCat("has ", bytes, " bytes; expected 1 … ", limits.max_stop_bytes));
    }
    if (!is_valid_utf8(sampling.stop[i])) {
      return field_error(field, "is not valid UTF-8; expected whole characters");
    }
  }
  if (sampling.stop_token_ids.size() > static_cast<size_t>(limits.max_stop_token_ids)) {
    return field_error("sampling_params.stop_token_ids",
                       absl::StrCat("has ", sampling.stop_token_ids.size(),
                                    " tokens; expected at most ", limits.max_stop_token_ids));
  }
  if (auto status = validate_ids("sampling_params.stop_token_ids", sampling.stop_token_ids,
                                 limits.vocab_size);
      !status.ok()) {
    return status;
  }
  return validate_min_tokens(sampling, limits);
}

// A head drafts nothing in a sequence's first step, which a preemption adds.
absl::Status validate_repeatable(const Request& request, const Limits& limits) {
  const auto& drafter = request.speculation.drafter;
  if (!drafter || named_drafter(*drafter, limits) != DrafterKind::head ||
      request.speculation.num_speculative_tokens == 0 || !request.sampling.seed.has_value() ||
      verify_mode(request) != VerifyMode::rejection) {
    return absl::OkStatus();
  }
  return unexpected("speculation.drafter", "\"" + *drafter + "\"",
                    "another where speculation.mode is rejection and there is a seed: answers "
                    "would not repeat");
}

// Of a number that the client named itself; what the server's own policy leaves of it is not known
// here.
absl::Status validate_alternatives(const Request& request, const Limits& limits) {
  constexpr absl::string_view kField = "speculation.num_alternatives";
  const SpeculationParams& speculation = request.speculation;
  const int32_t wanted = speculation.num_alternatives.value_or(0);
  const auto& k = speculation.num_speculative_tokens;
  const int most =
      k.has_value() ? std::min(kMaxAlternatives, limits.max_draft_tokens - *k) : kMaxAlternatives;
  if (wanted < 0 || wanted > most) {
    return unexpected(kField, wanted, absl::StrCat("0 … ", most));
  }
  if (wanted == 0) return absl::OkStatus();
  if (speculation.off || k == 0 || limits.max_draft_tokens == 0) {
    return unexpected(kField, wanted, "0 or unset where nothing is drafted");
  }
  if (request.sampling.logprobs.has_value()) {
    return unexpected(kField, wanted, "0 or unset where sampling_params.logprobs is set");
  }
  if (request.sampling.seed.has_value() && verify_mode(request) == VerifyMode::rejection) {
    return unexpected(kField, wanted,
                      "0 or unset where speculation.mode is rejection and there is a seed: answers "
                      "would not repeat");
  }
  const DrafterKind drafter =
      speculation.drafter ? *named_drafter(*speculation.drafter, limits) : limits.default_drafter;
  if (drafts_by_copying(drafter)) {
    return unexpected(
        kField, wanted,
        absl::StrCat("0 or unset where the drafter copies, as ", drafter_name(drafter), " does"));
  }
  return absl::OkStatus();
}

absl::Status validate_lenience(const Request& request) {
  const SpeculationParams& speculation = request.speculation;
  const float lenience = speculation.lenience;
  // Engines take numbers below the normal ones for 0.
  if (!(lenience >= std::numeric_limits<float>::min() && lenience <= 1)) {
    return unexpected("speculation.lenience", lenience, "a number in (0, 1], 1.2e-38 at least");
  }
  if (lenience == 1) return absl::OkStatus();
  if (speculation.off) {
    return unexpected("speculation.lenience", lenience,
                      "1 (exact) or unset where speculation.mode is off");
  }
  if (speculation.num_speculative_tokens == 0) {
    return unexpected("speculation.lenience", lenience,
                      "1 (exact) or unset where speculation.num_speculative_tokens is 0");
  }
  if (speculation.mode == VerifyMode::coupled || verify_mode(request) == VerifyMode::coupled) {
    return unexpected(
        "speculation.lenience", lenience,
        "1 (exact) or unset where speculation.mode is coupled (the default beside a seed)");
  }
  return absl::OkStatus();
}

absl::Status validate_speculation(const SpeculationParams& speculation, const Limits& limits) {
  if (speculation.drafter.has_value()) {
    if (!named_drafter(*speculation.drafter, limits)) {
      const std::string names = absl::StrJoin(
          limits.drafters, ", ",
          [](std::string* out, DrafterKind drafter) { out->append(drafter_name(drafter)); });
      return unexpected("speculation.drafter", excerpt(*speculation.drafter),
                        absl::StrCat("one that this server has: ", names));
    }
  }
  const auto& k = speculation.num_speculative_tokens;
  if (k.has_value() && (*k < 0 || *k > limits.max_draft_tokens)) {
    return unexpected("speculation.num_speculative_tokens", *k,
                      absl::StrCat("0 … ", limits.max_draft_tokens));
  }
  if (k.has_value() && *k > 0 && speculation.off) {
    return unexpected("speculation.num_speculative_tokens", *k,
                      "0 or unset where speculation.mode is off");
  }
  const auto& objective_ms = speculation.tpot_slo_ms;
  if (objective_ms.has_value() && !(*objective_ms > 0 && std::isfinite(*objective_ms))) {
    return unexpected("speculation.tpot_slo_ms", *objective_ms, "a number above 0");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status validate_parameters(const Request& request, const Limits& limits) {
  if (request.request_id.size() > kMaxRequestIdBytes) {
    return field_error("request_id", absl::StrCat("has ", request.request_id.size(),
                                                  " bytes; expected at most ", kMaxRequestIdBytes));
  }
  if (request.priority < -limits.max_priority || request.priority > limits.max_priority) {
    return unexpected("priority", request.priority,
                      absl::StrCat(-limits.max_priority, " … ", limits.max_priority));
  }
  if (auto status = validate_sampling(request.sampling, limits); !status.ok()) return status;
  if (auto status = validate_speculation(request.speculation, limits); !status.ok()) return status;
  if (absl::Status status = validate_repeatable(request, limits); !status.ok()) return status;
  if (absl::Status status = validate_alternatives(request, limits); !status.ok()) return status;
  return validate_lenience(request);
}

absl::Status validate(const Request& request, const Limits& limits) {
  if (auto status = validate_parameters(request, limits); !status.ok()) return status;
  if (auto status = validate_prompt(request, limits); !status.ok()) return status;
  return validate_emitted(request, limits);
}

}  // namespace outrider
