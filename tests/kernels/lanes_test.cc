// What lanes.h computes itself, in its scalar form; the others' bits are compared where kernels
// are.
#define OUTRIDER_LANES lanes_test
#include "kernels/cpu/lanes.h"

#include <limits>

#include "tests/kernels/kernel_test.h"

namespace outrider::cpu::lanes_test {
namespace {

class LanesTest : public KernelTest {};

TEST_F(LanesTest, Exp2OfNegativeIsAsCloseAsItSays) {
  std::uniform_real_distribution<float> any(-125.0f, 0.0f), near(-1.0f, 0.0f);
  for (int round = 0; round < 1000000; ++round) {
    const float x = round % 2 == 0 ? any(random_) : near(random_);
    const double exact = std::exp2(double{x});
    ASSERT_NEAR(exp2_of_negative(x), exact, 1.7e-7 * exact) << x;
  }
}

TEST_F(LanesTest, Exp2OfNegativeEndsWhereItSays) {
  EXPECT_EQ(exp2_of_negative(0.0f), 1.0f);
  EXPECT_EQ(exp2_of_negative(-125.0f), 0x1p-125f);
  EXPECT_EQ(exp2_of_negative(std::nextafter(-125.0f, -126.0f)), 0.0f);
  EXPECT_EQ(exp2_of_negative(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_TRUE(std::isnan(exp2_of_negative(to_float(to_bf16(std::nanf(""))))));
  EXPECT_TRUE(std::isnan(exp2_of_negative(to_float(bf16{0xffff}))));
}

TEST_F(LanesTest, RoundingFlushesDenormalsFirst) {
  EXPECT_EQ(flush_and_round(0x1.fffp-127f), 0.0f);  // rounded first it were 2^-126
  EXPECT_TRUE(std::signbit(flush_and_round(-0x1p-140f)));
  EXPECT_EQ(flush_and_round(0x1p-126f), 0x1p-126f);
  for (const float x : random_f32(1000)) ASSERT_EQ(flush_and_round(x), to_float(to_bf16(x)));
}

}  // namespace
}  // namespace outrider::cpu::lanes_test
