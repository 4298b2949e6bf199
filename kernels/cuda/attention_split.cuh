// Attention over one split: a block of 8 warps weighs kSplitTokens positions for the queries (rows
// by heads) of neighbouring rows that share a sequence and a KV head, 16 queries at a time. Each
// warp scores 16 positions; then each sums its own 16 elements of a head over all positions.
#pragma once

#include "kernels/cuda/attention_pages.cuh"
#include "kernels/cuda/attention_pass.cuh"
#include "kernels/cuda/ptx.cuh"

namespace outrider::cuda {

constexpr int kSplitPages = kSplitTokens / kTokens;
constexpr int kWarpTokens = kSplitTokens / kSplitWarps;
constexpr int kWarpGroups = kWarpTokens / kMmaTokens;  // of 8 positions
constexpr int kTileQueries = 16;
constexpr int kHeldChunks = 4;  // of 32 elements of keys, in registers at a time

// kChunks: of 32 elements in a head.
template <int kChunks>
constexpr int kGroupQueries = kChunks <= 4 ? 64 : 32;

// 16 queries as left operands, for each chunk and each half of it.
template <int kChunks>
struct QueryTile {
  uint4 operands[kChunks][2][kWarp];  // [chunk][half][lane]
};

struct SplitShared {
  uint4 weights[kSplitPages][kWarp];        // left operands, a page each
  float maxima[kSplitWarps][kTileQueries];  // of each warp's positions
  float sums[kSplitWarps][kTileQueries];
};

// Elements first … first + 7 of a head, zeros from head_dim on. kWhole: all or none are there.
template <bool kWhole>
__device__ void load_elements(const float* head, int first, int head_dim, float (&to)[kChunk]) {
  if constexpr (kWhole) {
    const auto* from = reinterpret_cast<const float4*>(head + first);
    const float4 a = from[0], b = from[1];
    const float all[kChunk] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < kChunk; ++i) to[i] = all[i];
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) to[i] = first + i < head_dim ? head[first + i] : 0.0f;
  }
}

// Eight elements of a query, from 8 t of a chunk on, into their places.
template <int kChunks>
__device__ void lay_out(const float (&elements)[kChunk], int query, int chunk, int t,
                        QueryTile<kChunks>& tile) {
  auto* words = reinterpret_cast<uint32_t*>(tile.operands[chunk]);
#pragma unroll
  for (int j = 0; j < 4; ++j) {  // pairs of elements
    const int lane = query % 8 * 4 + t;
    const int word = j % 2 * 2 + query / 8;
    words[(j / 2 * kWarp + lane) * 4 + word] = narrow_pair(elements[2 * j], elements[2 * j + 1]);
  }
}

// Lays out all queries of a group.
template <int kChunks, bool kWhole>
__device__ void lay_out_queries(const AttentionPass& pass, const QueryGroup& group,
                                QueryTile<kChunks>* tiles) {
  const int head_dim = static_cast<int>(pass.shape.head_dim);
  const int num_tiles = (group.num_queries() + kTileQueries - 1) / kTileQueries;
  for (int i = threadIdx.x; i < num_tiles * kTileQueries * kChunks * 4; i += kSplitThreads) {
    const int query = i / (kChunks * 4);
    const int chunk = i / 4 % kChunks;
    const int t = i % 4;
    float elements[kChunk] = {};
    const int first = chunk * 32 + t * kChunk;
    if (query < group.num_queries() && first < head_dim) {
      const int row = group.row(query);
      load_elements<kWhole>(pass.qkv + row * pass.qkv_width + group.head(query) * head_dim, first,
                            head_dim, elements);
    }
    lay_out(elements, query % kTileQueries, chunk, t, tiles[query / kTileQueries]);
  }
}

__device__ inline void multiply(float (&sums)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  const uint32_t left[4] = {a.x, a.y, a.z, a.w};
  const uint32_t right[2] = {b0, b1};
  mma_m16n8k16(sums, left, right);
}

// kChunks of keys from chunk `first` on, for this warp's positions.
template <int kHeld, bool kWhole>
__device__ void load_keys(const HeadPages& pages, int my_page, int first,
                          uint4 (&keys)[kHeld][kWarpGroups]) {
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
#pragma unroll
  for (int group = 0; group < kWarpGroups; ++group) {
    const int token = group * kMmaTokens + lane / 4;
    const int page = __shfl_sync(kAllLanes, my_page,
                                 warp * (kWarpTokens / kTokens) + group * kMmaTokens / kTokens);
#pragma unroll
    for (int chunk = 0; chunk < kHeld; ++chunk) {
      keys[chunk][group] =
          load_key<kWhole>(pages, page, token % kTokens, (first + chunk) * 32 + lane % 4 * kChunk);
    }
  }
}

