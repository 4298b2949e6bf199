#include "kernels/cpu/linear.h"

#include <algorithm>
#include <numeric>

#include "bench/op_cases.h"
#include "kernels/cpu/linear_tile.h"
#include "tests/kernels/kernel_test.h"

namespace outrider::cpu {
namespace {

class LinearTest : public KernelTest {
 protected:
  static std::vector<std::byte> packed(const std::vector<bf16>& w, int64_t n, int64_t k) {
    std::vector<std::byte> packed(packed_bytes(n, k));
    pack(w.data(), k, n, 0, k, packed.data());
    return packed;
  }
  static std::vector<float> run(const std::vector<bf16>& x, const std::vector<std::byte>& w,
                                const float* bias, const LinearCase& c, Isa isa) {
    // NaN: what is not written shows, and what was there before is not used.
    std::vector<float> y(c.rows * c.n + 1, std::nanf(""));
    linear(x.data(), w.data(), bias, y.data(), c.rows, c.n, c.k, isa);
    EXPECT_TRUE(std::isnan(y.back())) << "written beyond the end";
    y.pop_back();
    return y;
  }
};

// A chain of k fmas errs by at most k roundings of a partial sum, each at most sum |x w|; the bias
// adds one more.
TEST_F(LinearTest, IsCloseToDouble) {
  for (const LinearCase& c : kLinearCases) {
    const auto x = random_bf16(c.rows * c.k);
    const auto w = random_bf16(c.n * c.k);
    const auto bias = random_f32(c.n);
    const Isa isa = available_isas().back();
    const auto y = run(x, packed(w, c.n, c.k), bias.data(), c, isa);
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t o = 0; o < c.n; o += 1 + c.n / 4096) {
        double exact = bias[o];
        double norm = std::abs(bias[o]);
        for (int64_t i = 0; i < c.k; ++i) {
          const double term = double{to_float(x[r * c.k + i])} * to_float(w[o * c.k + i]);
          exact += term;
          norm += std::abs(term);
        }
        ASSERT_NEAR(y[r * c.n + o], exact, (c.k + 2) * kRoundF32 * norm)
            << c.rows << " x " << c.n << " x " << c.k << ", row " << r << ", output " << o;
      }
    }
  }
}

TEST_F(LinearTest, EveryIsaGivesTheSameBits) {
  for (const LinearCase& c : kLinearCases) {
    const auto x = random_bf16(c.rows * c.k);
    const auto w = packed(random_bf16(c.n * c.k), c.n, c.k);
    const auto expected = run(x, w, nullptr, c, Isa::scalar);
    for (Isa isa : available_isas()) {
      EXPECT_TRUE(same_bits(run(x, w, nullptr, c, isa), expected))
          << isa_name(isa) << ": " << c.rows << " x " << c.n << " x " << c.k;
    }
  }
}

// Each row alone, and all rows in another order, give the bits of the batch.
TEST_F(LinearTest, ARowDoesNotDependOnTheOthers) {
  for (const LinearCase& c : kLinearCases) {
    const auto x = random_bf16(c.rows * c.k);
    const auto w = packed(random_bf16(c.n * c.k), c.n, c.k);
    std::vector<int64_t> order(c.rows);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<bf16> shuffled;
    for (int64_t r : order) {
      shuffled.insert(shuffled.end(), x.begin() + r * c.k, x.begin() + (r + 1) * c.k);
    }
    const Isa isa = available_isas().back();
    const auto y = run(x, w, nullptr, c, isa);
    const auto y_shuffled = run(shuffled, w, nullptr, c, isa);
    for (int64_t i = 0; i < c.rows; ++i) {
      const std::vector<float> expected(y.begin() + order[i] * c.n,
                                        y.begin() + (order[i] + 1) * c.n);
      const std::vector<float> moved(y_shuffled.begin() + i * c.n,
                                     y_shuffled.begin() + (i + 1) * c.n);
      const std::vector<bf16> row(shuffled.begin() + i * c.k, shuffled.begin() + (i + 1) * c.k);
      EXPECT_TRUE(same_bits(moved, expected)) << c.rows << " rows, row " << order[i];
      EXPECT_TRUE(same_bits(run(row, w, nullptr, {1, c.n, c.k}, isa), expected))
          << c.rows << " rows, row " << order[i] << " alone";
    }
  }
}

// The instruction that the others reproduce, on any bits: 10^6 sums of three pairs. (So few rows
// that linear uses it wherever there is one.)
TEST_F(LinearTest, EveryIsaTreatsAnyBitsAlike) {
  const LinearCase c = {4, 16, 6};
  for (int round = 0; round < 16000; ++round) {
    // Any exponent at all, or exponents around one that puts the sums near a denormal or infinity.
    std::vector<bf16> x(c.rows * c.k), w(c.n * c.k);
    const uint32_t center = random_() % 256;
    const auto fill = [&](std::vector<bf16>& values, uint32_t around) {
      for (bf16& value : values) {
        const uint32_t exponent = round % 4 == 0 ? random_() : around + random_() % 24 - 12;
        value.bits = static_cast<uint16_t>((random_() & 0x807fu) | (exponent & 0xffu) << 7);
      }
    };
    fill(x, center);
    fill(w, (round % 2 == 0 ? 128u : 380u) - center);
    const auto packed_w = packed(w, c.n, c.k);
    const auto expected = run(x, packed_w, nullptr, c, Isa::scalar);
    for (Isa isa : available_isas()) {
      const auto y = run(x, packed_w, nullptr, c, isa);
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_TRUE(same_number(y[i], expected[i]))
            << isa_name(isa) << ": " << std::hexfloat << y[i] << ", expected " << expected[i];
      }
    }
  }
}

