// What the kernels' tests share: the float environment, random values, and how close is close.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/bf16.h"
#include "core/float_environment.h"
#include "kernels/cpu/isa.h"

namespace outrider {

constexpr double kRoundF32 = 0x1p-24;  // unit roundoff: half of an ulp, relative
constexpr double kRoundBf16 = 0x1p-8;

class KernelTest : public testing::Test {
 protected:
  KernelTest() { set_float_environment(); }

  std::vector<float> random_f32(size_t size, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(size);
    for (float& value : values) value = normal(random_);
    return values;
  }
  std::vector<bf16> random_bf16(size_t size, float scale = 1.0f) {
    std::vector<bf16> values;
    for (float value : random_f32(size, scale)) values.push_back(to_bf16(value));
    return values;
  }

  std::mt19937 random_{20230202};
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Equal bits, or both NaN: which NaN an operation gives is nobody's promise.
inline bool same_number(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace outrider
