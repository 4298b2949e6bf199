#include "backend/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "core/float_environment.h"

namespace outrider {
namespace {

class CpuBackendTest : public testing::Test {
 protected:
  CpuBackendTest() { set_float_environment(); }

  // A tensor of 0, 1, 2, …: small integers, so sums are exact.
  template <typename T>
  TensorView counting(std::initializer_list<int64_t> extents) {
    const TensorView view = zeros<T>(extents);
    for (int64_t i = 0; i < view.size(); ++i) {
      if constexpr (std::is_same_v<T, bf16>) {
        view.data<T>()[i] = to_bf16(static_cast<float>(i % 32));
      } else {
        view.data<T>()[i] = static_cast<T>(i % 32);
      }
    }
    return view;
  }
  template <typename T>
  TensorView zeros(std::initializer_list<int64_t> extents) {
    int64_t size = 1;
    for (int64_t extent : extents) size *= extent;
    buffers_.push_back(backend_->allocate(size * sizeof(T)));
    return buffers_.back().view(dtype_of<T>(), extents);
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  std::vector<Buffer> buffers_;
  Stream stream_;
};

using CpuBackendDeathTest = CpuBackendTest;

TEST_F(CpuBackendTest, DescribesItsInstructionSet) {
  setenv("OUTRIDER_CPU_ISA", "scalar", 1);
  EXPECT_EQ(make_cpu_backend()->description(), "cpu/scalar");
  unsetenv("OUTRIDER_CPU_ISA");
  EXPECT_EQ(make_cpu_backend()->description(),
            "cpu/" + std::string(cpu::isa_name(cpu::select_isa())));
}

TEST_F(CpuBackendTest, TellsWhereItPackedAndPacksElsewhereFromThenOn) {
  const TensorView rows = counting<bf16>({48, 10});
  const PackedWeight first = backend_->pack(std::span(&rows, 1), WeightFormat::bf16);
  const PackedWeight second = backend_->pack(std::span(&rows, 1), WeightFormat::bf16);
  const auto memory = backend_->packed_memory();
  ASSERT_EQ(memory.size(), 1u);
  EXPECT_EQ(memory[0].size(), kHugePage);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory[0].data()) % kHugePage, 0u);
  const auto lies_in = [](const PackedWeight& weight, std::span<std::byte> span) {
    const auto* data = static_cast<const std::byte*>(weight.data.data());
    return span.data() <= data && data + weight.data.bytes() <= span.data() + span.size();
  };
  EXPECT_TRUE(lies_in(first, memory[0]));
  EXPECT_TRUE(lies_in(second, memory[0]));

