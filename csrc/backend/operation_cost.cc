#include "backend/operation_cost.h"

#include <algorithm>
#include <cstdint>

#include "kernels/verify_types.h"

namespace outrider {

namespace {

constexpr int64_t kFloat = 4;  // bytes
constexpr int64_t kBf16 = 2;
constexpr int64_t kToken = 4;

// kernels/cuda/linear.h
constexpr int64_t kPanelRows = 16;
constexpr int64_t kStepK = 32;
// kernels/cuda/attention.h: positions of a split, bytes of its maximum and sum.
constexpr int64_t kSplitTokens = 128;
constexpr int64_t kSplitStateBytes = 2 * kFloat;
constexpr int64_t kFewRows = 16, kFewMaxHeadDim = 128, kFewCounters = 4096;
// kernels/cuda/summary.cuh: tokens of a row that a block looks at, from a multiple of four, bytes
// of what it finds, and of the count of a row's blocks.
constexpr int64_t kChunkTokens = 1024;
constexpr int64_t kMostBeforeChunk = 3;
constexpr int64_t kChunkStateBytes = 32;
constexpr int64_t kArrivalsBytes = 4;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t split_bytes(const AttentionShape& shape) {
  return shape.num_heads * (kSplitStateBytes + shape.head_dim * kFloat);
}

int64_t row_scratch_bytes(int64_t context, const AttentionShape& shape) {
  return divide_up(context, kSplitTokens) * split_bytes(shape);
}

// Of as many of the rows as have room.
int64_t partial_results_bytes(int64_t rows, int64_t max_positions, const AttentionShape& shape) {
  const int64_t of_row = row_scratch_bytes(max_positions, shape);
  return std::min(rows * of_row, std::max(kFewRows * of_row, kAttentionScratchBytes));
}

}  // namespace

OperationCost& OperationCost::operator+=(const OperationCost& other) {
  weight_bytes += other.weight_bytes;
  kv_bytes += other.kv_bytes;
  activation_bytes += other.activation_bytes;
  flops += other.flops;
  launches += other.launches;
  return *this;
}

int64_t cuda_padded_rows(int64_t rows) {
  if (rows <= 2) return rows;
  const int64_t step = rows <= 8 ? 4 : rows <= 64 ? 16 : 64;
  return divide_up(rows, step) * step;
}

int64_t cuda_padded_context(int64_t rows, int64_t context) {
  if (rows <= kFewRows) return INT64_MAX;
  int64_t padded = 2048;
  while (padded < context) padded *= 4;
  return padded;
}

int64_t cuda_packed_bytes(int64_t n, int64_t k, WeightFormat format) {
  const int64_t elements = divide_up(n, kPanelRows) * kPanelRows * divide_up(k, kStepK) * kStepK;
  return format == WeightFormat::int8 ? elements + n * kFloat : elements * kBf16;
}

OperationCost copy_tokens_cost(int64_t n) {
  return {.activation_bytes = n * 2 * kToken, .launches = 1};
}

OperationCost embed_cost(int64_t rows, int64_t hidden) {
  return {.weight_bytes = rows * hidden * kBf16,
          .activation_bytes = rows * (hidden * kFloat + kToken),
          .launches = 1};
}

OperationCost linear_cost(int64_t rows, int64_t n, int64_t k, bool bias, Numerics numerics,
                          WeightFormat format) {
  const bool fast = cuda_linear_is_fast(rows, numerics, format);
  return {.weight_bytes =
              (fast ? n * k * kBf16 : cuda_packed_bytes(n, k, format)) + (bias ? n * kFloat : 0),
          .activation_bytes = rows * (k * kBf16 + n * kFloat),
          .flops = 2 * rows * n * k,
          .launches = 1};
}

OperationCost linear_activated_cost(int64_t rows, int64_t width, int64_t k, bool bias,
                                    Activation activation, Numerics numerics, WeightFormat format) {
  const int64_t n = num_inputs(activation) * width;
  OperationCost cost = linear_cost(rows, n, k, bias, numerics, format);
  if (cuda_linear_is_fast(rows, numerics,
                          format)) {  // the product is written, read again and activated
    cost.activation_bytes += rows * (n * kFloat + width * kBf16);
    cost.launches += 1;
  } else {
    cost.activation_bytes = rows * (k + width) * kBf16;
  }
  return cost;
}

// A sum is read and written in the same pass.
OperationCost rms_norm_cost(int64_t rows, int64_t hidden, bool adds) {
  return {.weight_bytes = hidden * kBf16,
          .activation_bytes = rows * hidden * ((adds ? 3 : 1) * kFloat + kBf16),
          .launches = 1};
}

OperationCost layer_norm_cost(int64_t rows, int64_t hidden, bool adds) {
  OperationCost cost = rms_norm_cost(rows, hidden, adds);
  cost.weight_bytes *= 2;  // and a bias
  return cost;
}

OperationCost gather_rows_cost(int64_t rows, int64_t hidden) {
  return {.activation_bytes = rows * (2 * hidden * kBf16 + kToken), .launches = 1};
}

OperationCost expand_logits_cost(int64_t rows, int64_t num_scored, int64_t vocab_size) {
  return {.activation_bytes = rows * (num_scored + vocab_size) * kFloat + num_scored * kToken,
          .launches = 1};
}

OperationCost table_logits_cost(int64_t rows, int64_t vocab_size) {
  return {.activation_bytes = rows * vocab_size * kFloat, .launches = 1};
}

OperationCost rope_and_cache_cost(const AttendingRows& rows, const AttentionShape& shape,
                                  bool rotates) {
  const int64_t kv = 2 * shape.num_kv_heads * shape.head_dim;
  const int64_t in_place = (shape.num_heads + shape.num_kv_heads) * shape.head_dim;
  const int64_t real = rows.sequences * rows.each;
  return {.kv_bytes = real * kv * kBf16,
          .activation_bytes = real * (rotates ? shape.qkv_width() + in_place : kv) * kFloat,
          .launches = 1};
}

int64_t cuda_attention_parts(int64_t rows, int64_t context, int64_t max_positions,
                             const AttentionShape& shape) {
  if (rows == 0) return 0;
  const int64_t of_row = row_scratch_bytes(std::min(context, max_positions), shape);
  return divide_up(rows, partial_results_bytes(rows, max_positions, shape) / of_row);
}

OperationCost attention_cost(const AttendingRows& rows, int64_t max_positions,
                             const AttentionShape& shape) {
  int64_t positions = 0, splits = 0;  // that the rows of a sequence see together
  for (int64_t i = 0; i < rows.each; ++i) {
    positions += rows.context + i + 1;
    splits += divide_up(rows.context + i + 1, kSplitTokens);
  }
  const int64_t width = shape.num_heads * shape.head_dim;
  const int64_t context = cuda_padded_context(rows.rows(), rows.context + rows.each);
  // q is read, y is written; a row's splits are written and read again.
  const int64_t row_bytes = width * (kFloat + kBf16);
  return {.kv_bytes = rows.sequences * (rows.context + rows.each) * 2 * shape.num_kv_heads *
                      shape.head_dim * kBf16,
          .activation_bytes =
              rows.rows() * row_bytes + rows.sequences * splits * 2 * split_bytes(shape),
          .flops = 4 * rows.sequences * positions * width,
          .launches = 2 * cuda_attention_parts(rows.rows(), context, max_positions, shape)};
}

bool cuda_attends_in_one(int64_t rows, const AttentionShape& shape) {
  return rows <= kFewRows && shape.head_dim % 16 == 0 && shape.head_dim <= kFewMaxHeadDim &&
         rows * std::max(shape.num_heads, shape.num_kv_heads) <= kFewCounters;
}

int64_t attending_in_one_saves_bytes(int64_t rows, const AttentionShape& shape, bool rotates) {
  const int64_t heads = 2 * shape.num_heads + shape.num_kv_heads;
  return rotates ? rows * heads * shape.head_dim * kFloat : 0;
}

OperationCost rope_and_attend_cost(const AttendingRows& rows, int64_t max_positions,
                                   const AttentionShape& shape, bool rotates) {
  OperationCost cost = rope_and_cache_cost(rows, shape, rotates);
  cost += attention_cost(rows, max_positions, shape);
  if (!cuda_attends_in_one(rows.rows(), shape)) return cost;
  cost.activation_bytes -= attending_in_one_saves_bytes(rows.sequences * rows.each, shape, rotates);
  cost.launches = 1;
  return cost;
}

int64_t cuda_activation_scratch_bytes(int64_t max_rows, int64_t n, Numerics numerics) {
  return cuda_linear_is_fast(max_rows, numerics) ? max_rows * n * kFloat : 0;
}

int64_t cuda_attention_scratch_bytes(int64_t max_rows, int64_t max_positions,
                                     const AttentionShape& shape) {
  return kFewCounters * kArrivalsBytes + partial_results_bytes(max_rows, max_positions, shape);
}

int64_t cuda_verify_scratch_bytes(int64_t max_rows, int64_t vocab_size) {
  const int64_t chunks = divide_up(vocab_size + kMostBeforeChunk, kChunkTokens);
  return max_rows * chunks * kChunkStateBytes;
}

int64_t cuda_verify_arrivals_bytes(int64_t max_rows) { return max_rows * kArrivalsBytes; }

OperationCost sample_drafts_cost(int64_t rows, int64_t vocab_size, int64_t kept, bool all_greedy) {
  return {.activation_bytes = (rows + kept) * vocab_size * kFloat, .launches = all_greedy ? 1 : 3};
}

OperationCost verify_summary_cost(int64_t rows, int64_t num_slots, int64_t shard_size) {
  return {.activation_bytes = rows * shard_size * kFloat, .launches = num_slots > 0 ? 2 : 1};
}

OperationCost combine_and_accept_cost() { return {.launches = 1}; }

// One row of the target's logits, and one of the draft's.
OperationCost race_step_cost(int64_t sequences, int64_t shard_size) {
  return {.activation_bytes = 2 * sequences * shard_size * kFloat, .launches = 1};
}

OperationCost commit_step_cost() { return {.launches = 1}; }

OperationCost race_and_commit_cost(int64_t sequences, int64_t shard_size) {
  return race_step_cost(sequences, shard_size);
}

}  // namespace outrider
