// rope_and_cache: a warp takes one head of one row.
#pragma once

#include "kernels/cuda/attention_pages.cuh"

namespace outrider::cuda {

constexpr int kRopeWarps = 4;  // of a block

struct RopePass {
  float* qkv;
  const float* cos_table;
  const float* sin_table;
  bf16* k_pages;
  bf16* v_pages;
  RowPointers map;
  AttentionShape shape;
  int64_t qkv_width;  // elements from row to row
};

// Rotates elements lane, lane + 32, … of each half of a head, in place.
__device__ inline void rotate_head(float* head, const float* cos_row, const float* sin_row,
                                   int half) {
  for (int i = threadIdx.x % kWarp; i < half; i += kWarp) {
    const float a = head[i];
    const float b = head[i + half];
    head[i] = a * cos_row[i] - b * sin_row[i];
    head[i + half] = b * cos_row[i] + a * sin_row[i];
  }
}

// Writes a token's key and value. What is not finite is kept out of the sums of rows that do not
// see the token: the value is zero in its place, and the key says NaN.
__device__ inline void cache_token(const float* k, const float* v, bf16* k_page, bf16* v_page,
                                   int token, int head_dim) {
  constexpr bf16 kNan = {0x7fc0};
  const auto is_finite = [](bf16 x) { return (x.bits & 0x7f80u) != 0x7f80u; };
  bool finite = true;
  __syncwarp();  // k was rotated by other lanes
  for (int i = threadIdx.x % kWarp; i < head_dim; i += kWarp) {
    const bf16 value = narrow(v[i]);
    v_page[value_index(token, i, head_dim)] = is_finite(value) ? value : bf16{};
    finite = finite && is_finite(value) && is_finite(narrow(k[i]));
  }
  finite = __all_sync(kAllLanes, finite);
  for (int i = threadIdx.x % kWarp; i < head_dim; i += kWarp) {
    k_page[token * head_dim + i] = finite ? narrow(k[i]) : kNan;
  }
}

// Grid: rows by groups of kRopeWarps heads, those of q and then those of k.
__global__ void rope_kernel(RopePass pass) {
  wait_for_earlier_kernels();
  const AttentionShape& shape = pass.shape;
  const int64_t row = blockIdx.x;
  const int64_t head = blockIdx.y * kRopeWarps + threadIdx.x / kWarp;
  const int64_t position = pass.map.positions[row];
  if (position < 0 || head >= shape.num_heads + shape.num_kv_heads) return;
  const int head_dim = static_cast<int>(shape.head_dim);
  const int half = head_dim / 2;
  float* const qkv = pass.qkv + row * pass.qkv_width;
  float* const rotated = qkv + head * head_dim;
  if (pass.cos_table != nullptr) {
    rotate_head(rotated, pass.cos_table + position * half, pass.sin_table + position * half, half);
  }
  if (head < shape.num_heads) return;
  const int64_t kv_head = head - shape.num_heads;
  const int32_t* table = pass.map.page_tables + pass.map.sequences[row] * pass.map.max_pages;
  const int64_t page = table[position / kTokens];
  const int64_t offset = (page * shape.num_kv_heads + kv_head) * kTokens * head_dim;
  cache_token(rotated, rotated + shape.num_kv_heads * head_dim, pass.k_pages + offset,
              pass.v_pages + offset, static_cast<int>(position % kTokens), head_dim);
}

}  // namespace outrider::cuda
