#include "kernels/cpu/elementwise.h"

#include "bench/op_cases.h"
#include "tests/kernels/norm_bounds.h"

namespace outrider::cpu {
namespace {

using ElementwiseTest = KernelTest;

// The mean of squares errs by width / 16 + 6 roundings, of which the root keeps half; scaling,
// weighing, root and quotient add four, and the result is rounded to bf16.
TEST_F(ElementwiseTest, RmsNormIsCloseToDouble) {
  for (const RowCase& c : kRowCases) {
    auto x = random_f32(c.rows * c.width, 3.0f);
    const auto weight = random_bf16(c.width);
    std::vector<bf16> y(x.size());
    rms_norm(x.data(), nullptr, weight.data(), y.data(), c.rows, c.width, 0.5f,
             available_isas().back());
    const double error = kRoundBf16 + ((c.width / 16.0 + 6) / 2 + 5) * kRoundF32;
    expect_rms_norm(x, weight, y, c.rows, c.width, error);
  }
}

// The mean errs by width / 16 + 6 roundings.
TEST_F(ElementwiseTest, LayerNormIsCloseToDouble) {
  for (const RowCase& c : kRowCases) {
    auto x = random_f32(c.rows * c.width, 3.0f);
    for (float& value : x) value += 5.0f;
    const auto weight = random_bf16(c.width), bias = random_bf16(c.width);
    std::vector<bf16> y(x.size());
    layer_norm(x.data(), nullptr, weight.data(), bias.data(), y.data(), c.rows, c.width, 0.5f,
               available_isas().back());
    expect_layer_norm(x, weight, bias, y, c.rows, c.width, c.width / 16.0 + 7);
  }
}

// Four roundings of the exponent are as large an error of its power; exp errs by 8.1e-8, and three
// operations and the rounding to bf16 follow. Below e^-87 exp's inverse is nothing.
TEST_F(ElementwiseTest, GeluTanhIsCloseToDouble) {
  auto x = random_f32(1003, 3.0f);
  for (float value : {0.0f, -0.0f, 1e-30f, -1e-30f, 9.9f, -9.9f, 30.0f, -30.0f, 1e20f, -1e20f}) {
    x.push_back(value);
  }
  std::vector<bf16> y(x.size());
  gelu_tanh(x.data(), y.data(), static_cast<int64_t>(x.size()), available_isas().back());
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    const double exponent = -2.0 * std::sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v);
    const double exact = v / (1.0 + std::exp(exponent));
    const double error =
        kRoundBf16 + 8.1e-8 + (3 + 4 * std::min(std::abs(exponent), 90.0)) * kRoundF32;
    ASSERT_NEAR(to_float(y[i]), exact, error * std::abs(exact) + 1e-36) << v;
  }
}

// exp errs by 8.1e-8; four more operations and the rounding to bf16 follow.
TEST_F(ElementwiseTest, SiluMulIsCloseToDouble) {
  for (const RowCase& c : kRowCases) {
    const auto gate_up = random_f32(c.rows * 2 * c.width, 4.0f);
    std::vector<bf16> y(c.rows * c.width);
    silu_mul(gate_up.data(), y.data(), c.rows, c.width, available_isas().back());
    const double error = kRoundBf16 + 8.1e-8 + 5 * kRoundF32;
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t i = 0; i < c.width; ++i) {
        const double gate = gate_up[r * 2 * c.width + i];
        const double up = gate_up[r * 2 * c.width + c.width + i];
        const double exact = gate / (1.0 + std::exp(-gate)) * up;
        ASSERT_NEAR(to_float(y[r * c.width + i]), exact, error * std::abs(exact));
      }
    }
  }
}

TEST_F(ElementwiseTest, SiluMulOfLargeGates) {
  const std::vector<float> gate_up = {-1000.0f, 1000.0f, 0.0f, 2.0f, 2.0f, 2.0f};
  std::vector<bf16> y(3);
  for (Isa isa : available_isas()) {
    silu_mul(gate_up.data(), y.data(), 1, 3, isa);
    EXPECT_EQ(to_float(y[0]), 0.0f);
    EXPECT_EQ(to_float(y[1]), 2000.0f);
    EXPECT_EQ(to_float(y[2]), 0.0f);
  }
}