  EXPECT_TRUE(backend_->packed_memory().empty());
  const PackedWeight third = backend_->pack(std::span(&rows, 1), WeightFormat::bf16);
  EXPECT_FALSE(lies_in(third, memory[0]));
  const auto later = backend_->packed_memory();
  ASSERT_EQ(later.size(), 1u);
  EXPECT_TRUE(lies_in(third, later[0]));
}

TEST_F(CpuBackendTest, TellsOfEachChunkThatItPackedInto) {
  const TensorView rows = zeros<bf16>({20480, 1024});  // 40 MiB, so two do not fit into 64
  const PackedWeight first = backend_->pack(std::span(&rows, 1), WeightFormat::bf16);
  const PackedWeight second = backend_->pack(std::span(&rows, 1), WeightFormat::bf16);
  const auto memory = backend_->packed_memory();
  ASSERT_EQ(memory.size(), 2u);
  EXPECT_EQ(memory[0].data(), first.data.data());
  EXPECT_EQ(memory[1].data(), second.data.data());
  for (const std::span<std::byte> chunk : memory) EXPECT_EQ(chunk.size(), 40u << 20);
}

TEST_F(CpuBackendTest, CopiesBothWays) {
  const TensorView view = zeros<float>({2, 3});
  const std::vector<float> in = {1, 2, 3, 4, 5, 6};
  std::vector<float> out(6);
  backend_->copy_from_host(view, in.data(), stream_);
  backend_->copy_to_host(out.data(), view, stream_);
  backend_->synchronize(stream_);
  EXPECT_EQ(out, in);
}

TEST_F(CpuBackendTest, LinearOverStackedParts) {
  const TensorView source = counting<bf16>({40, 10});
  // Rows 0 … 18 and 19 … 39 of columns 2 … 8: two strided parts of an [n, k] = [40, 7] matrix.
  const TensorView columns = source.slice(1, 2, 9);
  const TensorView parts[] = {columns.rows(0, 19), columns.rows(19, 40)};
  const PackedWeight weight = backend_->pack(parts, WeightFormat::bf16);
  EXPECT_EQ(weight.n, 40);
  EXPECT_EQ(weight.k, 7);
  const TensorView x = counting<bf16>({3, 7});
  const TensorView bias = counting<float>({40});
  const TensorView y = zeros<float>({3, 40});
  for (bool with_bias : {false, true}) {
    backend_->linear(weight, x, with_bias ? bias : TensorView(), y, stream_);
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t o = 0; o < 40; ++o) {
        float expected = with_bias ? bias.data<float>()[o] : 0.0f;
        for (int64_t i = 0; i < 7; ++i) {
          expected +=
              to_float(x.data<bf16>()[r * 7 + i]) * to_float(source.data<bf16>()[o * 10 + 2 + i]);
        }
        EXPECT_EQ(y.data<float>()[r * 40 + o], expected) << "row " << r << ", output " << o;
      }
    }
  }
}

TEST_F(CpuBackendTest, EmbedsItsShardOfTheVocabulary) {
  const TensorView table = counting<bf16>({20, 6});
  const PackedWeight packed = backend_->pack({&table, 1}, WeightFormat::bf16);
  const TensorView tokens = zeros<int32_t>({3});
  tokens.data<int32_t>()[0] = 19;   // another rank's
  tokens.data<int32_t>()[1] = 100;  // the first
  tokens.data<int32_t>()[2] = 119;  // the last
  const TensorView y = counting<float>({3, 6});
  backend_->embed(packed, tokens, 100, y, stream_);
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(y.data<float>()[i], 0.0f);
    EXPECT_EQ(y.data<float>()[6 + i], to_float(table.data<bf16>()[i]));
    EXPECT_EQ(y.data<float>()[12 + i], to_float(table.data<bf16>()[19 * 6 + i]));
  }
}

TEST_F(CpuBackendTest, GathersRows) {
  const TensorView x = counting<bf16>({4, 3});
  const TensorView indices = zeros<int32_t>({2});
  indices.data<int32_t>()[0] = 3;
  const TensorView y = zeros<bf16>({2, 3});
  backend_->gather_rows(x, indices, y, stream_);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(to_float(y.data<bf16>()[i]), 9.0f + i);
    EXPECT_EQ(to_float(y.data<bf16>()[3 + i]), 0.0f + i);
  }
}

// Columns of a wider matrix, from one place to another.
TEST_F(CpuBackendTest, GathersRowsOfColumns) {
  const TensorView x = counting<bf16>({4, 5}), y = zeros<bf16>({2, 4});
  const TensorView indices = zeros<int32_t>({2});
  indices.data<int32_t>()[1] = 2;
  backend_->gather_rows(x.slice(1, 3, 5), indices, y.slice(1, 1, 3), stream_);
  const float expected[] = {0, 3, 4, 0, 0, 13, 14, 0};
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(to_float(y.data<bf16>()[i]), expected[i]) << i;
}

