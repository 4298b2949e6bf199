#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_few.cuh"
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

constexpr int kMergeWarps = 4;

// Merges each query's splits. Grid: queries, kMergeLanes lanes each.
__global__ void __launch_bounds__(kMergeWarps* kWarp) merge_kernel(AttentionPass pass, bf16* y) {
  wait_for_earlier_kernels();
  const int num_heads = static_cast<int>(pass.shape.num_heads);
  const int query = (blockIdx.x * kMergeWarps * kWarp + threadIdx.x) / kMergeLanes;
  const int last = pass.rows * num_heads - 1;  // lanes that have none do its once more
  const int mine = min(query, last);
  merge_splits<kMaxHeadDim / 2 / kMergeLanes>(pass, mine, pass.map.positions[mine / num_heads], y);
}

// Cuts a pass into groups of up to `queries` queries, and these into shares. Returns the grid.
dim3 deal_out(AttentionPass& pass, int64_t queries, int64_t blocks) {
  const AttentionShape& shape = pass.shape;
  pass.heads_per_group = static_cast<int>(std::min(shape.group_size, queries));
  pass.rows_per_group = static_cast<int>(std::max<int64_t>(queries / shape.group_size, 1));
  const int64_t groups = divide_up(pass.rows, pass.rows_per_group) * shape.num_kv_heads *
                         divide_up(shape.group_size, pass.heads_per_group);
  // Each row of a group may be of another sequence.
  const int64_t most_splits = pass.max_splits * std::min<int64_t>(pass.rows, pass.rows_per_group);
  return dim3(groups, std::clamp<int64_t>(blocks / groups, 1, most_splits));
}

template <int kChunks, bool kWhole>
void launch_split(AttentionPass pass, cudaStream_t stream) {
  const dim3 grid = deal_out(pass, kGroupQueries<kChunks>, kBlocksWanted);
  const size_t shared_bytes = kGroupQueries<kChunks> / kTileQueries * sizeof(QueryTile<kChunks>);
  launch_overlapped(split_kernel<kChunks, kWhole>, grid, kSplitThreads, shared_bytes, stream, pass);
}

template <bool kWhole>
void launch_splits(const AttentionPass& pass, cudaStream_t stream) {
  if (pass.shape.head_dim <= 64) {
    launch_split<2, kWhole>(pass, stream);
  } else if (pass.shape.head_dim <= 96) {
    launch_split<3, kWhole>(pass, stream);
  } else if (pass.shape.head_dim <= 128) {
    launch_split<4, kWhole>(pass, stream);
  } else {
    launch_split<8, kWhole>(pass, stream);
  }
}

// Blocks to spare: each reads keys for one tile of queries. One wave of them, but on sm_80.
template <int kChunks>
void launch_few(FewRows few, int64_t num_multiprocessors, cudaStream_t stream) {
  const dim3 grid = deal_out(few.pass, kTileQueries, kFewBlocks<kChunks> * num_multiprocessors);
  CHECK(grid.x <= kFewCounters);
  launch_overlapped(few_kernel<kChunks>, grid, kSplitThreads, 0, stream, few);
}

bool is_whole(const AttentionShape& shape) { return shape.head_dim % kBlockElements == 0; }

// `rows` from the first on, that see up to `context` positions.
AttentionPass make_pass(const float* qkv, const bf16* k_pages, const bf16* v_pages, void* workspace,
                        RowPointers map, int64_t rows, int64_t context, AttentionShape shape) {
  AttentionPass pass = {};
  pass.qkv = qkv;
  pass.k_pages = k_pages;
  pass.v_pages = v_pages;
  pass.map = map;
  pass.shape = shape;
  pass.qkv_width = static_cast<int>(shape.qkv_width());
  pass.scale = static_cast<float>(M_LOG2E / std::sqrt(static_cast<double>(shape.head_dim)));
  pass.rows = static_cast<int>(rows);
  pass.max_splits = static_cast<int>(divide_up(context, kSplitTokens));
  pass.values = static_cast<float*>(workspace);
  pass.states = reinterpret_cast<SplitState*>(pass.values + rows * shape.num_heads *
                                                                pass.max_splits * shape.head_dim);
  return pass;
}

}  // namespace

void rope_and_cache(float* qkv, const float* cos_table, const float* sin_table, bf16* k_pages,
                    bf16* v_pages, RowPointers map, int64_t rows, AttentionShape shape,
                    cudaStream_t stream) {
  const RopePass pass = {qkv,     cos_table, sin_table, k_pages,
                         v_pages, map,       shape,     shape.qkv_width()};
  launch_overlapped(rope_kernel,
                    dim3(rows, divide_up(shape.num_heads + shape.num_kv_heads, kRopeWarps)),
                    kRopeWarps * kWarp, 0, stream, pass);
}

size_t attention_workspace_bytes(int64_t rows, int64_t context, AttentionShape shape) {
  return rows * shape.num_heads * divide_up(context, kSplitTokens) * split_bytes(shape);
}

void attention(const float* qkv, const bf16* k_pages, const bf16* v_pages, bf16* y, void* workspace,
               size_t workspace_bytes, RowPointers map, int64_t rows, int64_t context,
               AttentionShape shape, cudaStream_t stream) {
  const int64_t most_rows = workspace_bytes / attention_workspace_bytes(1, context, shape);
  CHECK(most_rows > 0);  // or the loop would not end
  for (int64_t first = 0; first < rows; first += most_rows) {
    RowPointers of_pass = map;
    of_pass.positions += first;
    of_pass.sequences += first;
    const AttentionPass pass =
        make_pass(qkv + first * shape.qkv_width(), k_pages, v_pages, workspace, of_pass,
                  std::min(most_rows, rows - first), context, shape);
    (is_whole(shape) ? launch_splits<true> : launch_splits<false>)(pass, stream);
    launch_overlapped(
        merge_kernel, divide_up(pass.rows * shape.num_heads * kMergeLanes, kMergeWarps * kWarp),
        kMergeWarps * kWarp, 0, stream, pass, y + first * shape.num_heads * shape.head_dim);
  }
}

void attention_of_few(const float* qkv, const float* cos_table, const float* sin_table,
                      bf16* k_pages, bf16* v_pages, bf16* y, void* workspace, unsigned* arrivals,
                      RowPointers map, int64_t rows, bool reads_early, AttentionShape shape,
                      int64_t num_multiprocessors, cudaStream_t stream) {
  CHECK(rows <= kFewRows && is_whole(shape) && shape.head_dim <= kFewMaxHeadDim);
  const FewRows few = {
      make_pass(qkv, k_pages, v_pages, workspace, map, rows, map.max_pages * kPageTokens, shape),
      cos_table,
      sin_table,
      k_pages,
      v_pages,
      y,
      arrivals,
      reads_early};
  if (shape.head_dim <= 64) {
    launch_few<2>(few, num_multiprocessors, stream);
  } else if (shape.head_dim <= 96) {
    launch_few<3>(few, num_multiprocessors, stream);
  } else {
    launch_few<4>(few, num_multiprocessors, stream);
  }
}

}  // namespace outrider::cuda