// One block of v at all of a split's positions.
template <bool kWhole>
__device__ void load_all_values(const HeadPages& pages, int my_page, int block,
                                uint4 (&values)[kSplitPages]) {
#pragma unroll
  for (int i = 0; i < kSplitPages; ++i) {
    values[i] = load_values<kWhole>(pages, __shfl_sync(kAllLanes, my_page, i), block);
  }
}

// Of a split, the page that a lane tells the others: behind the context, its last.
__device__ inline int page_of_lane(const AttentionPass& pass, const QueryGroup& group, int split) {
  const int entry = split * kSplitPages + static_cast<int>(threadIdx.x) % kSplitPages;
  return pass.table(group.first_row)[min(entry, (group.context - 1) / kTokens)];
}

// One chain over head_dim, for this warp's positions; keys of `first` … are in registers.
template <int kChunks, int kHeld>
__device__ void score(const QueryTile<kChunks>& queries, int first,
                      const uint4 (&keys)[kHeld][kWarpGroups], float (&scores)[kWarpGroups][4]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int chunk = 0; chunk < kHeld; ++chunk) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 q = queries.operands[first + chunk][half][lane];
#pragma unroll
      for (int group = 0; group < kWarpGroups; ++group) {
        const uint4& key = keys[chunk][group];
        multiply(scores[group], q, half == 0 ? key.x : key.z, half == 0 ? key.y : key.w);
      }
    }
  }
}

// The two queries of which a lane holds scores, 8 apart, and the last position that each sees.
struct LaneQueries {
  int last[2] = {-1, -1};

  LaneQueries() = default;
  __device__ LaneQueries(const AttentionPass& pass, const QueryGroup& group, int tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = tile * kTileQueries + i * 8 + threadIdx.x % kWarp / 4;
      last[i] = query < group.num_queries() ? pass.map.positions[group.row(query)] : -1;
    }
  }
};

// Scores of this warp's positions from `first` on are scaled -> maxima of those that a query sees.
__device__ inline void find_maxima(const LaneQueries& queries, int first, float scale,
                                   float (&scores)[kWarpGroups][4], SplitShared& shared) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int group = 0; group < kWarpGroups; ++group) {
#pragma unroll
    for (float& score : scores[group]) score *= scale;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float maximum = -INFINITY;
#pragma unroll
    for (int group = 0; group < kWarpGroups; ++group) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int position = first + group * kMmaTokens + lane % 4 * 2 + j;
        if (position <= queries.last[i]) maximum = fmaxf(maximum, scores[group][i * 2 + j]);
      }
    }
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 2));
    if (lane % 4 == 0) shared.maxima[threadIdx.x / kWarp][i * 8 + lane / 4] = maximum;
  }
}

__device__ inline float split_maximum(const SplitShared& shared, int query) {
  float maximum = shared.maxima[0][query];
#pragma unroll
  for (int warp = 1; warp < kSplitWarps; ++warp) {
    maximum = fmaxf(maximum, shared.maxima[warp][query]);
  }
  return maximum;
}

// Scores -> weights, zero where a query does not see, and their sum in this warp.
__device__ inline void weigh(const LaneQueries& queries, int first,
                             const float (&scores)[kWarpGroups][4], SplitShared& shared) {
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  uint32_t weights[2][kWarpGroups];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float maximum = split_maximum(shared, i * 8 + lane / 4);
    float sum = 0.0f;
#pragma unroll
    for (int group = 0; group < kWarpGroups; ++group) {
      const int position = first + group * kMmaTokens + lane % 4 * 2;
      const float* pair = &scores[group][i * 2];
      const float a = position <= queries.last[i] ? exp2_approximate(pair[0] - maximum) : 0.0f;
      const float b = position < queries.last[i] ? exp2_approximate(pair[1] - maximum) : 0.0f;
      weights[i][group] = narrow_pair(a, b);
      sum += widen_low(weights[i][group]);
      sum += widen_high(weights[i][group]);
    }
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    if (lane % 4 == 0) shared.sums[warp][i * 8 + lane / 4] = sum;
  }
#pragma unroll
  for (int page = 0; page < kWarpTokens / kTokens; ++page) {
    shared.weights[warp * (kWarpTokens / kTokens) + page][lane] =
        make_uint4(weights[0][2 * page], weights[1][2 * page], weights[0][2 * page + 1],
                   weights[1][2 * page + 1]);
  }
}

