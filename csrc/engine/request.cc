// Names of drafters, the mode of a request, and the rates that its speculation statistics come to.
#include "engine/request.h"

namespace outrider {

namespace {

constexpr float kGreedyTemperature = 1e-5f;

}  // namespace

VerifyMode verify_mode(const Request& request) {
  if (request.sampling.temperature < kGreedyTemperature) return VerifyMode::greedy;
  const SpeculationParams& speculation = request.speculation;
  const bool repeats = request.sampling.seed.has_value() || speculation.off;
  return speculation.mode.value_or(repeats ? VerifyMode::coupled : VerifyMode::rejection);
}

std::optional<DrafterKind> drafter_from_name(const std::string& name) {
  for (const auto kind :
       {DrafterKind::model, DrafterKind::head, DrafterKind::bigram, DrafterKind::unigram,
        DrafterKind::random, DrafterKind::prompt_lookup, DrafterKind::ngram}) {
    if (name == drafter_name(kind)) return kind;
  }
  return std::nullopt;
}

std::string drafter_name(DrafterKind kind) {
  switch (kind) {
    case DrafterKind::none:
      return "none";
    case DrafterKind::model:
      return "model";
    case DrafterKind::head:
      return "head";
    case DrafterKind::bigram:
      return "bigram";
    case DrafterKind::unigram:
      return "unigram";
    case DrafterKind::random:
      return "random";
    case DrafterKind::prompt_lookup:
      return "prompt_lookup";
    case DrafterKind::ngram:
      return "ngram";
  }
  return "none";
}

bool drafts_by_copying(DrafterKind kind) {
  return kind == DrafterKind::prompt_lookup || kind == DrafterKind::ngram;
}

double SpeculationStats::mean_acceptance_length() const {
  if (num_decode_steps == 0) return 0;
  return static_cast<double>(num_decoded_tokens) / static_cast<double>(num_decode_steps);
}

double SpeculationStats::draft_acceptance_rate() const {
  if (num_draft_tokens == 0) return 0;
  return static_cast<double>(num_accepted_draft_tokens) / static_cast<double>(num_draft_tokens);
}

double SpeculationStats::alpha() const {
  return alpha_rows == 0 ? 0 : alpha_sum / static_cast<double>(alpha_rows);
}

double SpeculationStats::lenience_shift() const {
  return alpha_rows == 0 ? 0 : shift_sum / static_cast<double>(alpha_rows);
}

}  // namespace outrider
