// What --numerics fast changes in a backend, and what it does not. The emulated library adds in an
// order that is none of ours.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/operation_cost.h"
#include "kernels/math.h"
#include "testing/gpus.h"

namespace outrider {
namespace {

struct Shape {
  int64_t n, k;
};

constexpr int64_t kMostRows = 131;
constexpr int64_t kTooMany = 301;  // for the emulated library

// Weights [n, k], inputs [kTooMany, k] and a bias [n], the same whenever they are made.
struct Values {
  explicit Values(Shape shape) : n(shape.n), k(shape.k) {
    std::mt19937 random(static_cast<uint32_t>(n * 1000 + k));
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (int64_t i = 0; i < n * k; ++i) weight.push_back(to_bf16(uniform(random)));
    for (int64_t i = 0; i < kTooMany * k; ++i) x.push_back(to_bf16(uniform(random)));
    for (int64_t i = 0; i < n; ++i) bias.push_back(uniform(random));
  }

  int64_t n, k;
  std::vector<bf16> weight, x;
  std::vector<float> bias;
};

// The first `rows` rows of the product, [rows, n].
std::vector<float> product(const Values& values, Numerics numerics, int64_t rows, bool with_bias,
                           WeightFormat format = WeightFormat::bf16) {
  CudaBackend backend(0, numerics);
  Stream stream = backend.make_stream();
  const TensorView weight(const_cast<bf16*>(values.weight.data()), DType::bf16,
                          {values.n, values.k});
  const TensorView parts[] = {weight.rows(0, values.n / 3), weight.rows(values.n / 3, values.n)};
  const PackedWeight packed = backend.pack(parts, format);
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

// The same of an FFN's first product, [rows, n / num_inputs].
std::vector<float> activated_product(const Values& values, Numerics numerics, int64_t rows,
                                     Activation activation, bool with_bias,
                                     WeightFormat format = WeightFormat::bf16) {
  CudaBackend backend(0, numerics);
  Stream stream = backend.make_stream();
  const TensorView weight(const_cast<bf16*>(values.weight.data()), DType::bf16,
                          {values.n, values.k});
  const PackedWeight packed = activation == Activation::swiglu
                                  ? backend.pack_gate_up({&weight, 1}, format)
                                  : backend.pack({&weight, 1}, format);
  const Buffer bias = backend.allocate(values.n * sizeof(float));
  backend.copy_from_host(bias.view(DType::f32, {values.n}), values.bias.data(), stream);
  const Buffer x = backend.allocate(rows * values.k * sizeof(bf16));
  backend.reserve_activation(rows, values.n);
  const int64_t width = values.n / num_inputs(activation);
  const Buffer y = backend.allocate(rows * width * sizeof(bf16));
  const TensorView x_view = x.view(DType::bf16, {rows, values.k});
  backend.copy_from_host(x_view, values.x.data(), stream);
  backend.linear_activated(packed, x_view,
                           with_bias ? bias.view(DType::f32, {values.n}) : TensorView(), activation,
                           y.view(DType::bf16, {rows, width}), stream);
  std::vector<bf16> result(rows * width);
  backend.copy_to_host(result.data(), y.view(DType::bf16, {rows, width}), stream);
  backend.synchronize(stream);
  std::vector<float> floats;
  for (const bf16 value : result) floats.push_back(to_float(value));
  return floats;
}

TEST(FastNumerics, FewRowsHaveTheExactBits) {
  const Values values({48, 96});
  const int64_t rows = kFastLinearMinRows - 1;
  EXPECT_EQ(product(values, Numerics::fast, rows, true),
            product(values, Numerics::exact, rows, true));
}

// Many rows' product goes by way of the scratch, and is activated there.
TEST(FastNumerics, AnActivatedProductIsTheActivationOfTheProduct) {
  const Values values({34, 96});
  const int64_t few = kFastLinearMinRows - 1;
  for (const Activation activation : {Activation::swiglu, Activation::gelu_tanh}) {
    for (const bool with_bias : {false, true}) {
      const bool gated = activation == Activation::swiglu;
      SCOPED_TRACE(std::string(gated ? "swiglu" : "gelu_tanh") + (with_bias ? ", bias" : ""));
      EXPECT_EQ(activated_product(values, Numerics::fast, few, activation, with_bias),
                activated_product(values, Numerics::exact, few, activation, with_bias));
      const auto products = product(values, Numerics::fast, kMostRows, with_bias);
      const auto got = activated_product(values, Numerics::fast, kMostRows, activation, with_bias);
      const int64_t width = values.n / num_inputs(activation);
      ASSERT_EQ(static_cast<int64_t>(got.size()), kMostRows * width);
      for (int64_t i = 0; i < kMostRows * width; ++i) {
        const float* const x = products.data() + i / width * values.n + i % width;
        const float expected = gated ? silu_f32(x[0]) * x[width] : gelu_tanh_f32(x[0]);
        ASSERT_EQ(got[i], to_float(to_bf16(expected))) << i / width << ", " << i % width;
      }
    }
  }
}

// cuBLASLt never sees them, and nothing is kept for it.
TEST(FastNumerics, Int8HasTheExactBits) {
  const Values values({48, 96});
  const auto format = WeightFormat::int8;
  EXPECT_EQ(product(values, Numerics::fast, kMostRows, true, format),
            product(values, Numerics::exact, kMostRows, true, format));
  for (const Activation activation : {Activation::swiglu, Activation::gelu_tanh}) {
    EXPECT_EQ(activated_product(values, Numerics::fast, kMostRows, activation, true, format),
              activated_product(values, Numerics::exact, kMostRows, activation, true, format));
  }
  CudaBackend backend(0, Numerics::fast);
  const TensorView weight(const_cast<bf16*>(values.weight.data()), DType::bf16,
                          {values.n, values.k});
  const PackedWeight packed = backend.pack({&weight, 1}, format);
  EXPECT_EQ(packed.rows.bytes(), 0u);
  EXPECT_EQ(static_cast<int64_t>(packed.data.bytes()),
            cuda_packed_bytes(values.n, values.k, format));
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

TEST(FastNumerics, RowsThatTheAlgorithmDoesNotServeAreExact) {
  if (!emulated_gpus()) GTEST_SKIP() << "cuBLASLt's may serve any number of rows";
  const Values values({48, 96});
  const auto all = product(values, Numerics::fast, kTooMany, true);
  EXPECT_EQ(all, product(values, Numerics::exact, kTooMany, true));
  const auto fewer = product(values, Numerics::fast, kTooMany - 1, true);
  EXPECT_FALSE(std::equal(fewer.begin(), fewer.end(), all.begin()));
}

TEST(FastNumerics, ABackendSaysSo) {
  EXPECT_EQ(
      CudaBackend(0, Numerics::fast).description(),
      CudaBackend(0).description() + "/fast, cuBLASLt " + std::to_string(cublasLtGetVersion()));
}

}  // namespace
}  // namespace outrider
