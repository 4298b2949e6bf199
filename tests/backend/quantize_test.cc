#include "backend/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/float_environment.h"

namespace outrider {
namespace {

constexpr float kLeastNormal = std::numeric_limits<float>::min();  // bf16's, too

Int8Rows quantized(std::vector<bf16> values, int64_t rows) {
  const int64_t k = static_cast<int64_t>(values.size()) / rows;
  return quantize_rows(TensorView(values.data(), DType::bf16, {rows, k}));
}

Int8Rows quantized_row(const std::vector<float>& row) {
  std::vector<bf16> values;
  for (float value : row) values.push_back(to_bf16(value));
  return quantized(values, 1);
}

// Row r is some 4^r in size, from far below 1 on.
std::vector<bf16> random_rows(int64_t rows, int64_t k) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<bf16> values;
  for (int64_t i = 0; i < rows * k; ++i) {
    values.push_back(to_bf16(std::ldexp(normal(random), static_cast<int>(2 * (i / k)) - 40)));
  }
  return values;
}

TEST(Quantize, EveryNumberIsTheNearestAndTheLargestIs127) {
  constexpr int64_t kRows = 50, kWidth = 203;
  const auto rows = random_rows(kRows, kWidth);
  const Int8Rows result = quantized(rows, kRows);
  ASSERT_EQ(result.values.size(), rows.size());
  ASSERT_EQ(result.scales.size(), static_cast<size_t>(kRows));
  for (int64_t r = 0; r < kRows; ++r) {
    const double scale = result.scales[r];
    float largest = 0;
    int most = 0;
    for (int64_t i = r * kWidth; i < (r + 1) * kWidth; ++i) {
      const double error = to_float(rows[i]) - scale * result.values[i];
      ASSERT_LE(std::abs(error), scale * (0.5 + 127 * 0x1p-23)) << r << ", " << i;
      largest = std::max(largest, std::abs(to_float(rows[i])));
      most = std::max(most, std::abs(int{result.values[i]}));
    }
    EXPECT_EQ(result.scales[r], largest / 127) << r;
    EXPECT_EQ(most, 127) << r;
  }
}

// Of every magnitude that bf16 has between two powers of two, the quotient rounded either way.
TEST(Quantize, NoNumberIsBeyond127) {
  for (int i = 128; i < 256; ++i) {
    for (const float size : {1.0f, 0x1p-100f, 0x1p120f}) {
      const float largest = static_cast<float>(i) * size;
      const Int8Rows result = quantized_row({largest, -largest, 0.0f});
      EXPECT_EQ(result.values, (std::vector<int8_t>{127, -127, 0})) << largest;
    }
  }
}

TEST(Quantize, TiesGoToTheEvenNumber) {
  const Int8Rows result = quantized_row({127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f});
  EXPECT_EQ(result.scales, std::vector<float>{1.0f});
  EXPECT_EQ(result.values, (std::vector<int8_t>{127, 0, 2, 2, 0, -2, -2}));
}

TEST(Quantize, ZerosStayZeros) {
  const Int8Rows result = quantized_row({0.0f, -0.0f, 0.0f});
  EXPECT_EQ(result.scales, std::vector<float>{0.0f});
  EXPECT_EQ(result.values, std::vector<int8_t>(3));
}

TEST(Quantize, ARowThatIsNotFiniteHasAScaleOfNanAndLeavesOthersAlone) {
  constexpr int64_t kWidth = 9;
  const auto finite = random_rows(4, kWidth);
  const Int8Rows expected = quantized(finite, 4);
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    for (const int64_t place : {0, 4, 8}) {
      auto rows = finite;
      rows[2 * kWidth + place] = to_bf16(bad);
      const Int8Rows result = quantized(rows, 4);
      for (int64_t r = 0; r < 4; ++r) {
        if (r == 2) {
          EXPECT_TRUE(std::isnan(result.scales[r])) << bad << " at " << place;
          continue;
        }
        EXPECT_EQ(result.scales[r], expected.scales[r]);
        EXPECT_TRUE(std::equal(result.values.begin() + r * kWidth,
                               result.values.begin() + (r + 1) * kWidth,
                               expected.values.begin() + r * kWidth));
      }
    }
  }
}

// A denormal scale would be flushed, or lack digits so that numbers get beyond 127.
TEST(Quantize, ARowTooSmallForAScaleIsZeros) {
  const auto expect_as_said = [] {
    for (const float largest :
         {0x1p-133f, 0.5f * kLeastNormal, kLeastNormal, 3 * kLeastNormal, 126 * kLeastNormal}) {
      const Int8Rows result = quantized_row({largest, -largest, 0.0f});
      EXPECT_EQ(result.scales, std::vector<float>{0.0f}) << largest;
      EXPECT_EQ(result.values, std::vector<int8_t>(3)) << largest;
    }
    for (const float largest : {127 * kLeastNormal, 128 * kLeastNormal, 255 * kLeastNormal}) {
      const Int8Rows result = quantized_row({largest, -largest, 0x1p-133f});
      EXPECT_GE(result.scales[0], kLeastNormal) << largest;
      EXPECT_EQ(result.values, (std::vector<int8_t>{127, -127, 0})) << largest;
    }
  };
  expect_as_said();
  const FloatEnvironment as_while_computing;
  expect_as_said();
}

TEST(Quantize, StridedRowsAreReadWhereTheyStand) {
  constexpr int64_t kRows = 5, kWidth = 40;
  auto all = random_rows(kRows, kWidth);
  const TensorView columns = TensorView(all.data(), DType::bf16, {kRows, kWidth}).slice(1, 7, 30);
  std::vector<bf16> alone;
  for (int64_t r = 0; r < kRows; ++r) {
    alone.insert(alone.end(), all.begin() + r * kWidth + 7, all.begin() + r * kWidth + 30);
  }
  const Int8Rows result = quantize_rows(columns), expected = quantized(alone, kRows);
  EXPECT_EQ(result.values, expected.values);
  EXPECT_EQ(result.scales, expected.scales);
}

TEST(Quantize, NoRowsAreNothing) {
  const Int8Rows result = quantize_rows(TensorView(nullptr, DType::bf16, {0, 8}));
  EXPECT_TRUE(result.values.empty() && result.scales.empty());
}

}  // namespace
}  // namespace outrider
