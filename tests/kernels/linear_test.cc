#include "kernels/cpu/linear.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "bench/op_cases.h"
#include "kernels/cpu/linear_tile.h"
#include "kernels/math.h"
#include "tests/kernels/kernel_test.h"

namespace outrider::cpu {
namespace {

// An int8 matrix [n, k], and what it is in bf16 but for the scales.
struct Int8Matrix {
  std::vector<int8_t> values;
  std::vector<float> scales;
  std::vector<bf16> values_bf16;
};

class LinearTest : public KernelTest {
 protected:
  static std::vector<std::byte> packed(const std::vector<bf16>& w, int64_t n, int64_t k) {
    std::vector<std::byte> packed(packed_bytes(n, k, WeightFormat::bf16));
    pack(w.data(), k, n, 0, k, packed.data());
    return packed;
  }
  static std::vector<std::byte> packed(const Int8Matrix& w, int64_t n, int64_t k) {
    std::vector<std::byte> packed(packed_bytes(n, k, WeightFormat::int8));
    const int64_t some = n / 3;
    pack_int8(w.values.data(), w.scales.data(), some, 0, n, k, packed.data());
    pack_int8(w.values.data() + some * k, w.scales.data() + some, n - some, some, n, k,
              packed.data());
    return packed;
  }
  Int8Matrix random_int8(int64_t n, int64_t k) {
    Int8Matrix w;
    for (int64_t i = 0; i < n * k; ++i) {
      w.values.push_back(static_cast<int8_t>(static_cast<int>(random_() % 255) - 127));
      w.values_bf16.push_back(to_bf16(w.values.back()));
    }
    w.scales = random_f32(n);
    return w;
  }
  static std::vector<float> run(const std::vector<bf16>& x, const std::vector<std::byte>& w,
                                const float* bias, const LinearCase& c, Isa isa,
                                WeightFormat format = WeightFormat::bf16) {
    // NaN: what is not written shows, and what was there before is not used.
    std::vector<float> y(c.rows * c.n + 1, std::nanf(""));
    linear(x.data(), w.data(), bias, y.data(), c.rows, c.n, c.k, format, isa);
    EXPECT_TRUE(std::isnan(y.back())) << "written beyond the end";
    y.pop_back();
    return y;
  }
  // What each instruction set has to give: the scalar one's bits, or those of AMX's order. w: [n,
  // k].
  class Expected {
   public:
    Expected(const std::vector<bf16>& x, const std::vector<bf16>& w, const LinearCase& c)
        : in_pairs_(run(x, packed(w, c.n, c.k), nullptr, c, Isa::scalar)) {
      if (!isa_available(Isa::amx_bf16)) return;
      for (int64_t i = 0; i < c.rows * c.n; ++i) {
        in_tiles_.push_back(sum_of_tiles(x.data() + i / c.n * c.k, w.data() + i % c.n * c.k, c.k));
      }
    }
    const std::vector<float>& of(Isa isa) const {
      return isa == Isa::amx_bf16 ? in_tiles_ : in_pairs_;
    }

   private:
    static float sum_of_tiles(const bf16* x, const bf16* w, int64_t k) {
      const auto at = [k](const bf16* row, int64_t i) { return i < k ? to_float(row[i]) : 0.0f; };
      float sum = 0;
      for (int64_t begin = 0; begin < k; begin += 2 * kTilePairs) {
        float even = 0, odd = 0;
        for (int64_t i = begin; i < begin + 2 * kTilePairs; i += 2) {
          even = fma_f32(at(x, i), at(w, i), even);
          odd = fma_f32(at(x, i + 1), at(w, i + 1), odd);
        }
        sum += even + odd;
      }
      return sum;
    }

    std::vector<float> in_pairs_, in_tiles_;
  };

