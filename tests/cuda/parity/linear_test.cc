// linear on the device: every tile against every other, bit for bit; the layouts; what lies beyond
// the rows, the outputs and k. How close it is to exact is in operations_test.cc.
#include "kernels/cuda/linear.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "backend/quantize.h"
#include "device_array.h"
#include "kernels/cuda/elementwise.h"
#include "tests/kernels/kernel_test.h"

namespace outrider::cuda {
namespace {

struct Size {
  int64_t n, k;
};
// Shards of models, one part of k and sixteen, sizes that divide nothing.
constexpr Size kSizes[] = {{1, 1}, {16, 32}, {100, 300}, {193, 71}, {130, 576}, {35, 2100}};

// A packed matrix.
struct Packed {
  DeviceArray<std::byte> data;
  WeightFormat format;
};

class CudaLinearTest : public KernelTest {
 protected:
  static Packed packed(const std::vector<bf16>& w, Size size, WeightFormat format) {
    return packed_parts(w, size, format, {0, size.n});
  }
  // Packed piece by piece: rows [ends[i], ends[i + 1]).
  static Packed packed_parts(const std::vector<bf16>& w, Size size, WeightFormat format,
                             const std::vector<int64_t>& ends, bool gate_up = false) {
    Packed result = {DeviceArray<std::byte>(packed_bytes(size.n, size.k, format)), format};
    for (size_t i = 0; i + 1 < ends.size(); ++i) {
      if (ends[i] == ends[i + 1]) continue;
      const int64_t rows = ends[i + 1] - ends[i];
      const auto piece = rows_of(w, ends[i], ends[i + 1], size.k);
      if (format == WeightFormat::int8) {
        const Int8Rows quantized = quantize(piece, {rows, size.k});
        const DeviceArray<int8_t> values(quantized.values);
        const DeviceArray<float> scales(quantized.scales);
        pack_int8(values.data(), scales.data(), rows, ends[i], size.n, size.k, gate_up,
                  result.data.data(), nullptr);
        check_cuda(cudaDeviceSynchronize(), "pack_int8");
      } else {
        const DeviceArray<bf16> source(piece);
        pack(source.data(), rows, ends[i], size.n, size.k, gate_up, result.data.data(), nullptr);
        check_cuda(cudaDeviceSynchronize(), "pack");
      }
    }
    return result;
  }

  static Int8Rows quantize(std::vector<bf16> rows, Size size) {
    return quantize_rows(TensorView(rows.data(), DType::bf16, {size.n, size.k}));
  }

  static std::vector<float> run(const std::vector<bf16>& x, const Packed& w,
                                const std::vector<float>& bias, Size size, LinearTile tile) {
    const int64_t rows = static_cast<int64_t>(x.size()) / size.k;
    const DeviceArray<bf16> device_x(x);
    const DeviceArray<float> device_bias(bias);
    // NaN: what is not written shows, and what was there before is not used.
    const DeviceArray<float> y(std::vector<float>(rows * size.n + 1, std::nanf("")));
    linear(device_x.data(), w.data.data(), bias.empty() ? nullptr : device_bias.data(), y.data(),
           rows, size.n, size.k, w.format, tile, nullptr);
    std::vector<float> values = y.values();
    EXPECT_TRUE(std::isnan(values.back())) << "written beyond the end";
    values.pop_back();
    return values;
  }

  // With its activation, by one kernel …
  static std::vector<bf16> run_activated(const std::vector<bf16>& x, const Packed& w,
                                         const std::vector<float>& bias, Activation activation,
                                         Size size, LinearTile tile) {
    const int64_t rows = static_cast<int64_t>(x.size()) / size.k;
    const DeviceArray<bf16> device_x(x);
    const DeviceArray<float> device_bias(bias);
    return written(rows * size.n / num_inputs(activation), [&](bf16* y) {
      linear_activated(device_x.data(), w.data.data(), bias.empty() ? nullptr : device_bias.data(),
                       activation, y, rows, size.n, size.k, w.format, tile, nullptr);
    });
  }

  // … and by a second one.
  static std::vector<bf16> activated(const std::vector<float>& products, Activation activation,
                                     int64_t rows) {
    const DeviceArray<float> inputs(products);
    const auto size = static_cast<int64_t>(products.size()) / num_inputs(activation);
    return written(size, [&](bf16* y) {
      if (activation == Activation::swiglu) {
        silu_mul(inputs.data(), y, rows, size / rows, nullptr);
      } else {
        gelu_tanh(inputs.data(), y, size, nullptr);
      }
    });
  }

  // What run(y) leaves in `size` elements, and nowhere else.
  template <class Run>
  static std::vector<bf16> written(int64_t size, const Run& run) {
    const bf16 mark = to_bf16(std::nanf(""));
    const DeviceArray<bf16> y(std::vector<bf16>(size + 1, mark));
    run(y.data());
    std::vector<bf16> values = y.values();
    EXPECT_EQ(values.back().bits, mark.bits) << "written beyond the end";
    values.pop_back();
    return values;
  }

