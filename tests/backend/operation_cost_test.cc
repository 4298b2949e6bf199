// Costs that can be worked out by hand.
#include "backend/operation_cost.h"

#include <gtest/gtest.h>

#include "backend/roofline.h"
#include "comm/exchange_cost.h"

namespace outrider {
namespace {

TEST(OperationCost, ALinearReadsItsWeightsOnce) {
  const OperationCost cost = linear_cost(5, 1024, 512, false);
  EXPECT_EQ(cost.weight_bytes, 1024 * 512 * 2);
  EXPECT_EQ(cost.activation_bytes, 5 * (512 * 2 + 1024 * 4));
  EXPECT_EQ(cost.flops, 2 * 5 * 1024 * 512);
  EXPECT_EQ(linear_cost(1, 17, 33, true).weight_bytes, 32 * 64 * 2 + 17 * 4);
}

// A byte a weight, a scale and a bias an output; cuBLASLt has no part in it.
TEST(OperationCost, ALinearOf8BitsReadsAByteAWeight) {
  const auto of = [](int64_t rows, Numerics numerics) {
    return linear_cost(rows, 17, 33, true, numerics, WeightFormat::int8);
  };
  EXPECT_EQ(of(1, Numerics::exact).weight_bytes, 32 * 64 + 17 * 4 + 17 * 4);
  EXPECT_EQ(of(kFastLinearMinRows, Numerics::fast), of(kFastLinearMinRows, Numerics::exact));
  EXPECT_EQ(of(1, Numerics::exact).flops, linear_cost(1, 17, 33, true).flops);
  const auto activated = [](Numerics numerics) {
    return linear_activated_cost(kFastLinearMinRows, 8, 33, false, Activation::swiglu, numerics,
                                 WeightFormat::int8);
  };
  EXPECT_EQ(activated(Numerics::fast), activated(Numerics::exact));
  EXPECT_EQ(activated(Numerics::exact).weight_bytes, 16 * 64 + 16 * 4);
}

// The product itself stays where it was made.
TEST(OperationCost, AnActivatedLinearWritesTheActivationAlone) {
  const OperationCost gated = linear_activated_cost(5, 512, 1024, false, Activation::swiglu);
  const OperationCost product = linear_cost(5, 1024, 1024, false);
  EXPECT_EQ(gated.weight_bytes, product.weight_bytes);
  EXPECT_EQ(gated.flops, product.flops);
  EXPECT_EQ(gated.launches, 1);
  EXPECT_EQ(gated.activation_bytes, 5 * (1024 * 2 + 512 * 2));
  const OperationCost alone = linear_activated_cost(5, 512, 1024, true, Activation::gelu_tanh);
  EXPECT_EQ(alone.weight_bytes, 512 * 1024 * 2 + 512 * 4);
  EXPECT_EQ(alone.activation_bytes, 5 * (1024 * 2 + 512 * 2));
}

// Of many rows: in the checkpoint's order, with an activation that is a kernel of its own.
TEST(OperationCost, FastNumericsAreCuBlasLts) {
  const auto fast = [](int64_t rows) {
    return linear_activated_cost(rows, 8, 33, false, Activation::swiglu, Numerics::fast);
  };
  const int64_t few = kFastLinearMinRows - 1, many = kFastLinearMinRows;
  EXPECT_EQ(fast(few), linear_activated_cost(few, 8, 33, false, Activation::swiglu));
  EXPECT_EQ(fast(many).launches, 2);
  EXPECT_EQ(fast(many).weight_bytes, 16 * 33 * 2);
  EXPECT_EQ(fast(many).activation_bytes, many * (33 * 2 + 2 * 16 * 4 + 8 * 2));
  const OperationCost product = linear_cost(many, 16, 33, true, Numerics::fast);
  EXPECT_EQ(product.launches, 1);
  EXPECT_EQ(product.weight_bytes, 16 * 33 * 2 + 16 * 4);
}

TEST(OperationCost, ANormReadsAndWritesTheSumThatItMakes) {
  EXPECT_EQ(rms_norm_cost(3, 64, false).activation_bytes, 3 * 64 * (4 + 2));
  EXPECT_EQ(rms_norm_cost(3, 64, true).activation_bytes, 3 * 64 * (4 + 4 + 4 + 2));
  EXPECT_EQ(layer_norm_cost(3, 64, true).weight_bytes, 2 * 64 * 2);
}

TEST(OperationCost, RowsOfASequenceReadItsCacheTogether) {
  const AttentionShape shape = {.num_heads = 8, .num_kv_heads = 2, .head_dim = 64, .group_size = 4};
  const int64_t position_bytes = 2 * 2 * 64 * 2;  // keys and values
  EXPECT_EQ(attention_cost({1, 1, 99, 0}, 1024, shape).kv_bytes, 100 * position_bytes);
  EXPECT_EQ(attention_cost({1, 5, 99, 3}, 1024, shape).kv_bytes, 104 * position_bytes);
  EXPECT_EQ(attention_cost({3, 5, 99, 0}, 1024, shape).kv_bytes, 3 * 104 * position_bytes);
  EXPECT_EQ(attention_cost({1, 1, 99, 0}, 1024, shape).flops, 4 * 100 * 8 * 64);
}

// A long context leaves room for few rows at once.
TEST(OperationCost, AttentionGoesInPiecesWhereItsScratchIsFull) {
  const AttentionShape shape = {
      .num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .group_size = 4};
  constexpr int64_t kCounterBytes = 4096 * 4, kMost = int64_t{128} << 20;
  const auto row_bytes = [&](int64_t positions) { return positions / 128 * 32 * (8 + 4 * 128); };
  const int64_t at_once = kMost / row_bytes(32768);
  EXPECT_EQ(attention_cost({1, at_once, 32000, 0}, 32768, shape).launches, 2);
  EXPECT_EQ(attention_cost({1, at_once + 1, 32000, 0}, 32768, shape).launches, 4);
  EXPECT_EQ(cuda_attention_scratch_bytes(2, 32768, shape), kCounterBytes + 2 * row_bytes(32768));
  EXPECT_EQ(cuda_attention_scratch_bytes(512, 32768, shape), kCounterBytes + kMost);
}

// A page table for more than the rows see takes no room away from them.
TEST(OperationCost, AttentionGoesInAsFewPiecesAsItsContextAllows) {
  const AttentionShape shape = {
      .num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .group_size = 4};
  for (const int64_t max_positions : {4096, 131072}) {
    EXPECT_EQ(attention_cost({1, 256, 1000, 0}, max_positions, shape).launches, 2);
  }
  EXPECT_EQ(attention_cost({1, 256, 7936, 0}, 131072, shape).launches, 2);
  EXPECT_EQ(attention_cost({1, 256, 7937, 0}, 131072, shape).launches, 2 * 4);
  EXPECT_EQ(attention_cost({1, 256, 130816, 0}, 131072, shape).launches, 2 * 16);
  EXPECT_EQ(attention_cost({32, 5, 1000, 0}, 131072, shape).launches, 2);
}

// Few rows get the scratch that they take, so that a step that verifies is one kernel a layer here.
TEST(OperationCost, FewRowsAttendInOneKernelWhateverTheirContext) {
  const AttentionShape shape = {
      .num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .group_size = 4};
  for (const int64_t rows : {1, 5, 16}) {
    EXPECT_EQ(rope_and_attend_cost({1, rows, 0, 0}, 131072, shape, true).launches, 1) << rows;
  }
  EXPECT_EQ(rope_and_attend_cost({1, 17, 0, 0}, 1024, shape, true).launches, 3);
  EXPECT_EQ(cuda_attention_scratch_bytes(512, 131072, shape),
            4096 * 4 + 16 * (131072 / 128) * 32 * (8 + 4 * 128));
}

// By hand: q, k and v are read, k and v written to the cache, y written, and a split's part of each
// head written and read.
TEST(OperationCost, AttendingInOneKernelReadsAndWritesEverythingOnce) {
  const AttentionShape shape = {.num_heads = 9, .num_kv_heads = 3, .head_dim = 64, .group_size = 3};
  constexpr int64_t kQ = 9 * 64, kKv = 2 * 3 * 64, kPart = 9 * (8 + 4 * 64);
  for (const bool rotates : {false, true}) {
    const auto cost = rope_and_attend_cost({.sequences = 1, .each = 3, .context = 0, .padding = 1},
                                           256, shape, rotates);
    // Of the padding, q and y: attention looks at all rows.
    EXPECT_EQ(cost.activation_bytes, 3 * (kQ + kKv) * 4 + kQ * 4 + 4 * kQ * 2 + 3 * 2 * kPart);
    EXPECT_EQ(cost.kv_bytes, 3 * kKv * 2 + 3 * kKv * 2);
  }
}

TEST(OperationCost, PaddedRows) {
  const int64_t rows[][2] = {{1, 1},  {2, 2},   {3, 4},   {4, 4},    {5, 8},    {8, 8},
                             {9, 16}, {17, 32}, {64, 64}, {65, 128}, {129, 192}};
  for (const auto& [real, padded] : rows) EXPECT_EQ(cuda_padded_rows(real), padded);
}

TEST(OperationCost, PaddedContexts) {
  EXPECT_EQ(cuda_padded_context(16, 100000), INT64_MAX);
  const int64_t contexts[][2] = {{0, 2048}, {2048, 2048}, {2049, 8192}, {131072, 131072}};
  for (const auto& [real, padded] : contexts) EXPECT_EQ(cuda_padded_context(17, real), padded);
}

TEST(ExchangeCost, CountsWhatARankReceives) {
  EXPECT_EQ(all_reduce_sum_cost(1, 1000), ExchangeCost{});
  EXPECT_EQ(all_reduce_sum_cost(2, 1000), (ExchangeCost{1, 4000, 1}));
  EXPECT_EQ(all_reduce_sum_cost(8, 1000), (ExchangeCost{1, 7 * 4000, 2}));
  EXPECT_EQ(all_reduce_sum_cost(8, 1000, Numerics::fast), (ExchangeCost{1, 7000, 1}));
  const int64_t large = kGatherMaxFloats + 32;
  EXPECT_EQ(all_reduce_sum_cost(8, large), (ExchangeCost{2, 2 * 7 * large * 4 / 8, 3}));
  const ExchangeCost uneven{3, 2 * 7 * large * 4 / 8 + 7 * 31 * 4, 5};  // a gathered rest
  EXPECT_EQ(all_reduce_sum_cost(8, large + 31), uneven);
  EXPECT_EQ(all_gather_cost(4, 72), (ExchangeCost{1, 3 * 72, 1}));
  EXPECT_EQ(all_gather_cost(1, 72), ExchangeCost{});
}

TEST(Roofline, IsTheLargerOfBytesAndOperations) {
  const GpuModel* gpu = find_gpu_model("h200");
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(find_gpu_model("H20"), nullptr);
  const OperationCost bytes = {.weight_bytes = 4'800'000'000, .flops = 1000};
  EXPECT_DOUBLE_EQ(roofline(*gpu, bytes, {}, 0).seconds(), 1e-3);
  const OperationCost flops = {.weight_bytes = 1000, .flops = 989'500'000'000};
  EXPECT_DOUBLE_EQ(roofline(*gpu, flops, {}, 0).seconds(), 1e-3);
  const ExchangeCost exchanges = {10, 450'000'000, 10};
  EXPECT_DOUBLE_EQ(roofline(*gpu, flops, exchanges, 1e-5).seconds(), 1e-3 + 1e-3 + 1e-4);
}

}  // namespace
}  // namespace outrider
