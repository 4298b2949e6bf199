#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_rope.cuh"
#include "kernels/cuda/attention_split.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"

namespace outrider::cuda {
namespace {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int64_t kBlocksWanted = 512;  // of split_kernel: some waves of a large GPU

int64_t split_bytes(AttentionShape shape) {
  return sizeof(SplitState) + shape.head_dim * sizeof(float);
}

// Merges a query's splits in order. Grid: rows by heads; a thread for each element.
__global__ void merge_kernel(AttentionPass pass, bf16* y) {
  wait_for_earlier_kernels();
  const int64_t head_dim = pass.shape.head_dim;
  const int64_t query = int64_t{blockIdx.x} * pass.shape.num_heads + blockIdx.y;
  const int element = threadIdx.x;
  if (element >= head_dim) return;
  const int position = pass.map.positions[blockIdx.x];
  const SplitState* states = pass.states + query * pass.max_splits;
  const float* values = pass.values + query * pass.max_splits * head_dim + element;
  SplitState total = {-INFINITY, 0.0f};
  float value = 0.0f;
#pragma unroll 4
  for (int split = 0; split * kSplitTokens <= position; ++split) {
    const SplitState state = states[split];
    const float maximum = fmaxf(total.maximum, state.maximum);
    const float before = exp2f(total.maximum - maximum);
    const float now = exp2f(state.maximum - maximum);
    total = {maximum, total.sum * before + state.sum * now};
    value = value * before + values[split * head_dim] * now;
  }
  y[query * head_dim + element] = narrow(position < 0 ? 0.0f : value / total.sum);
}

template <int kChunks>
void launch_split(AttentionPass pass, cudaStream_t stream) {
  const AttentionShape& shape = pass.shape;
  const int64_t queries = kGroupQueries<kChunks>;
  pass.heads_per_group = static_cast<int>(std::min(shape.group_size, queries));
  pass.rows_per_group = static_cast<int>(std::max<int64_t>(queries / shape.group_size, 1));
  const int64_t groups = divide_up(pass.rows, pass.rows_per_group) * shape.num_kv_heads *
                         divide_up(shape.group_size, pass.heads_per_group);
  // Each row of a group may be of another sequence.
  const int64_t most_splits = pass.max_splits * std::min<int64_t>(pass.rows, pass.rows_per_group);
  const int64_t shares = std::clamp<int64_t>(kBlocksWanted / groups, 1, most_splits);
  const size_t shared_bytes = queries / kTileQueries * sizeof(QueryTile<kChunks>);
  const bool whole = shape.head_dim % kBlockElements == 0;
  launch_overlapped(whole ? split_kernel<kChunks, true> : split_kernel<kChunks, false>, dim3(groups, shares),
         kSplitThreads, shared_bytes, stream, pass);
}

void launch_pass(const AttentionPass& pass, bf16* y, cudaStream_t stream) {
  if (pass.shape.head_dim <= 64) {
    launch_split<2>(pass, stream);
  } else if (pass.shape.head_dim <= 96) {
    launch_split<3>(pass, stream);
  } else if (pass.shape.head_dim <= 128) {
    launch_split<4>(pass, stream);
  } else {
    launch_split<8>(pass, stream);
  }
  launch_overlapped(merge_kernel, dim3(pass.rows, pass.shape.num_heads),
         divide_up(pass.shape.head_dim, kWarp) * kWarp, 0, stream, pass, y);
}

}  // namespace

void rope_and_cache(float* qkv, const float* cos_table, const float* sin_table, bf16* k_pages,
                    bf16* v_pages, RowPointers map, int64_t rows, AttentionShape shape,
                    cudaStream_t stream) {
  const RopePass pass = {qkv,     cos_table, sin_table, k_pages,
                         v_pages, map,       shape,     shape.qkv_width()};
  launch_overlapped(rope_kernel, dim3(rows, divide_up(shape.num_heads + shape.num_kv_heads, kRopeWarps)),
         kRopeWarps * kWarp, 0, stream, pass);
}

size_t attention_workspace_bytes(int64_t rows, int64_t max_pages, AttentionShape shape) {
  return rows * shape.num_heads * divide_up(max_pages, kSplitPages) * split_bytes(shape);
}

void attention(const float* qkv, const bf16* k_pages, const bf16* v_pages, bf16* y, void* workspace,
               size_t workspace_bytes, RowPointers map, int64_t rows, AttentionShape shape,
               cudaStream_t stream) {
  AttentionPass pass = {};
  pass.k_pages = k_pages;
  pass.v_pages = v_pages;
  pass.shape = shape;
  pass.qkv_width = shape.qkv_width();
  pass.scale = static_cast<float>(M_LOG2E / std::sqrt(static_cast<double>(shape.head_dim)));
  pass.max_splits = static_cast<int>(divide_up(map.max_pages, kSplitPages));
  pass.values = static_cast<float*>(workspace);
  const int64_t most_rows = workspace_bytes / attention_workspace_bytes(1, map.max_pages, shape);
  CHECK(most_rows > 0);  // or the loop would not end
  for (int64_t first = 0; first < rows; first += pass.rows) {
    pass.rows = static_cast<int>(std::min(most_rows, rows - first));
    pass.qkv = qkv + first * pass.qkv_width;
    pass.map = map;
    pass.map.positions += first;
    pass.map.sequences += first;
    pass.states = reinterpret_cast<SplitState*>(pass.values + pass.rows * shape.num_heads *
                                                                  pass.max_splits * shape.head_dim);
    launch_pass(pass, y + first * shape.num_heads * shape.head_dim, stream);
  }
}

}  // namespace outrider::cuda
