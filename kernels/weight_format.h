// How the numbers of a packed weight matrix are stored.
#pragma once

#include <cstdint>

namespace outrider {

// int8: output o's weights are scales[o] * q, q from -127 to 127, scales fp32. q is exact in bf16,
// so a product is scales[o] times that of the bf16 matrix q, rounded once.
enum class WeightFormat { bf16, int8 };

// Bytes of an output's k weights, with its scale.
constexpr int64_t row_bytes(int64_t k, WeightFormat format) {
  return format == WeightFormat::int8 ? k + int64_t{4} : k * 2;
}

}  // namespace outrider
