#include "kernels/math.h"

#include <immintrin.h>

#include <limits>

#include "tests/kernels/kernel_test.h"

namespace outrider::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using MathTest = KernelTest;

TEST_F(MathTest, ExpIsCloseToDouble) {
  double worst = 0.0;
  for (uint64_t bits = 0; bits < 0x100000000u; bits += 257) {
    const float x = __builtin_bit_cast(float, static_cast<uint32_t>(bits));
    const float y = exp_f32(x);
    const double exact = std::exp(static_cast<double>(x));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(y)) << x;
    } else if (x < -87.3365f) {
      ASSERT_EQ(y, 0.0f) << x;
    } else if (exact > std::numeric_limits<float>::max()) {
      ASSERT_EQ(y, kInfinity) << x;
    } else {
      worst = std::max(worst, std::abs(y - exact) / exact);
    }
  }
  EXPECT_LE(worst, 8.1e-8);
}

TEST_F(MathTest, ExpAtTheEdges) {
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-kInfinity), 0.0f);
  EXPECT_EQ(exp_f32(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(exp_f32(std::nanf(""))));
}

// Whatever the loop is vectorised to.
TEST_F(MathTest, ExpInALoopIsExpAlone) {
  const std::vector<float> x = random_f32(1003, 40.0f);
  std::vector<float> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = exp_f32(x[i]);
  for (size_t i = 0; i < x.size(); ++i) {
    volatile float alone = x[i];
    ASSERT_EQ(y[i], exp_f32(alone)) << x[i];
  }
}

__attribute__((target("fma"))) float processor_fma(float a, float b, float c) {
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}

TEST_F(MathTest, FmaIsTheProcessors) {
  if (!isa_available(Isa::avx2)) GTEST_SKIP() << "this processor has no FMA";
  std::uniform_int_distribution<int> exponent(0, 255);
  std::uniform_int_distribution<int> near(-30, 30);
  for (int round = 0; round < 3000000; ++round) {
    // The exponents are free, or such that the sum cancels, or such that it is hardly a normal.
    int e[3] = {exponent(random_), exponent(random_), exponent(random_)};
    if (round % 3 == 1) e[2] = e[0] + e[1] - 127 + near(random_);
    if (round % 3 == 2) {
      e[1] = 128 - e[0] + near(random_) / 4;
      e[2] = 1 + (near(random_) + 30) / 4;
    }
    float v[3];
    for (int i = 0; i < 3; ++i) {
      const auto clamped = static_cast<uint32_t>(std::min(std::max(e[i], 0), 255));
      const uint32_t mantissa = random_() & (round % 2 == 0 ? 0x807fffffu : 0x807f0000u);
      v[i] = __builtin_bit_cast(float, mantissa | clamped << 23);
    }
    const float expected = processor_fma(v[0], v[1], v[2]);
    ASSERT_TRUE(same_number(fma_f32(v[0], v[1], v[2]), expected))
        << std::hexfloat << v[0] << " * " << v[1] << " + " << v[2] << " = " << expected;
  }
}

// x86 calls a result a denormal after it has rounded it to 24 bits.
TEST_F(MathTest, FmaFlushesWhatRoundsToADenormal) {
  EXPECT_EQ(fma_f32(0x1p-100f, -0x1p-50f, 0x1p-126f), 0.0f);  // 2^-126 - 2^-150 has 24 bits
  EXPECT_EQ(fma_f32(0x1p-100f, -0x1p-51f, 0x1p-126f), 0x1p-126f);
  EXPECT_EQ(fma_f32(0x1p-127f, 0x1p126f, 1.0f), 1.0f);  // a denormal operand
  EXPECT_TRUE(std::signbit(fma_f32(-0x1p-100f, 0x1p-100f, -0.0f)));
}

}  // namespace
}  // namespace outrider::cpu
