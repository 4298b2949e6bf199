// Edits of logits by bias, penalties and min_tokens, row by row.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/processors.h"

namespace outrider::cpu {

// edits[i].to = the edited edits[i].from, for those that have a `to`.
// Bound: 12 bytes a token of each row, once: a logit and a TokenState read, a logit written. Tokens
// are edited one by one, so there is no order. Twin: ../cuda/processors.cu.
void edit_logits(const LogitEdit* edits, int64_t n, Isa isa);

}  // namespace outrider::cpu