// Where a query's part of a split stands in the workspace, in splits.
__device__ inline int place_of(const AttentionPass& pass, const QueryGroup& group, int query,
                               int split) {
  const int row_head =
      group.row(query) * static_cast<int>(pass.shape.num_heads) + group.head(query);
  return row_head * pass.max_splits + split;
}

// Σ weight * value over the split for one block of elements -> the workspace.
__device__ inline void sum_values(const AttentionPass& pass, const QueryGroup& group, int tile,
                                  int split, int block, const LaneQueries& queries,
                                  const uint4 (&values)[kSplitPages], const SplitShared& shared) {
  const int lane = threadIdx.x % kWarp;
  const int head_dim = static_cast<int>(pass.shape.head_dim);
  if (block * kBlockElements >= head_dim) return;
  float sums[2][4] = {};
#pragma unroll
  for (int page = 0; page < kSplitPages; ++page) {
    const uint4 weights = shared.weights[page][lane];
    multiply(sums[0], weights, values[page].x, values[page].y);
    multiply(sums[1], weights, values[page].z, values[page].w);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (queries.last[i] < split * kSplitTokens) continue;
    const int query = tile * kTileQueries + i * 8 + lane / 4;
    float* out = pass.values + place_of(pass, group, query, split) * head_dim;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int element = block * kBlockElements + half * 8 + lane % 4 * 2;
      if (element >= head_dim) continue;
      *reinterpret_cast<float2*>(out + element) =
          make_float2(sums[half][i * 2], sums[half][i * 2 + 1]);
    }
  }
}

// maximum: of this thread's query of the tile.
__device__ inline void store_states(const AttentionPass& pass, const QueryGroup& group, int tile,
                                    int split, float maximum, const SplitShared& shared) {
  const int query = tile * kTileQueries + threadIdx.x;
  if (threadIdx.x >= kTileQueries || query >= group.num_queries()) return;
  if (pass.map.positions[group.row(query)] < split * kSplitTokens) return;
  float sum = 0.0f;
  for (int warp = 0; warp < kSplitWarps; ++warp) sum += shared.sums[warp][threadIdx.x];
  pass.states[place_of(pass, group, query, split)] = {maximum, sum};
}

// Scores -> what the split gives a tile's queries.
template <int kChunks>
__device__ void finish_tile(const AttentionPass& pass, const QueryGroup& group, int tile, int split,
                            const LaneQueries& queries, float (&scores)[kWarpGroups][4],
                            const uint4 (&values)[kSplitPages], SplitShared& shared) {
  const int warp = threadIdx.x / kWarp;
  const int first = split * kSplitTokens + warp * kWarpTokens;
  find_maxima(queries, first, pass.scale, scores, shared);
  __syncthreads();
  // The maxima are read between these barriers alone: behind the second, the next tile's begin.
  const float maximum = split_maximum(shared, threadIdx.x % kTileQueries);
  weigh(queries, first, scores, shared);
  __syncthreads();
  store_states(pass, group, tile, split, maximum, shared);
  sum_values(pass, group, tile, split, warp, queries, values, shared);
}

// One split of a group's context.
template <int kChunks, bool kWhole>
__device__ void attend_split(const AttentionPass& pass, const HeadPages& pages,
                             const QueryGroup& group, int split, QueryTile<kChunks>* tiles,
                             SplitShared& shared) {
  constexpr int kHeld = kChunks < kHeldChunks ? kChunks : kHeldChunks;
  constexpr int kBlocks = (kChunks * 2 + kSplitWarps - 1) / kSplitWarps;  // of v, for each warp
  const int warp = threadIdx.x / kWarp;
  const int num_tokens = group.context - split * kSplitTokens;  // of this split on
  const int my_page = page_of_lane(pass, group, split);
  lay_out_queries<kChunks, kWhole>(pass, group, tiles);
  __syncthreads();
  constexpr bool kOnce = kChunks <= kHeld && kBlocks == 1;  // keys and values stay in registers
  uint4 keys[kHeld][kWarpGroups];
  uint4 values[kSplitPages];
  for (int tile = 0; tile * kTileQueries < group.num_queries(); ++tile) {
    const LaneQueries queries(pass, group, tile);
    if (!kOnce || tile == 0) {
      load_keys<kHeld, kWhole>(pages, my_page, 0, keys);
      load_all_values<kWhole>(pages, my_page, warp, values);
    }
    float scores[kWarpGroups][4] = {};
    if (warp * kWarpTokens < num_tokens) {  // what nobody sees is not worth a score
      score<kChunks, kHeld>(tiles[tile], 0, keys, scores);
      if constexpr (kChunks > kHeld) {
        load_keys<kHeld, kWhole>(pages, my_page, kHeld, keys);
        score<kChunks, kHeld>(tiles[tile], kHeld, keys, scores);
      }
    }
    finish_tile<kChunks>(pass, group, tile, split, queries, scores, values, shared);
    if constexpr (kBlocks > 1) {
      load_all_values<kWhole>(pages, my_page, warp + kSplitWarps, values);
      sum_values(pass, group, tile, split, warp + kSplitWarps, queries, values, shared);
    }
  }
}