  template <class T>
  static std::vector<T> rows_of(const std::vector<T>& all, int64_t begin, int64_t end,
                                int64_t width) {
    return {all.begin() + begin * width, all.begin() + end * width};
  }
};

class CudaLinearFormats : public CudaLinearTest,
                          public testing::WithParamInterface<WeightFormat> {};

// Each row alone in the smallest tile; then in batches that fill every tile, leave it nearly empty
// and need several; and in another order.
TEST_P(CudaLinearFormats, EveryTileGivesARowTheSameBits) {
  constexpr int64_t kRows = 131;
  for (Size size : kSizes) {
    const auto x = random_bf16(kRows * size.k);
    const auto w = packed(random_bf16(size.n * size.k), size, GetParam());
    const auto bias = random_f32(size.n);
    std::vector<float> expected;
    for (int64_t r = 0; r < kRows; ++r) {
      const auto y = run(rows_of(x, r, r + 1, size.k), w, bias, size, kLinearTiles[0]);
      expected.insert(expected.end(), y.begin(), y.end());
    }
    for (LinearTile tile : kLinearTiles) {
      for (int64_t rows : {int64_t{1}, int64_t{tile.rows}, int64_t{tile.rows} + 3, kRows}) {
        if (rows > kRows) continue;
        const int64_t first = kRows - rows;
        const auto y = run(rows_of(x, first, kRows, size.k), w, bias, size, tile);
        EXPECT_TRUE(same_bits(y, rows_of(expected, first, kRows, size.n)))
            << rows << " x " << size.n << " x " << size.k << " in tiles of " << tile.rows << " x "
            << tile.outputs;
      }
    }
  }
}

TEST_P(CudaLinearFormats, ARowsPlaceDoesNotShow) {
  const Size size = {50, 200};
  constexpr int64_t kRows = 70;
  const auto x = random_bf16(kRows * size.k);
  const auto w = packed(random_bf16(size.n * size.k), size, GetParam());
  std::vector<int64_t> order(kRows);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random_);
  std::vector<bf16> shuffled;
  for (int64_t r : order) {
    shuffled.insert(shuffled.end(), x.begin() + r * size.k, x.begin() + (r + 1) * size.k);
  }
  for (LinearTile tile : kLinearTiles) {
    const auto y = run(x, w, {}, size, tile);
    const auto moved = run(shuffled, w, {}, size, tile);
    for (int64_t i = 0; i < kRows; ++i) {
      EXPECT_TRUE(
          same_bits(rows_of(moved, i, i + 1, size.n), rows_of(y, order[i], order[i] + 1, size.n)))
          << "row " << order[i] << " at " << i << ", tile of " << tile.rows;
    }
  }
}

// In every tile what a plain product and its activation give, whatever the width: eights of gates
// and ups share a panel.
TEST_P(CudaLinearFormats, AnActivatedProductIsTheProductAndThenItsActivation) {
  constexpr int64_t kRows = 130;
  struct Shape {
    int64_t width, k;
  };
  for (const auto& [width, k] : {Shape{1, 40}, {8, 32}, {13, 71}, {64, 576}, {101, 300}}) {
    for (const Activation activation : {Activation::swiglu, Activation::gelu_tanh}) {
      const Size size = {num_inputs(activation) * width, k};
      const auto x = random_bf16(kRows * k);
      const auto w = random_bf16(size.n * k);
      const bool gated = activation == Activation::swiglu;
      const auto plain = packed(w, size, GetParam());
      // In pieces that end within a panel, within the gate and across it and the up.
      const auto fused = packed_parts(w, size, GetParam(),
                                      {0, (width + 1) / 2, size.n - width / 3, size.n}, gated);
      for (const auto& bias : {std::vector<float>(), random_f32(size.n)}) {
        const auto products = run(x, plain, bias, size, kLinearTiles[0]);
        const auto expected = activated(products, activation, kRows);
        for (LinearTile tile : kLinearTiles) {
          for (int64_t rows : {int64_t{1}, int64_t{tile.rows}, int64_t{tile.rows} + 3, kRows}) {
            if (rows > kRows) continue;
            const int64_t first = kRows - rows;
            const auto y =
                run_activated(rows_of(x, first, kRows, k), fused, bias, activation, size, tile);
            EXPECT_TRUE(same_bits(y, rows_of(expected, first, kRows, width)))
                << rows << " x " << width << " x " << k << (gated ? ", gated" : "")
                << ", in tiles of " << tile.rows << " x " << tile.outputs;
          }
        }
      }
    }
  }
}

TEST_F(CudaLinearTest, EveryTileIsChosenSomewhere) {
  std::set<std::pair<int, int>> chosen;
  for (int64_t rows = 1; rows <= 2048; rows *= 2) {
    for (int64_t n : {576, 4096, 28672}) {
      const LinearTile tile = linear_tile(rows, n);
      EXPECT_NE(std::find(std::begin(kLinearTiles), std::end(kLinearTiles), tile),
                std::end(kLinearTiles));
      chosen.insert({tile.rows, tile.outputs});
    }
  }
  EXPECT_EQ(chosen.size(), std::size(kLinearTiles));
}

TEST_P(CudaLinearFormats, ZerosGiveZerosAndNanStaysInItsRow) {
  const Size size = {33, 65};
  constexpr int64_t kRows = 40;
  const auto w = packed(random_bf16(size.n * size.k), size, GetParam());
  auto x = random_bf16(kRows * size.k);
  x[4 * size.k + 64] = to_bf16(std::nanf(""));
  for (LinearTile tile : kLinearTiles) {
    for (float y : run(std::vector<bf16>(kRows * size.k), w, {}, size, tile)) ASSERT_EQ(y, 0.0f);
    const auto y = run(x, w, {}, size, tile);
    for (int64_t i = 0; i < kRows * size.n; ++i) ASSERT_EQ(std::isnan(y[i]), i / size.n == 4) << i;
  }
}

TEST_P(CudaLinearFormats, PiecesPackLikeTheWhole) {
  const Size size = {37, 71};
  const auto w = random_bf16(size.n * size.k);
  EXPECT_TRUE(same_bits(packed_parts(w, size, GetParam(), {0, 5, 6, 37}).data.values(),
                        packed(w, size, GetParam()).data.values()));
}

std::string name_of(const testing::TestParamInfo<WeightFormat>& info) {
  return info.param == WeightFormat::int8 ? "int8" : "bf16";
}
INSTANTIATE_TEST_SUITE_P(, CudaLinearFormats,
                         testing::Values(WeightFormat::bf16, WeightFormat::int8), name_of);

// Of numbers that are bf16 as well; the scale and the bias are rounded one after the other.
TEST_F(CudaLinearTest, AnInt8ProductIsThatOfItsNumbersTimesTheScale) {
  constexpr int64_t kRows = 37;
  for (Size size : kSizes) {
    const auto x = random_bf16(kRows * size.k);
    const auto w = random_bf16(size.n * size.k);
    const Int8Rows quantized = quantize(w, size);
    std::vector<bf16> numbers;
    for (int8_t value : quantized.values) numbers.push_back(to_bf16(value));
    auto expected = run(x, packed(numbers, size, WeightFormat::bf16), {}, size, kLinearTiles[0]);
    const auto bias = random_f32(size.n);
    for (int64_t i = 0; i < kRows * size.n; ++i) {
      const float scaled = expected[i] * quantized.scales[i % size.n];
      expected[i] = scaled + bias[i % size.n];
    }
    const auto int8 = packed(w, size, WeightFormat::int8);
    for (LinearTile tile : kLinearTiles) {
      EXPECT_TRUE(same_bits(run(x, int8, bias, size, tile), expected))
          << size.n << " x " << size.k << " in tiles of " << tile.rows << " x " << tile.outputs;
    }
  }
}

// Every number that a byte can be, and each in every place of a step.
TEST_F(CudaLinearTest, EveryByteIsItsNumber) {
  const Size size = {256, 32};
  std::vector<int8_t> values(size.n * size.k);
  for (int64_t i = 0; i < size.n * size.k; ++i) {
    values[i] = static_cast<int8_t>(i / size.k + i % size.k * 7);
  }
  const DeviceArray<int8_t> source(values);
  const DeviceArray<float> scales(std::vector<float>(size.n, 0.5f));
  const Packed w = {DeviceArray<std::byte>(packed_bytes(size.n, size.k, WeightFormat::int8)),
                    WeightFormat::int8};
  pack_int8(source.data(), scales.data(), size.n, 0, size.n, size.k, false, w.data.data(), nullptr);
  std::vector<bf16> x(size.k * size.k);  // the unit matrix
  for (int64_t i = 0; i < size.k; ++i) x[i * size.k + i] = to_bf16(1.0f);
  for (LinearTile tile : kLinearTiles) {
    const auto y = run(x, w, {}, size, tile);
    for (int64_t i = 0; i < size.k; ++i) {
      for (int64_t o = 0; o < size.n; ++o) {
        ASSERT_EQ(y[i * size.n + o], 0.5f * values[o * size.k + i]) << o << ", " << i;
      }
    }
  }
}

TEST_F(CudaLinearTest, EmbedReadsRowsBack) {
  for (int64_t k : {9, 64}) {
    const Size size = {37, k};
    const int64_t first_token = 100;
    const auto table = random_bf16(size.n * k);
    const std::vector<int32_t> tokens = {100, 136, 99, 137, 117, 0};
    const DeviceArray<int32_t> device_tokens(tokens);
    const DeviceArray<float> y(std::vector<float>(tokens.size() * k, std::nanf("")));
    embed(packed(table, size, WeightFormat::bf16).data.data(), device_tokens.data(), first_token,
          y.data(), tokens.size(), size.n, k, nullptr);
    const auto values = y.values();
    for (size_t r = 0; r < tokens.size(); ++r) {
      const int64_t row = tokens[r] - first_token;
      for (int64_t i = 0; i < k; ++i) {
        EXPECT_EQ(values[r * k + i],
                  row < 0 || row >= size.n ? 0.0f : to_float(table[row * k + i]));
      }
    }
  }
}

}  // namespace
}  // namespace outrider::cuda
