#include "backend/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace outrider {

Int8Rows quantize_rows(TensorView rows) {
  CHECK(rows.dtype() == DType::bf16 && rows.rank() == 2 && rows.stride(1) == 1);
  const int64_t k = rows.extent(1);
  Int8Rows quantized;
  quantized.values.resize(rows.extent(0) * k);
  for (int64_t r = 0; r < rows.extent(0); ++r) {
    const bf16* const row = rows.data<bf16>() + r * rows.stride(0);
    float largest = 0;
    bool finite = true;
    for (int64_t i = 0; i < k; ++i) {
      const float magnitude = std::abs(to_float(row[i]));
      finite = finite && std::isfinite(magnitude);
      largest = std::max(largest, magnitude);
    }
    float scale = std::numeric_limits<float>::quiet_NaN();
    if (finite) scale = largest / 127 < std::numeric_limits<float>::min() ? 0 : largest / 127;
    quantized.scales.push_back(scale);
    if (!(scale > 0)) continue;
    int8_t* const values = quantized.values.data() + r * k;
    for (int64_t i = 0; i < k; ++i) {
      // Rounded to a whole number, ties to even, in the last byte of 2^23 + 2^22 + it.
      const float shifted = to_float(row[i]) / scale + 0x1.8p23f;
      values[i] = static_cast<int8_t>(std::bit_cast<uint32_t>(shifted));
    }
  }
  return quantized;
}

}  // namespace outrider