TEST_F(CpuBackendTest, NormOfASum) {
  const TensorView x = zeros<float>({1, 4});
  for (int64_t i = 0; i < 4; ++i) x.data<float>()[i] = 2.0f;
  const TensorView weight = counting<bf16>({4});
  const TensorView y = zeros<bf16>({1, 4});
  backend_->rms_norm(x, {}, weight, 0.0f, y, stream_);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(to_float(y.data<bf16>()[i]), static_cast<float>(i));
  const TensorView sum = zeros<float>({1, 4});
  backend_->rms_norm(sum, x, weight, 0.0f, y, stream_);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(sum.data<float>()[i], 2.0f);
    EXPECT_EQ(to_float(y.data<bf16>()[i]), static_cast<float>(i));
  }
}

// Gates of 2 and ups of 3, out of one row of x and of rows that are not packed evenly.
TEST_F(CpuBackendTest, LinearActivated) {
  const TensorView w = zeros<bf16>({6, 1});
  for (int64_t i = 0; i < 6; ++i) w.data<bf16>()[i] = to_bf16(i < 3 ? 2.0f : 3.0f);
  const TensorView x = zeros<bf16>({1, 1});
  x.data<bf16>()[0] = to_bf16(1.0f);
  const TensorView bias = zeros<float>({6});
  bias.data<float>()[5] = 1.0f;
  const TensorView parts[] = {w.rows(0, 2), w.rows(2, 6)};
  const PackedWeight gate_up = backend_->pack_gate_up(parts, WeightFormat::bf16);
  const TensorView y = zeros<bf16>({1, 3});
  backend_->reserve_activation(1, 6);
  backend_->linear_activated(gate_up, x, bias, Activation::swiglu, y, stream_);
  const double silu = 2.0 / (1.0 + std::exp(-2.0));
  for (int64_t i = 0; i < 3; ++i) {
    const double exact = silu * (i < 2 ? 3.0 : 4.0);
    EXPECT_NEAR(to_float(y.data<bf16>()[i]), exact, exact * 0x1p-8) << i;
  }
  const TensorView all = zeros<bf16>({1, 6});
  backend_->linear_activated(backend_->pack(parts, WeightFormat::bf16), x, {},
                             Activation::gelu_tanh, all, stream_);
  EXPECT_NEAR(to_float(all.data<bf16>()[5]), 2.99595, 3 * 0x1p-8);
}

TEST_F(CpuBackendDeathTest, AnActivationThatWasNotReservedIsABug) {
  const TensorView w = counting<bf16>({4, 6});
  const PackedWeight gate_up = backend_->pack_gate_up({&w, 1}, WeightFormat::bf16);
  const TensorView x = zeros<bf16>({2, 6}), y = zeros<bf16>({2, 2});
  EXPECT_DEATH(backend_->linear_activated(gate_up, x, {}, Activation::swiglu, y, stream_),
               "CHECK failed");
}

// With one token in the cache, attention gives its value; a longer page table needs more scratch,
// and without any it is a bug.
TEST_F(CpuBackendDeathTest, AttentionOverOneToken) {
  const AttentionShape shape = {2, 1, 4, 2, 0};
  const TensorView cosine = zeros<float>({64, 2});
  for (int64_t i = 0; i < 128; ++i) cosine.data<float>()[i] = 1.0f;
  const TensorView sine = zeros<float>({64, 2});
  const TensorView k = zeros<bf16>({4, 1, kPageTokens, 4});
  const TensorView v = zeros<bf16>({4, 1, kPageTokens, 4});
  for (int64_t max_pages : {1, 4}) {
    const RowMap map = {zeros<int32_t>({1}), zeros<int32_t>({1}), zeros<int32_t>({1, max_pages})};
    map.page_tables.data<int32_t>()[0] = 2;
    const TensorView qkv = counting<float>({1, 16});
    const TensorView y = zeros<bf16>({1, 8});
    backend_->rope_and_cache(qkv, cosine, sine, k, v, map, shape, stream_);
    EXPECT_EQ(to_float(k.data<bf16>()[2 * kPageTokens * 4 + 1]), 9.0f);
    if (max_pages == 1) {
      EXPECT_DEATH(backend_->attention(qkv, k, v, y, map, shape, stream_), "CHECK failed");
    }
    backend_->reserve_attention(1, max_pages * kPageTokens, shape);
    backend_->attention(qkv, k, v, y, map, shape, stream_);
    for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(to_float(y.data<bf16>()[i]), 12.0f + i % 4);
  }
}

