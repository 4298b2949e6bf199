// What the kernels of attention share: a pass's arguments, and how a query's splits become its
// result.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/ptx.cuh"

namespace outrider::cuda {

constexpr int kSplitWarps = 8;
constexpr int kSplitThreads = kSplitWarps * kWarp;

// A split's part of a query's sums: sum is Σ 2^(score - maximum).
struct SplitState {
  float maximum;
  float sum;
};

struct AttentionPass {
  const float* qkv;
  const bf16* k_pages;
  const bf16* v_pages;
  RowPointers map;
  AttentionShape shape;
  int qkv_width;  // elements from row to row
  float scale;    // of scores: log2(e) / sqrt(head_dim)
  int rows;
  int rows_per_group;  // that one block takes
  int heads_per_group;
  int max_splits;
  SplitState* states;  // [rows, num_heads, max_splits]
  float* values;       // [rows, num_heads, max_splits, head_dim]: Σ 2^(score - maximum) v

  __device__ const int32_t* table(int row) const {
    return map.page_tables + map.sequences[row] * map.max_pages;
  }
};

// Neighbouring rows of a sequence, and heads of a KV head.
struct QueryGroup {
  int first_row, num_rows;
  int first_head, num_heads;
  int inverse;  // 65536 / num_heads, rounded up: divides what is small
  int kv_head;
  int context;  // positions that the longest of them sees

  __device__ int num_queries() const { return num_rows * num_heads; }
  __device__ int row(int query) const { return first_row + (query * inverse >> 16); }
  __device__ int head(int query) const {
    return first_head + query - (query * inverse >> 16) * num_heads;
  }
};

constexpr int kMergeLanes = 16;  // for a query

// What kMergeLanes lanes make of a query's splits up to `position`: zeros where that is -1. A lane
// has pairs of elements, 2 * kMergeLanes apart. All lanes of the warp call.
template <int kPairs>
__device__ void merge_splits(const AttentionPass& pass, int query, int position, bf16* y) {
  const int lane = threadIdx.x % kMergeLanes;
  const int head_dim = static_cast<int>(pass.shape.head_dim);
  const int num_splits = position < 0 ? 0 : position / kSplitTokens + 1;
  const SplitState* states = pass.states + query * pass.max_splits;
  const auto* values =
      reinterpret_cast<const float2*>(pass.values + query * pass.max_splits * head_dim) + lane;
  float maximum = -INFINITY;
#pragma unroll 1
  for (int i = lane; i < num_splits; i += kMergeLanes) {
    maximum = fmaxf(maximum, states[i].maximum);
  }
#pragma unroll
  for (int distance = kMergeLanes / 2; distance > 0; distance /= 2) {
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, distance));
  }
  float sum = 0.0f;
  float2 total[kPairs] = {};
#pragma unroll 8
  for (int split = 0; split < num_splits; ++split, values += head_dim / 2) {
    const SplitState state = states[split];
    const float scale = exp2_approximate(state.maximum - maximum);
    sum += state.sum * scale;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      if (2 * (lane + pair * kMergeLanes) >= head_dim) continue;
      const float2 value = values[pair * kMergeLanes];
      total[pair].x += value.x * scale;
      total[pair].y += value.y * scale;
    }
  }
  const float scale = num_splits > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    const int element = 2 * (lane + pair * kMergeLanes);
    if (element >= head_dim) continue;
    *reinterpret_cast<uint32_t*>(y + query * head_dim + element) =
        narrow_pair(total[pair].x * scale, total[pair].y * scale);
  }
}

}  // namespace outrider::cuda
