// How close a norm of the kernels is to one in double precision.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/kernels/kernel_test.h"

namespace outrider {

// Rows of a root mean square norm with epsilon 0.5: what reads them errs by `error` of each
// element.
inline void expect_rms_norm(const std::vector<float>& x, const std::vector<bf16>& weight,
                            const std::vector<bf16>& got, int64_t rows, int64_t width,
                            double error) {
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0.0;
    for (int64_t i = 0; i < width; ++i) squares += std::pow(double{x[r * width + i]}, 2);
    const double rms = std::sqrt(squares / width + 0.5);
    for (int64_t i = 0; i < width; ++i) {
      const double exact = x[r * width + i] / rms * to_float(weight[i]);
      ASSERT_NEAR(to_float(got[r * width + i]), exact, error * std::abs(exact))
          << rows << " x " << width << ", row " << r << ", element " << i;
    }
  }
}

// Rows of a layer norm with epsilon 0.5. The mean errs by roundings - 1 of the mean absolute value,
// and so does each difference from it; the root of the mean square of the differences by half as
// many as the mean square, and by what the mean errs at most. Products and the sum with the bias
// add five, bf16 its own.
inline void expect_layer_norm(const std::vector<float>& x, const std::vector<bf16>& weight,
                              const std::vector<bf16>& bias, const std::vector<bf16>& got,
                              int64_t rows, int64_t width, double roundings) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x.data() + r * width;
    double mean = 0.0, absolute = 0.0, variance = 0.0;
    for (int64_t i = 0; i < width; ++i) {
      mean += row[i] / double(width);
      absolute += std::abs(row[i]) / double(width);
    }
    for (int64_t i = 0; i < width; ++i) variance += std::pow(row[i] - mean, 2) / width;
    const double root = std::sqrt(variance + 0.5);
    const double of_mean = roundings * kRoundF32 * absolute / root;  // of a normed element
    for (int64_t i = 0; i < width; ++i) {
      const double normed = (row[i] - mean) / root, w = to_float(weight[i]);
      const double exact = normed * w + to_float(bias[i]);
      const double error =
          std::abs(w) * (of_mean + std::abs(normed) * (of_mean + roundings * kRoundF32)) +
          5 * kRoundF32 * (std::abs(normed * w) + std::abs(exact));
      ASSERT_NEAR(to_float(got[r * width + i]), exact,
                  error * (1 + kRoundBf16) + kRoundBf16 * std::abs(exact))
          << rows << " x " << width << ", row " << r << ", element " << i;
    }
  }
}

}  // namespace outrider