  // One of each order: the best that is in all machines' order, and AMX where there is one.
  static std::set<Isa> one_of_each_order() { return {select_isa(), available_isas().back()}; }
};

// A chain of k fmas errs by at most k roundings of a partial sum, each at most sum |x w|; the bias
// adds one more.
TEST_F(LinearTest, IsCloseToDouble) {
  for (const LinearCase& c : kLinearCases) {
    const auto x = random_bf16(c.rows * c.k);
    const auto w = random_bf16(c.n * c.k);
    const auto bias = random_f32(c.n);
    std::vector<std::vector<float>> found;
    for (Isa isa : one_of_each_order()) {
      found.push_back(run(x, packed(w, c.n, c.k), bias.data(), c, isa));
    }
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t o = 0; o < c.n; o += 1 + c.n / 4096) {
        double exact = bias[o];
        double norm = std::abs(bias[o]);
        for (int64_t i = 0; i < c.k; ++i) {
          const double term = double{to_float(x[r * c.k + i])} * to_float(w[o * c.k + i]);
          exact += term;
          norm += std::abs(term);
        }
        for (const auto& y : found) {
          ASSERT_NEAR(y[r * c.n + o], exact, (c.k + 2) * kRoundF32 * norm)
              << c.rows << " x " << c.n << " x " << c.k << ", row " << r << ", output " << o;
        }
      }
    }
  }
}

// All but AMX are in one order, so these bits are the same.
TEST_F(LinearTest, EveryIsaGivesTheBitsOfItsOrder) {
  for (const LinearCase& c : kLinearCases) {
    const auto x = random_bf16(c.rows * c.k);
    const auto w = random_bf16(c.n * c.k);
    const auto packed_w = packed(w, c.n, c.k);
    const Expected expected(x, w, c);
    for (Isa isa : available_isas()) {
      EXPECT_TRUE(same_bits(run(x, packed_w, nullptr, c, isa), expected.of(isa)))
          << isa_name(isa) << ": " << c.rows << " x " << c.n << " x " << c.k;
    }
  }
}

// On every instruction set, AMX too, the scalar set's product of the same matrix in bf16, scaled.
TEST_F(LinearTest, Int8IsTheScaledProductOfItsValues) {
  for (const LinearCase& c : kLinearCases) {
    const auto x = random_bf16(c.rows * c.k);
    const Int8Matrix w = random_int8(c.n, c.k);
    const auto bias = random_f32(c.n);
    auto expected = run(x, packed(w.values_bf16, c.n, c.k), nullptr, c, Isa::scalar);
    for (int64_t i = 0; i < c.rows * c.n; ++i) {
      expected[i] *= w.scales[i % c.n];
      expected[i] += bias[i % c.n];
    }
    const auto packed_w = packed(w, c.n, c.k);
    for (Isa isa : available_isas()) {
      EXPECT_TRUE(same_bits(run(x, packed_w, bias.data(), c, isa, WeightFormat::int8), expected))
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
    for (Isa isa : one_of_each_order()) {
      SCOPED_TRACE(isa_name(isa));
      const auto y = run(x, w, nullptr, c, isa);
      const auto y_shuffled = run(shuffled, w, nullptr, c, isa);
      for (int64_t i = 0; i < c.rows; ++i) {
        const std::vector<float> sums(y.begin() + order[i] * c.n, y.begin() + (order[i] + 1) * c.n);
        const std::vector<float> moved(y_shuffled.begin() + i * c.n,
                                       y_shuffled.begin() + (i + 1) * c.n);
        const std::vector<bf16> row(shuffled.begin() + i * c.k, shuffled.begin() + (i + 1) * c.k);
        EXPECT_TRUE(same_bits(moved, sums)) << c.rows << " rows, row " << order[i];
        EXPECT_TRUE(same_bits(run(row, w, nullptr, {1, c.n, c.k}, isa), sums))
            << c.rows << " rows, row " << order[i] << " alone";
      }
    }
  }
}

// 10^6 sums of three pairs, and 10^5 of as many behind two tiles of AMX. (linear uses
// vdpbf16ps, which the others reproduce, on AMD's processors.)
TEST_F(LinearTest, AnyBitsAreSummedAsDefined) {
  for (int round = 0; round < 17600; ++round) {
    const LinearCase c = {4, 16, round % 11 == 10 ? 4 * kTilePairs + 6 : 6};
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
    const Expected expected(x, w, c);
    for (Isa isa : available_isas()) {
      const auto y = run(x, packed_w, nullptr, c, isa);
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_TRUE(same_number(y[i], expected.of(isa)[i]))
            << isa_name(isa) << ": " << std::hexfloat << y[i] << ", expected "
            << expected.of(isa)[i];
      }
    }
  }
}

