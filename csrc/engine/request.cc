// The mode of a request, and the rates that its speculation statistics come to.
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

std::optional<double> SpeculationStats::draft_cost() const {
  const int64_t drafted = num_draft_tokens - num_alternative_draft_tokens;
  if (drafted == 0 || !draft_cost_sum) return std::nullopt;
  return *draft_cost_sum / static_cast<double>(drafted);
}

double SpeculationStats::lenience_shift() const {
  return alpha_rows == 0 ? 0 : shift_sum / static_cast<double>(alpha_rows);
}

}  // namespace outrider
