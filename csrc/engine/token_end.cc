#include "engine/token_end.h"

#include <algorithm>

namespace outrider {

TokenEnd::TokenEnd(const SamplingParams& sampling, const std::vector<int32_t>& eos_token_ids,
                   int64_t max_tokens)
    : stop_ids_(sampling.stop_token_ids), tokens_left_(max_tokens) {
  if (!sampling.ignore_eos) {
    stop_ids_.insert(stop_ids_.end(), eos_token_ids.begin(), eos_token_ids.end());
  }
}

std::optional<FinishReason> TokenEnd::push(int32_t token) {
  --tokens_left_;
  if (std::find(stop_ids_.begin(), stop_ids_.end(), token) != stop_ids_.end()) {
    return FinishReason::stop;
  }
  if (tokens_left_ == 0) return FinishReason::length;
  return std::nullopt;
}

}  // namespace outrider
