// Edits of logits on the device. Twin: ../cpu/processors.h, which says what it computes; what is
// done to one logit is the same function (../processors.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/processors.h"

namespace outrider::cuda {

// largest_size: of the rows. Bound: 12 bytes a token of each row.
void edit_logits(const LogitEdit* edits, int64_t n, int64_t largest_size, cudaStream_t stream);

}  // namespace outrider::cuda
