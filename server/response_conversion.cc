// See response_conversion.h.
#include "server/response_conversion.h"

#include <filesystem>

#include "core/version.h"

namespace outrider {
namespace {

v1::FinishReason to_proto(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::length:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::cancelled:
      return v1::FINISH_REASON_CANCELLED;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

v1::TokenOrigin to_proto(TokenOrigin origin) {
  switch (origin) {
    case TokenOrigin::drafted:
      return v1::TOKEN_ORIGIN_DRAFTED;
    case TokenOrigin::corrected:
      return v1::TOKEN_ORIGIN_CORRECTED;
    case TokenOrigin::bonus:
      return v1::TOKEN_ORIGIN_BONUS;
    case TokenOrigin::plain:
      return v1::TOKEN_ORIGIN_PLAIN;
  }
  return v1::TOKEN_ORIGIN_UNSPECIFIED;
}

std::string mode_name(SpeculationMode mode) {
  switch (mode) {
    case SpeculationMode::greedy:
      return "greedy";
    case SpeculationMode::rejection:
      return "rejection";
    case SpeculationMode::coupled:
      return "coupled";
    case SpeculationMode::off:
      return "off";
  }
  return "";
}

void add_logprobs(const std::vector<TokenLogprobs>& logprobs,
                  google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& out) {
  for (const TokenLogprobs& token : logprobs) {
    v1::TokenLogprobs& proto = *out.Add();
    proto.set_token_id(token.token.token);
    proto.set_logprob(token.token.logprob);
    for (const Logprob& top : token.top) {
      v1::TopLogprob& best = *proto.add_top();
      best.set_token_id(top.token);
      best.set_logprob(top.logprob);
    }
  }
}

void add_speculation(const Completion& completion, v1::SpeculationStats& proto) {
  const SpeculationStats& stats = completion.speculation;
  proto.set_num_spec_steps(stats.num_spec_steps);
  proto.set_num_draft_tokens(stats.num_draft_tokens);
  proto.set_num_accepted_draft_tokens(stats.num_accepted_draft_tokens);
  proto.set_num_copied_draft_tokens(stats.num_copied_draft_tokens);
  proto.set_num_alternative_draft_tokens(stats.num_alternative_draft_tokens);
  proto.set_num_accepted_alternatives(stats.num_accepted_alternatives);
  proto.set_mean_acceptance_length(stats.mean_acceptance_length());
  proto.set_draft_acceptance_rate(stats.draft_acceptance_rate());
  for (int i = 0; i < kMaxDraftTokens && stats.drafted_per_position[i] > 0; ++i) {
    proto.add_acceptance_by_position(static_cast<double>(stats.accepted_per_position[i]) /
                                     static_cast<double>(stats.drafted_per_position[i]));
  }
  proto.set_alpha(stats.alpha());
  proto.set_lenience(completion.lenience);
  proto.set_lenience_shift(stats.lenience_shift());
  proto.set_mode(mode_name(completion.mode));
  proto.set_drafter(drafter_name(stats.drafter));
  proto.set_seed(completion.seed);
  proto.set_numerics_fingerprint(completion.numerics_fingerprint);
  if (const auto predicted = stats.speedup.predicted(stats.alpha())) {
    proto.set_predicted_speedup(*predicted);
  }
  if (const auto measured = stats.speedup.measured()) proto.set_measured_speedup(*measured);
  if (const auto cost = stats.draft_cost()) proto.set_draft_cost(*cost);
  const auto& steps = stats.speedup.steps;
  proto.mutable_steps_by_lookahead()->Add(steps.begin(), steps.end());
  if (stats.tpot_slo_ms > 0) proto.set_tpot_slo_ms(stats.tpot_slo_ms);
  proto.set_tpot_slo_missed(stats.tpot_slo_missed);
}

// Whatever way it was written.
std::string directory_name(const std::filesystem::path& path) {
  return std::filesystem::weakly_canonical(path).filename().string();
}

}  // namespace

v1::Chunk to_proto(const Chunk& chunk) {
  v1::Chunk proto;
  proto.set_index(chunk.index);
  proto.set_text(chunk.text);
  proto.mutable_token_ids()->Add(chunk.token_ids.begin(), chunk.token_ids.end());
  proto.mutable_origins()->Reserve(static_cast<int>(chunk.origins.size()));
  for (const TokenOrigin origin : chunk.origins) proto.add_origins(to_proto(origin));
  proto.mutable_text_ends()->Add(chunk.text_ends.begin(), chunk.text_ends.end());
  add_logprobs(chunk.logprobs, *proto.mutable_logprobs());
  add_logprobs(chunk.prompt_logprobs, *proto.mutable_prompt_logprobs());
  if (chunk.so_far) add_speculation(*chunk.so_far, *proto.mutable_speculation());
  return proto;
}

v1::Complete to_proto(const Completion& completion) {
  v1::Complete proto;
  proto.set_index(completion.index);
  proto.set_finish_reason(to_proto(completion.finish_reason));
  proto.set_prompt_tokens(completion.prompt_tokens);
  proto.set_cached_tokens(completion.cached_tokens);
  proto.set_completion_tokens(completion.completion_tokens);

  v1::Timings& timings = *proto.mutable_timings();
  timings.set_queue_ms(completion.timings.queue_ms);
  timings.set_prefill_ms(completion.timings.prefill_ms);
  timings.set_decode_ms(completion.timings.decode_ms);
  timings.set_total_ms(completion.timings.total_ms);
  timings.set_ttft_ms(completion.timings.ttft_ms);

  add_speculation(completion, *proto.mutable_speculation());
  return proto;
}

v1::GetModelInfoResponse model_info(const ServedModel& model, const ModelConfig& config) {
  v1::GetModelInfoResponse proto;
  proto.set_name(model.name);
  proto.set_architecture(config.architecture);
  proto.set_vocab_size(config.vocab_size);
  proto.set_hidden_size(config.hidden_size);
  proto.set_intermediate_size(config.intermediate_size);
  proto.set_num_layers(config.num_layers);
  proto.set_num_heads(config.num_heads);
  proto.set_num_kv_heads(config.num_kv_heads);
  proto.set_head_dim(config.head_dim);
  proto.set_max_position_embeddings(config.max_position_embeddings);
  if (config.bos_token_id.has_value()) proto.set_bos_token_id(*config.bos_token_id);
  proto.mutable_eos_token_ids()->Add(config.eos_token_ids.begin(), config.eos_token_ids.end());
  const ChatMessage greeting{"user", "Hello"};
  proto.set_has_chat_template(model.chat_template.render({&greeting, 1}).ok());
  return proto;
}

v1::GetServerInfoResponse server_info(const ServedModel& model, const Engine& engine) {
  v1::GetServerInfoResponse proto;
  const Limits& limits = engine.limits();
  const EngineOptions& options = engine.executor().options();
  proto.set_version(kVersion);
  proto.set_num_ranks(model.num_ranks);
  proto.set_backend(model.backend);
  proto.set_numerics(numerics_name(model.numerics));
  for (const DrafterKind kind : limits.drafters) proto.add_drafters(drafter_name(kind));
  proto.set_default_drafter(drafter_name(limits.default_drafter));
  if (options.draft) proto.set_draft_model(directory_name(*options.draft));
  if (options.draft_head) proto.set_draft_head(directory_name(*options.draft_head));
  proto.set_lookahead(options.lookahead.text());
  const double objective_ms = options.tpot_slo_ms;
  if (objective_ms > 0) proto.set_tpot_slo_ms(objective_ms);
  proto.set_numerics_fingerprint(engine.executor().numerics_fingerprint());

  v1::ServerLimits& out = *proto.mutable_limits();
  out.set_max_positions(limits.max_positions);
  out.set_max_speculative_tokens(limits.max_draft_tokens);
  out.set_max_stop_strings(limits.max_stop_strings);
  out.set_max_stop_bytes(limits.max_stop_bytes);
  out.set_max_stop_token_ids(limits.max_stop_token_ids);
  out.set_max_choices(limits.max_choices);
  out.set_max_logprobs(limits.max_logprobs);
  out.set_max_logit_bias(limits.max_logit_bias);
  out.set_max_kv_tokens(limits.max_kv_tokens);
  return proto;
}

void add_drafter_stats(const EngineStats& stats, v1::GetServerInfoResponse& proto) {
  for (const std::string& name : proto.drafters()) {
    const DrafterReport& report = stats.drafters[static_cast<int>(*drafter_from_name(name))];
    v1::DrafterStats& out = *proto.add_drafter_stats();
    out.set_drafter(name);
    out.set_num_drafts(report.num_drafts);
    out.set_num_draft_tokens(report.num_draft_tokens);
    out.set_num_accepted_draft_tokens(report.num_accepted_draft_tokens);
    out.set_num_alternative_draft_tokens(report.num_alternative_draft_tokens);
    out.set_num_accepted_alternatives(report.num_accepted_alternatives);
    out.set_alpha(report.alpha);
    if (report.draft_cost) out.set_draft_cost(*report.draft_cost);
    if (report.predicted_speedup) out.set_predicted_speedup(*report.predicted_speedup);
    if (report.measured_speedup) out.set_measured_speedup(*report.measured_speedup);
    out.set_loss_budget_ms(report.budget_ms);
  }
}

v1::ServerStats to_proto(const EngineStats& stats) {
  v1::ServerStats totals;
  totals.set_num_requests_running(stats.num_requests_running);
  totals.set_num_requests_waiting(stats.num_requests_waiting);
  totals.set_num_requests_finished(stats.num_requests_finished);
  totals.set_num_requests_failed(stats.num_requests_failed);
  totals.set_num_steps(stats.num_steps);
  totals.set_num_draft_tokens(stats.num_draft_tokens);
  totals.set_num_accepted_draft_tokens(stats.num_accepted_draft_tokens);
  totals.set_num_completion_tokens(stats.num_completion_tokens);
  totals.set_num_tokens_waiting(stats.num_tokens_waiting);
  totals.set_num_preemptions(stats.num_preemptions);
  totals.set_kv_pages_used(stats.kv_pages_used);
  totals.set_kv_pages(stats.kv_pages);
  totals.set_prefix_cache_queries(stats.prefix_cache_queries);
  totals.set_prefix_cache_hits(stats.prefix_cache_hits);
  return totals;
}

}  // namespace outrider
