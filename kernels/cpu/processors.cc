#include "kernels/cpu/processors.h"

#include "kernels/cpu/multiversion.h"
#include "kernels/verify_types.h"

namespace outrider::cpu {

namespace {

// As if nothing was drafted or listed.
[[gnu::always_inline]] inline void edit_row_body(const LogitEdit& edit) {
  const LogitEdit row = edit;  // its members stay what they are, whatever is written
  const TokenState* const tokens = row.tokens + row.first_token;
  for (int32_t i = 0; i < row.size; ++i) {
    const float logit = row.from[i];
    const float edited = edited_logit(row, logit, 0.0f, false, tokens[i], 0);
    row.to[i] = (tokens[i] & kTokenListed) != 0 ? logit : edited;
  }
}

OUTRIDER_MULTIVERSION(void, edit_row, (const LogitEdit& edit), (edit));

}  // namespace

void edit_logits(const LogitEdit* edits, int64_t n, Isa isa) {
  for (int64_t r = 0; r < n; ++r) {
    const LogitEdit& row = edits[r];
    if (row.to == nullptr) continue;
    const auto owned = [&](int32_t token) {
      return token >= row.first_token && token - row.first_token < row.size;
    };
    float raw[kMaxDraftTokens];  // of the drafted tokens: `to` may be `from`
    for (int32_t j = 0; j < row.num_drafted; ++j) {
      const int32_t token = row.drafted[j];
      if (owned(token)) raw[j] = row.from[token - row.first_token];
    }
    OUTRIDER_DISPATCH(isa, edit_row, (row));
    for (int32_t j = 0; j < row.num_drafted; ++j) {
      const int32_t token = row.drafted[j];
      if (!owned(token) || (row.tokens[token] & kTokenListed) != 0) continue;
      row.to[token - row.first_token] =
          edited_logit(row, raw[j], 0.0f, false, row.tokens[token],
                       times_drafted(row.drafted, row.num_drafted, token));
    }
    for (int32_t e = 0; e < row.num_listed; ++e) {
      const ListedToken& listed = row.listed[e];
      if (!owned(listed.token)) continue;
      float& logit = row.to[listed.token - row.first_token];  // still raw
      logit = edited_logit(row, logit, listed.bias, row.ends_masked != 0 && listed.ends != 0,
                           row.tokens[listed.token],
                           times_drafted(row.drafted, row.num_drafted, listed.token));
    }
  }
}

}  // namespace outrider::cpu