TEST_F(CpuBackendDeathTest, WrongShapesAreBugs) {
  const TensorView w = counting<bf16>({4, 6});
  const PackedWeight weight = backend_->pack({&w, 1}, WeightFormat::bf16);
  const TensorView x = counting<bf16>({2, 6});
  const TensorView y = zeros<float>({2, 4});
  EXPECT_DEATH(backend_->linear(weight, counting<bf16>({2, 5}), {}, y, stream_), "CHECK failed");
  EXPECT_DEATH(backend_->linear(weight, counting<float>({2, 6}), {}, y, stream_), "CHECK failed");
  EXPECT_DEATH(backend_->linear(weight, x, {}, zeros<float>({3, 4}), stream_), "CHECK failed");
  EXPECT_DEATH(backend_->linear(weight, x, zeros<float>({5}), y, stream_), "CHECK failed");
  const PackedWeight gate_up = backend_->pack_gate_up({&w, 1}, WeightFormat::bf16);
  EXPECT_DEATH(backend_->linear(gate_up, x, {}, y, stream_), "CHECK failed");
  const TensorView half = zeros<bf16>({2, 2}), all = zeros<bf16>({2, 4});
  backend_->reserve_activation(2, 4);
  EXPECT_DEATH(backend_->linear_activated(weight, x, {}, Activation::swiglu, half, stream_),
               "CHECK failed");
  EXPECT_DEATH(backend_->linear_activated(gate_up, x, {}, Activation::gelu_tanh, all, stream_),
               "CHECK failed");
  EXPECT_DEATH(backend_->linear_activated(gate_up, x, {}, Activation::swiglu, all, stream_),
               "CHECK failed");
  const TensorView indices = zeros<int32_t>({2});
  indices.data<int32_t>()[1] = 2;
  EXPECT_DEATH(backend_->gather_rows(x, indices, zeros<bf16>({2, 6}), stream_), "CHECK failed");
  EXPECT_DEATH(backend_->gather_rows(x, zeros<int32_t>({2}), zeros<bf16>({3, 6}), stream_),
               "CHECK failed");
  EXPECT_DEATH(backend_->gather_rows(x, zeros<int32_t>({2}), zeros<bf16>({2, 5}), stream_),
               "CHECK failed");
  EXPECT_DEATH(backend_->embed(gate_up, zeros<int32_t>({2}), 0, zeros<float>({2, 6}), stream_),
               "CHECK failed");
}

// Of what a norm reads and writes: by one row, by a whole view, and by a row of a wider dtype.
TEST_F(CpuBackendDeathTest, NormsOfOverlappingViewsAreBugs) {
  const TensorView weight = zeros<bf16>({6});
  const TensorView all = zeros<float>({5, 6}), y = zeros<bf16>({2, 6});
  const TensorView x = all.rows(0, 2), next = all.rows(2, 4);
  backend_->rms_norm(x, next, weight, 1e-5f, y, stream_);
  EXPECT_DEATH(backend_->rms_norm(x, all.rows(1, 3), weight, 1e-5f, y, stream_), "CHECK failed");
  EXPECT_DEATH(backend_->layer_norm(x, x, weight, weight, 1e-5f, y, stream_), "CHECK failed");
  for (const int64_t row : {0, 1, 2, 3}) {
    const TensorView within(all.rows(row, row + 1).raw(), DType::bf16, {2, 6});
    EXPECT_DEATH(backend_->rms_norm(x, next, weight, 1e-5f, within, stream_), "CHECK failed");
  }
}

}  // namespace
}  // namespace outrider
