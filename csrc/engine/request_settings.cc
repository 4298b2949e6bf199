#include "engine/request_settings.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "engine/named_drafter.h"

namespace outrider {

namespace {

// Where any model's distribution is flat to the last bit, and a masked token still has no chance.
constexpr float kHottest = 1e30f;

Processors processors_of(const Request& request) {
  const SamplingParams& sampling = request.sampling;
  const float lenience = request.speculation.lenience;
  const VerifyMode mode = verify_mode(request);
  if (mode == VerifyMode::greedy) return {.lenience = lenience};
  const float temperature = std::min(sampling.temperature, kHottest);
  // By this process alone, and the others are told: a logarithm may differ from host to host.
  const double reach = -double{temperature} * std::log(double{sampling.min_p});
  return {.mode = mode,
          .temperature = temperature,
          .top_k = sampling.top_k,
          // Engines take numbers below the normal ones for 0, which would keep no token.
          .top_p = std::max(sampling.top_p, std::numeric_limits<float>::min()),
          .min_p_reach = sampling.min_p > 0 ? static_cast<float>(reach) : -1.0f,
          .lenience = lenience};
}

LogitRules rules_of(const SamplingParams& sampling, const std::vector<int32_t>& eos_token_ids) {
  LogitRules rules{.repetition_penalty = sampling.repetition_penalty,
                   .frequency_penalty = sampling.frequency_penalty,
                   .presence_penalty = sampling.presence_penalty,
                   .min_tokens = sampling.min_tokens,
                   .listed = {}};
  std::map<int32_t, ListedToken> listed;
  for (const auto& [token, bias] : sampling.logit_bias) listed[token] = {token, bias, 0};
  if (sampling.min_tokens > 0) {
    for (const auto* ids : {&eos_token_ids, &sampling.stop_token_ids}) {
      for (const int32_t token : *ids) {
        ListedToken& ends = listed.try_emplace(token, ListedToken{token, 0.0f, 0}).first->second;
        ends.ends = 1;
      }
    }
  }
  for (const auto& [token, what] : listed) rules.listed.push_back(what);
  return rules;
}

SpeculationMode mode_of(VerifyMode mode, int lookahead) {
  if (lookahead == 0) return SpeculationMode::off;
  switch (mode) {
    case VerifyMode::greedy:
      return SpeculationMode::greedy;
    case VerifyMode::rejection:
      return SpeculationMode::rejection;
    case VerifyMode::coupled:
      return SpeculationMode::coupled;
  }
  return SpeculationMode::off;
}

int64_t max_tokens_of(const Request& request, const Limits& limits) {
  const SamplingParams& sampling = request.sampling;
  const int64_t room =
      std::min(limits.max_positions, limits.max_kv_tokens / sampling.n - kMaxDraftTokens - 1);
  return sampling.max_tokens.value_or(room - static_cast<int64_t>(request.prompt.size()));
}

}  // namespace

RequestSettings settle(const Request& request, const Limits& limits,
                       const LookaheadPolicy& lookahead, double tpot_slo_ms) {
  const SamplingParams& sampling = request.sampling;
  const SpeculationParams& speculation = request.speculation;
  RequestSettings settings = {.processors = processors_of(request),
                              .rules = rules_of(sampling, limits.eos_token_ids),
                              .tpot_slo_ms = speculation.tpot_slo_ms.value_or(tpot_slo_ms),
                              .seed = sampling.seed ? *sampling.seed : draw_seed(),
                              .max_tokens = max_tokens_of(request, limits)};
  Processors& processors = settings.processors;
  // By rejection, a seed's answer repeats only with a fixed K and a drafter that has it in every
  // step; greedy and coupled ones are the same for any.
  const bool repeats = sampling.seed.has_value() && processors.mode == VerifyMode::rejection;
  const int most = std::min(lookahead.most(), limits.max_draft_tokens);
  const int chosen = repeats ? std::min(lookahead.fixed, most) : most;
  if (!speculation.off) {
    settings.lookahead = speculation.num_speculative_tokens.value_or(chosen);
  }
  settings.lookahead_is_exact = repeats || speculation.num_speculative_tokens.has_value();
  if (settings.lookahead > 0) {
    const bool avoids_head = repeats && limits.default_drafter == DrafterKind::head;
    settings.drafter = speculation.drafter ? *named_drafter(*speculation.drafter, limits)
                       : avoids_head       ? DrafterKind::prompt_lookup
                                           : limits.default_drafter;
  } else {
    // Nothing is drafted, so nothing is refused; and the seed that the response tells repeats it.
    if (processors.mode == VerifyMode::rejection) processors.mode = VerifyMode::coupled;
    processors.lenience = 1;
  }
  settings.mode = mode_of(processors.mode, settings.lookahead);
  const bool may_have_alternatives = settings.lookahead > 0 && !sampling.logprobs && !repeats &&
                                     !drafts_by_copying(settings.drafter);
  if (may_have_alternatives) {
    const bool adapts = lookahead.kind == LookaheadPolicy::Kind::adaptive;
    const bool is_chosen = adapts && !settings.lookahead_is_exact;
    settings.alternatives =
        speculation.num_alternatives.value_or(is_chosen ? limits.max_alternatives : 0);
    if (!is_chosen) {
      settings.alternatives =
          std::min(settings.alternatives, limits.max_draft_tokens - settings.lookahead);
    }
  }
  return settings;
}

uint64_t draw_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace outrider
