// TokenEnd: where an answer ends by its tokens alone (EOS, stop ids, max_tokens), so that the
// engine need not wait for its text. Stop strings are OutputStream's.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/request.h"

namespace outrider {

class TokenEnd {
 public:
  // max_tokens: most tokens of the answer, ≥ 1.
  TokenEnd(const SamplingParams& sampling, const std::vector<int32_t>& eos_token_ids,
           int64_t max_tokens);

  // Takes the next token: why the answer ends with it, or nullopt where it goes on.
  std::optional<FinishReason> push(int32_t token);

 private:
  std::vector<int32_t> stop_ids_;  // of the request, and EOS unless ignored
  int64_t tokens_left_;
};

}  // namespace outrider
