// Weights in 8 bits: half of what a product has to read of them in bf16.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace outrider {

struct Int8Rows {
  std::vector<int8_t> values;  // [rows, k]
  std::vector<float> scales;   // [rows]
};

// Each row by its largest magnitude: scale = that / 127, or 0 where this would be denormal; values
// = the row / scale, to nearest. A row that is not finite throughout has a scale of NaN, so that
// its products are NaN. rows: bf16 [rows, k] on the host, last dimension contiguous.
Int8Rows quantize_rows(TensorView rows);

}  // namespace outrider
