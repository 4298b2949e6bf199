// Processors that edit logits before temperature and filters: logit_bias, then the repetition,
// frequency and presence penalties, then min_tokens. What the kernels of both sides do to one
// logit, in the same function, so that they cannot differ. Each token's edit is its own: no sums,
// so no order.
#pragma once

#include <cstdint>

#include "kernels/distribution.h"
#include "kernels/host_device.h"

namespace outrider {

// What a sequence's prompt and output say of a token: how often it is in the output, and flags.
using TokenState = uint32_t;
constexpr TokenState kTokenInPrompt = 1u << 30;
constexpr TokenState kTokenListed = 1u << 31;  // a ListedToken has more of it
constexpr TokenState kTokenCount = kTokenInPrompt - 1;

// A token that a request names.
struct ListedToken {
  int32_t token;
  float bias;
  int32_t ends;  // 1: it ends an answer, so min_tokens masks it
};

// One row of logits to edit: of the tokens [first_token, first_token + size), behind the sequence's
// tokens and the drafted ones before the row.
struct LogitEdit {
  const float* from;          // [size]
  float* to;                  // [size], perhaps `from` itself; null: there is no such row
  const TokenState* tokens;   // [vocab_size]: the sequence's, up to the start of the step
  const ListedToken* listed;  // [num_listed], each token once
  const int32_t* drafted;     // [num_drafted]
  int32_t num_listed;
  int32_t num_drafted;
  int32_t first_token;
  int32_t size;
  float repetition, frequency, presence;
  int32_t ends_masked;  // 1: the output is shorter than min_tokens
};

// So far apart from kUnscoredLogit that a penalised token stays likelier, and so small that the
// noise of coupled rows (about 1, in fp64) still decides between tokens that end here.
constexpr float kLargestEdited = 0x1p30f;

// times_drafted: how often the token was drafted before the row. A logit that is not finite stays
// (the row is broken, and must be seen to be), as does that of a token that a trimmed head does not
// score; every other result is finite.
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline float edited_logit(const LogitEdit& edit,
                                                                      float logit, float bias,
                                                                      bool masked, TokenState state,
                                                                      int32_t times_drafted) {
  const int32_t count = static_cast<int32_t>(state & kTokenCount) + times_drafted;
  const bool seen = (state & kTokenInPrompt) != 0 || count > 0;
  float edited = logit + bias;
  const float repeated = edited > 0.0f ? edited / edit.repetition : edited * edit.repetition;
  edited = seen ? repeated : edited;
  edited -= edit.frequency * static_cast<float>(count);
  edited -= count > 0 ? edit.presence : 0.0f;
  edited = edited > kLargestEdited ? kLargestEdited : edited;
  edited = edited < -kLargestEdited ? -kLargestEdited : edited;
  edited = masked ? kUnscoredLogit : edited;
  return is_finite(logit) && logit > kUnscoredLogit ? edited : logit;
}

// How often `token` is among the tokens drafted before the row.
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline int32_t times_drafted(const int32_t* drafted,
                                                                         int32_t num_drafted,
                                                                         int64_t token) {
  int32_t times = 0;
  for (int32_t i = 0; i < num_drafted; ++i) times += drafted[i] == token ? 1 : 0;
  return times;
}

}  // namespace outrider