// Every tile that linear can choose, alone and sharing its panels, from zero and resumed.
TEST_F(LinearTest, EveryTileGivesTheSameBits) {
  const int64_t n = 100, k = 300;
  const auto w = packed(random_bf16(n * k), n, k);
  const auto x = random_bf16(kMaxTileRows * k);
  const auto expected = run(x, w, nullptr, {kMaxTileRows, n, k}, Isa::scalar);
  std::vector<float> x_f32(kMaxTileRows * kFewRowsStride);
  std::vector<bf16> x_bf16(kMaxTileRows * kFewRowsStride);
  std::vector<float> y(kMaxTileRows * n);
  const auto check = [&](const TileKernels& kernels, bool few, int rows, int64_t count) {
    for (int64_t begin : {0, 70}) {
      const int64_t end = begin == 0 ? 70 : 150;
      for (int64_t i = 0; i < rows * k; ++i) {
        const int64_t at = i / k * (few ? kFewRowsStride : kManyRowsStride) + i % k - 2 * begin;
        if (i % k < 2 * begin) continue;
        x_f32[at] = to_float(x[i]);
        x_bf16[at] = x[i];
      }
      LinearTile tile;
      tile.x = kernels.x_is_f32 ? static_cast<const void*>(x_f32.data()) : x_bf16.data();
      tile.w = w.data() + begin * kPairBytes;
      tile.w_stride = k / 2 * kPairBytes;
      tile.num_panels = 7;
      tile.num_pairs = end - begin;
      tile.y = y.data();
      tile.y_stride = n;
      tile.num_outputs = n;
      tile.resume = begin > 0;
      tile.index = count - 1;
      tile.count = count;
      (few ? kernels.few_rows : kernels.many_rows)[rows](tile);
    }
    return std::memcmp(y.data(), expected.data(), rows * n * sizeof(float)) == 0;
  };
  const std::pair<Isa, const TileKernels*> all[] = {{Isa::scalar, &kTileScalar},
                                                    {Isa::avx2, &kTileAvx2},
                                                    {Isa::avx512, &kTileAvx512},
                                                    {Isa::avx512_bf16, &kTileAvx512Bf16},
                                                    {Isa::avx512_bf16, &kTileAvx512Bf16Far}};
  for (const auto& [isa, kernels] : all) {
    if (!isa_available(isa)) continue;
    for (int rows = 1; rows <= kernels->max_rows; ++rows) {
      for (bool few : {false, true}) {
        for (int64_t count : {1, 3}) {
          EXPECT_TRUE(check(*kernels, few, rows, count))
              << isa_name(isa) << ", " << rows << " rows, one of " << count;
        }
      }
    }
  }
}

TEST_F(LinearTest, ZerosGiveZeros) {
  const LinearCase c = {9, 33, 65};
  const auto w = packed(random_bf16(c.n * c.k), c.n, c.k);
  for (Isa isa : available_isas()) {
    for (float y : run(std::vector<bf16>(c.rows * c.k), w, nullptr, c, isa)) ASSERT_EQ(y, 0.0f);
  }
}

TEST_F(LinearTest, NanStaysInItsRow) {
  const LinearCase c = {9, 33, 65};
  auto x = random_bf16(c.rows * c.k);
  x[4 * c.k + 64] = to_bf16(std::nanf(""));
  const auto w = packed(random_bf16(c.n * c.k), c.n, c.k);
  for (Isa isa : available_isas()) {
    const auto y = run(x, w, nullptr, c, isa);
    for (int64_t i = 0; i < c.rows * c.n; ++i) ASSERT_EQ(std::isnan(y[i]), i / c.n == 4) << i;
  }
}

TEST_F(LinearTest, PacksPartsFromStridedRows) {
  const int64_t k = 7, stride = 11;
  const auto source = random_bf16(37 * stride);
  std::vector<bf16> contiguous;
  for (int64_t r = 0; r < 37; ++r) {
    contiguous.insert(contiguous.end(), source.begin() + r * stride,
                      source.begin() + r * stride + k);
  }
  std::vector<std::byte> parts(packed_bytes(37, k));
  pack(source.data(), stride, 5, 0, k, parts.data());
  pack(source.data() + 5 * stride, stride, 32, 5, k, parts.data());
  EXPECT_TRUE(same_bits(parts, packed(contiguous, 37, k)));
}

TEST_F(LinearTest, EmbedReadsRowsBack) {
  const int64_t n = 37, k = 9, first_token = 100;
  const auto table = random_bf16(n * k);
  const std::vector<int32_t> tokens = {100, 136, 99, 137, 117, 0};
  std::vector<float> y(tokens.size() * k, std::nanf(""));
  embed(packed(table, n, k).data(), tokens.data(), first_token, y.data(), tokens.size(), n, k);
  for (size_t r = 0; r < tokens.size(); ++r) {
    const int64_t row = tokens[r] - first_token;
    for (int64_t i = 0; i < k; ++i) {
      EXPECT_EQ(y[r * k + i], row < 0 || row >= n ? 0.0f : to_float(table[row * k + i]));
    }
  }
}

}  // namespace
}  // namespace outrider::cpu