// Every tile that linear can choose, alone and sharing its panels, from zero and resumed; with each
// number of panels that a kernel takes side by side and one more, the last of them partly filled.
// What stands behind the outputs stays.
TEST_F(LinearTest, EveryTileGivesTheSameBits) {
  constexpr int64_t kPanels = 13, kMissing = 12;
  const int64_t n = kPanels * kPanelRows - kMissing, k = 300;
  const Int8Matrix values = random_int8(n, k);
  const auto w = packed(values.values_bf16, n, k), w_int8 = packed(values, n, k);
  const auto x = random_bf16(kMaxTileRows * k);
  const Expected expected(x, values.values_bf16, {kMaxTileRows, n, k});
  std::vector<float> y(kMaxTileRows * n);
  const auto check = [&](Isa isa, const TileKernels& kernels, bool few, int rows, int64_t count,
                         int64_t panels) {
    const int64_t num_outputs = panels * kPanelRows - kMissing;
    std::ranges::fill(y, -1.5f);
    std::vector<float> x_f32(kMaxTileRows * kFewRowsStride);
    std::vector<bf16> x_bf16(kMaxTileRows * kFewRowsStride);
    for (int64_t begin : {int64_t{0}, 4 * kTilePairs}) {
      const int64_t end = begin == 0 ? 4 * kTilePairs : 150;
      std::ranges::fill(x_f32, 0.0f);
      std::ranges::fill(x_bf16, bf16{});
      for (int64_t i = 0; i < rows * k; ++i) {
        const int64_t at = i / k * (few ? kFewRowsStride : kManyRowsStride) + i % k - 2 * begin;
        if (i % k < 2 * begin || i % k >= 2 * end) continue;
        x_f32[at] = to_float(x[i]);
        x_bf16[at] = x[i];
      }
      LinearTile tile;
      tile.x = kernels.x_is_f32 ? static_cast<const void*>(x_f32.data()) : x_bf16.data();
      tile.w = (kernels.pair_bytes == kPairBytes ? w : w_int8).data() + begin * kernels.pair_bytes;
      tile.w_stride = k / 2 * kernels.pair_bytes;
      tile.num_panels = panels;
      tile.num_pairs = end - begin;
      tile.y = y.data();
      tile.y_stride = n;
      tile.num_outputs = num_outputs;
      tile.resume = begin > 0;
      tile.index = count - 1;
      tile.count = count;
      (few ? kernels.few_rows : kernels.many_rows)[rows](tile);
    }
    bool same = true;
    for (int64_t i = 0; i < rows * n; ++i) {
      const float wanted = i % n < num_outputs ? expected.of(isa)[i] : -1.5f;
      same = same && std::memcmp(&y[i], &wanted, sizeof wanted) == 0;
    }
    return same;
  };
  const std::pair<Isa, const TileKernels*> all[] = {{Isa::scalar, &kTileScalar},
                                                    {Isa::avx2, &kTileAvx2},
                                                    {Isa::avx512, &kTileAvx512},
                                                    {Isa::avx512_bf16, &kTileAvx512Bf16},
                                                    {Isa::avx512_bf16, &kTileAvx512Bf16Far},
                                                    {Isa::amx_bf16, &kTileAmxBf16},
                                                    {Isa::scalar, &kTileScalarInt8},
                                                    {Isa::avx2, &kTileAvx2Int8},
                                                    {Isa::avx512, &kTileAvx512Int8}};
  for (const auto& [isa, kernels] : all) {
    if (!isa_available(isa)) continue;
    for (int rows = 1; rows <= kernels->max_rows; ++rows) {
      for (bool few : {false, true}) {
        if (few && rows > kFewRows) continue;
        for (int64_t count : {1, 3}) {
          for (int64_t panels = 1; panels <= kPanels; ++panels) {
            EXPECT_TRUE(check(isa, *kernels, few, rows, count, panels))
                << isa_name(isa) << ", " << kernels->pair_bytes << " bytes a pair, " << rows
                << " rows, one of " << count << ", " << panels << " panels";
          }
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
  std::vector<std::byte> parts(packed_bytes(37, k, WeightFormat::bf16));
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
