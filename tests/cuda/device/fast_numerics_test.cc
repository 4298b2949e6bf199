// What --numerics fast changes in a backend, and what it does not. The emulated library adds in an
// order that is none of ours.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "testing/gpus.h"

namespace outrider {
namespace {

struct Shape {
  int64_t n, k;
};

constexpr int64_t kMostRows = 131;

// Weights [n, k], inputs [kMostRows, k] and a bias [n], the same whenever they are made.
struct Values {
  explicit Values(Shape shape) : n(shape.n), k(shape.k) {
    std::mt19937 random(static_cast<uint32_t>(n * 1000 + k));
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (int64_t i = 0; i < n * k; ++i) weight.push_back(to_bf16(uniform(random)));
    for (int64_t i = 0; i < kMostRows * k; ++i) x.push_back(to_bf16(uniform(random)));
    for (int64_t i = 0; i < n; ++i) bias.push_back(uniform(random));
  }

  int64_t n, k;
  std::vector<bf16> weight, x;
  std::vector<float> bias;
};

// The first `rows` rows of the product, [rows, n].
std::vector<float> product(const Values& values, Numerics numerics, int64_t rows, bool with_bias) {
  CudaBackend backend(0, numerics);
  Stream stream = backend.make_stream();
  const TensorView weight(const_cast<bf16*>(values.weight.data()), DType::bf16,
                          {values.n, values.k});
  const TensorView parts[] = {weight.rows(0, values.n / 3), weight.rows(values.n / 3, values.n)};
  const PackedWeight packed = backend.pack(parts);
  const auto upload = [&](const void* from, DType dtype, int64_t size) {
    Buffer buffer = backend.allocate(size * dtype_bytes(dtype));
    backend.copy_from_host(buffer.view(dtype, {size}), from, stream);
    return buffer;
  };
  const Buffer x = upload(values.x.data(), DType::bf16, rows * values.k);
  const Buffer bias = upload(values.bias.data(), DType::f32, values.n);
  const Buffer y = backend.allocate(rows * values.n * sizeof(float));
  backend.linear(packed, x.view(DType::bf16, {rows, values.k}),
                 with_bias ? bias.view(DType::f32, {values.n}) : TensorView(),
                 y.view(DType::f32, {rows, values.n}), stream);
  std::vector<float> result(rows * values.n);
  backend.copy_to_host(result.data(), y.view(DType::f32, {rows * values.n}), stream);
  backend.synchronize(stream);
  return result;
}

TEST(FastNumerics, FewRowsHaveTheExactBits) {
  const Values values({48, 96});
  const int64_t rows = FastLinear::kMinRows - 1;
  EXPECT_EQ(product(values, Numerics::fast, rows, true),
            product(values, Numerics::exact, rows, true));
}

TEST(FastNumerics, ManyRowsAreSumsInAnotherOrder) {
  for (const Shape shape : {Shape{48, 96}, Shape{17, 70}}) {
    const Values values(shape);
    for (const bool with_bias : {false, true}) {
      SCOPED_TRACE(std::to_string(shape.n) + " by " + std::to_string(shape.k));
      const auto fast = product(values, Numerics::fast, kMostRows, with_bias);
      if (emulated_gpus()) {
        EXPECT_NE(fast, product(values, Numerics::exact, kMostRows, with_bias));
      }
      for (int64_t row = 0; row < kMostRows; ++row) {
        for (int64_t output = 0; output < shape.n; ++output) {
          double sum = with_bias ? values.bias[output] : 0, magnitude = std::abs(sum);
          for (int64_t i = 0; i < shape.k; ++i) {
            const double term = double{to_float(values.x[row * shape.k + i])} *
                                to_float(values.weight[output * shape.k + i]);
            sum += term;
            magnitude += std::abs(term);
          }
          // k additions, each rounded to 24 bits.
          ASSERT_NEAR(fast[row * shape.n + output], sum,
                      static_cast<double>(shape.k + 1) * std::exp2(-24) * magnitude);
        }
      }
    }
  }
}

// The library would choose another algorithm for another number of rows, if it were asked.
TEST(FastNumerics, TheAlgorithmIsChosenOnce) {
  if (!emulated_gpus()) GTEST_SKIP() << "a row's bits may depend on the rows beside it";
  const Values values({48, 96});
  const auto few = product(values, Numerics::fast, 70, false);
  const auto many = product(values, Numerics::fast, kMostRows, false);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
}

TEST(FastNumerics, WhatTheLibraryHasNothingForIsExact) {
  if (!emulated_gpus()) GTEST_SKIP() << "cuBLASLt may have something for every shape";
  const Values values({48, 71});
  EXPECT_EQ(product(values, Numerics::fast, kMostRows, true),
            product(values, Numerics::exact, kMostRows, true));
}

TEST(FastNumerics, ABackendSaysSo) {
  EXPECT_EQ(CudaBackend(0, Numerics::fast).description(), CudaBackend(0).description() + "/fast");
}

}  // namespace
}  // namespace outrider