// What a block is there for: some rows of the pass, and heads that share a KV head.
struct BlockShare {
  int first_row, last_row;
  int first_head, last_head;  // none where a rank has not all of a group
  int kv_head;

  __device__ explicit BlockShare(const AttentionPass& pass) {
    const AttentionShape& shape = pass.shape;
    const int group_size = static_cast<int>(shape.group_size);
    const int head_groups = (group_size + pass.heads_per_group - 1) / pass.heads_per_group;
    const int num_kv_heads = static_cast<int>(shape.num_kv_heads);
    const int of_heads = static_cast<int>(blockIdx.x) / head_groups;
    const int head_group = static_cast<int>(blockIdx.x) % head_groups;
    kv_head = of_heads % num_kv_heads;
    first_row = of_heads / num_kv_heads * pass.rows_per_group;
    last_row = min(first_row + pass.rows_per_group, pass.rows);
    const int first_of_kv = kv_head * group_size - static_cast<int>(shape.head_offset);
    first_head = max(first_of_kv + head_group * pass.heads_per_group, 0);
    last_head =
        min(min(first_of_kv + (head_group + 1) * pass.heads_per_group, first_of_kv + group_size),
            static_cast<int>(shape.num_heads));
  }

  __device__ bool has_heads() const { return first_head < last_head; }
  __device__ HeadPages pages(const AttentionPass& pass) const {
    const int64_t page_head = kTokens * pass.shape.head_dim;
    return {pass.k_pages + kv_head * page_head, pass.v_pages + kv_head * page_head,
            static_cast<int>(pass.shape.num_kv_heads * page_head * sizeof(bf16)),
            static_cast<int>(pass.shape.head_dim)};
  }
};

// Goes through a block's splits: those of its rows' sequences are counted on, and dealt out to the
// blocks of gridDim.y.
class SplitWalk {
 public:
  __device__ SplitWalk(const AttentionPass& pass, const BlockShare& share)
      : pass_(pass), share_(share), row_(share.first_row), next_(blockIdx.y), num_splits_(0) {
    group.num_heads = max(share.last_head - share.first_head, 1);
    group.inverse = 65536 / group.num_heads + 1;
    group.first_head = share.first_head;
    group.kv_head = share.kv_head;
  }

  // The next one is `split` of `group`. False where there is none.
  __device__ bool advance() {
    for (; next_ >= num_splits_; begin_sequence()) {
      next_ -= num_splits_;
      if (row_ >= share_.last_row) return false;
    }
    split = next_;
    next_ += gridDim.y;
    return true;
  }

  QueryGroup group = {};
  int split = 0;

 private:
  __device__ void begin_sequence() {
    const RowPointers& map = pass_.map;
    group.first_row = row_;
    group.context = 0;
    while (row_ < share_.last_row && map.sequences[row_] == map.sequences[group.first_row]) {
      group.context = max(group.context, map.positions[row_] + 1);
      ++row_;
    }
    group.num_rows = row_ - group.first_row;
    num_splits_ = (group.context + kSplitTokens - 1) / kSplitTokens;
  }

  const AttentionPass& pass_;
  const BlockShare& share_;
  int row_;
  int next_;        // counted from the sequence's first split
  int num_splits_;  // of the sequence
};

// Blocks of a multiprocessor: two where they spill nothing.
template <int kChunks, bool kWhole>
constexpr int kSplitBlocks = kWhole&& kChunks <= 4 ? 2 : 1;

// Grid: (groups of rows, KV heads, groups of heads) by shares.
template <int kChunks, bool kWhole>
__global__ void __launch_bounds__(kSplitThreads, kSplitBlocks<kChunks, kWhole>)
    split_kernel(AttentionPass pass) {
  static_assert(kChunks <= kHeldChunks || kChunks == 2 * kHeldChunks);
  wait_for_earlier_kernels();
  __shared__ SplitShared shared;
  auto* tiles = dynamic_shared<QueryTile<kChunks>>();
  const BlockShare share(pass);
  if (!share.has_heads()) return;
  SplitWalk walk(pass, share);
  while (walk.advance()) {
    attend_split<kChunks, kWhole>(pass, share.pages(pass), walk.group, walk.split, tiles, shared);
  }
}

}  // namespace outrider::cuda