TEST_F(ElementwiseTest, EveryIsaGivesTheSameBits) {
  for (const RowCase& c : kRowCases) {
    auto x = random_f32(c.rows * 2 * c.width, 10.0f);
    x[0] = 1e-39f;  // a denormal
    x[c.rows * c.width / 2] = std::nanf("");
    x[c.rows * c.width - 1] = 1e19f;  // its square is nearly infinite
    const auto weight = random_bf16(c.width), bias = random_bf16(c.width);
    const int64_t size = c.rows * c.width;
    std::vector<bf16> norm(size), layer(size), silu(size), gelu(size);
    rms_norm(x.data(), nullptr, weight.data(), norm.data(), c.rows, c.width, 1e-5f, Isa::scalar);
    layer_norm(x.data(), nullptr, weight.data(), bias.data(), layer.data(), c.rows, c.width, 1e-5f,
               Isa::scalar);
    silu_mul(x.data(), silu.data(), c.rows, c.width, Isa::scalar);
    gelu_tanh(x.data(), gelu.data(), size, Isa::scalar);
    for (Isa isa : available_isas()) {
      std::vector<bf16> y(size);
      const auto expect_same = [&](const std::vector<bf16>& expected) {
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_TRUE(same_number(to_float(y[i]), to_float(expected[i]))) << isa_name(isa);
        }
      };
      rms_norm(x.data(), nullptr, weight.data(), y.data(), c.rows, c.width, 1e-5f, isa);
      expect_same(norm);
      layer_norm(x.data(), nullptr, weight.data(), bias.data(), y.data(), c.rows, c.width, 1e-5f,
                 isa);
      expect_same(layer);
      silu_mul(x.data(), y.data(), c.rows, c.width, isa);
      expect_same(silu);
      gelu_tanh(x.data(), y.data(), size, isa);
      expect_same(gelu);
    }
  }
}

TEST_F(ElementwiseTest, ARowDoesNotDependOnTheOthers) {
  for (const RowCase& c : kRowCases) {
    auto x = random_f32(c.rows * 2 * c.width);
    const auto weight = random_bf16(c.width), bias = random_bf16(c.width);
    const Isa isa = available_isas().back();
    const int64_t size = c.rows * c.width;
    std::vector<bf16> norm(size), layer(size), silu(size), alone(c.width);
    rms_norm(x.data(), nullptr, weight.data(), norm.data(), c.rows, c.width, 1e-5f, isa);
    layer_norm(x.data(), nullptr, weight.data(), bias.data(), layer.data(), c.rows, c.width, 1e-5f,
               isa);
    silu_mul(x.data(), silu.data(), c.rows, c.width, isa);
    for (int64_t r = 0; r < c.rows; ++r) {
      rms_norm(x.data() + r * c.width, nullptr, weight.data(), alone.data(), 1, c.width, 1e-5f,
               isa);
      ASSERT_EQ(std::memcmp(alone.data(), norm.data() + r * c.width, c.width * 2), 0);
      layer_norm(x.data() + r * c.width, nullptr, weight.data(), bias.data(), alone.data(), 1,
                 c.width, 1e-5f, isa);
      ASSERT_EQ(std::memcmp(alone.data(), layer.data() + r * c.width, c.width * 2), 0);
      silu_mul(x.data() + r * 2 * c.width, alone.data(), 1, c.width, isa);
      ASSERT_EQ(std::memcmp(alone.data(), silu.data() + r * c.width, c.width * 2), 0);
    }
  }
}

// A norm with an addend is the sum, rounded to fp32, and then the norm: on every instruction set.
TEST_F(ElementwiseTest, ANormOfASumIsTheSumAndThenTheNorm) {
  for (const RowCase& c : kRowCases) {
    const int64_t size = c.rows * c.width;
    const auto x = random_f32(size, 3.0f), addend = random_f32(size + 1, 3.0f);
    const auto weight = random_bf16(c.width), bias = random_bf16(c.width);
    std::vector<float> sums(x);
    for (int64_t i = 0; i < size; ++i) sums[i] += addend[i];
    std::vector<bf16> expected(size), got(size);
    for (Isa isa : available_isas()) {
      const auto expect_same = [&](std::vector<float> summed) {
        EXPECT_EQ(summed.back(), 7.0f) << "written beyond the end";
        summed.pop_back();
        EXPECT_TRUE(same_bits(summed, sums)) << isa_name(isa);
        EXPECT_TRUE(same_bits(got, expected)) << isa_name(isa);
      };
      std::vector<float> summed(x);
      summed.push_back(7.0f);
      std::vector<float> again(summed);
      rms_norm(sums.data(), nullptr, weight.data(), expected.data(), c.rows, c.width, 1e-5f, isa);
      rms_norm(summed.data(), addend.data(), weight.data(), got.data(), c.rows, c.width, 1e-5f,
               isa);
      expect_same(summed);
      layer_norm(sums.data(), nullptr, weight.data(), bias.data(), expected.data(), c.rows, c.width,
                 1e-5f, isa);
      layer_norm(again.data(), addend.data(), weight.data(), bias.data(), got.data(), c.rows,
                 c.width, 1e-5f, isa);
      expect_same(again);
    }
  }
}

}  // namespace
}  // namespace outrider::cpu
