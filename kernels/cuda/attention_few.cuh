// attention_of_few: rotation, the write into the cache, attention and the merge of splits by the
// blocks that need them. What earlier passes left, keys and values among it, is in registers before
// the kernel before this one is over, where nothing else was left there since.
#pragma once

#include "kernels/cuda/attention_pages.cuh"
#include "kernels/cuda/attention_pass.cuh"
#include "kernels/cuda/attention_rope.cuh"
#include "kernels/cuda/attention_split.cuh"
#include "kernels/cuda/ptx.cuh"

namespace outrider::cuda {

struct FewRows {
  AttentionPass pass;
  const float* cos_table;  // or null
  const float* sin_table;
  bf16* k_pages;
  bf16* v_pages;
  bf16* y;
  unsigned* arrivals;  // of a group's shares; zero before and after
  bool reads_early;
};

// Whether the row's key and value are among those of the group's split.
__device__ inline bool is_new(const AttentionPass& pass, const QueryGroup& group, int split,
                              int row) {
  return row < pass.rows && pass.map.positions[row] >= 0 &&
         pass.map.positions[row] / kSplitTokens == split &&
         pass.map.sequences[row] == pass.map.sequences[group.first_row];
}

__device__ inline bool has_new_rows(const AttentionPass& pass, const QueryGroup& group, int split) {
  return __any_sync(kAllLanes, is_new(pass, group, split, threadIdx.x % kWarp));
}

constexpr int kRowLanes = kSplitThreads / static_cast<int>(kFewRows);

// What one row, of kRowLanes lanes, has to write. Other blocks may write the same bytes: those
// whose queries see them.
template <int kChunks>
using NewToken = TokenToCache<kRowLanes, kChunks * 16 / kRowLanes>;

template <int kChunks>
__device__ NewToken<kChunks> new_token(const FewRows& few, const HeadPages& pages,
                                       const QueryGroup& group, int split) {
  const AttentionPass& pass = few.pass;
  const int row = threadIdx.x / kRowLanes;
  NewToken<kChunks> token = {};
  token.there = is_new(pass, group, split, row);
  if (!token.there) return token;
  const int position = pass.map.positions[row];
  const int page = pass.table(row)[position / kTokens];
  const int64_t offset =
      int64_t{page} * (pages.page_bytes / 2) + group.kv_head * kTokens * pages.head_dim;
  token.k = pass.qkv + row * pass.qkv_width +
            (static_cast<int>(pass.shape.num_heads) + group.kv_head) * pages.head_dim;
  token.v = token.k + static_cast<int>(pass.shape.num_kv_heads) * pages.head_dim;
  token.k_page = few.k_pages + offset;
  token.v_page = few.v_pages + offset;
  token.token = position % kTokens;
  token.head_dim = pages.head_dim;
  token.rotates = few.cos_table != nullptr;
  const int64_t angle = int64_t{position} * (pages.head_dim / 2);
  token.load_angles(few.cos_table + angle, few.sin_table + angle);
  return token;
}

// Eight elements of the query that this thread lays out, rotated as the others are (rotated_lower,
// rotated_upper).
template <int kChunks>
struct QueryPart {
  int query = threadIdx.x / (kChunks * 4);
  int chunk = threadIdx.x / 4 % kChunks;
  bool there = false, rotates = false, upper = false;
  float elements[kChunk] = {}, others[kChunk];
  const float* cosines;
  const float* sines;

  __device__ void load(const FewRows& few, const QueryGroup& group) {
    const AttentionPass& pass = few.pass;
    const int head_dim = static_cast<int>(pass.shape.head_dim), half = head_dim / 2;
    const int first = chunk * 32 + threadIdx.x % 4 * kChunk;
    there = query < group.num_queries() && first < head_dim;
    if (!there) return;
    const int row = group.row(query);
    const float* head = pass.qkv + row * pass.qkv_width + group.head(query) * head_dim;
    load_elements<true>(head, first, head_dim, elements);
    rotates = few.cos_table != nullptr;
    if (!rotates) return;
    upper = first >= half;
    const int other = upper ? first - half : first + half;
    load_elements<true>(head, other, head_dim, others);
    const int64_t angle = int64_t{max(pass.map.positions[row], 0)} * half + min(first, other);
    cosines = few.cos_table + angle;
    sines = few.sin_table + angle;
  }

  __device__ void lay_out(QueryTile<kChunks>& tile) {
    if (query >= kTileQueries) return;
    if (rotates) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        elements[i] = upper ? rotated_upper(others[i], elements[i], cosines[i], sines[i])
                            : rotated_lower(elements[i], others[i], cosines[i], sines[i]);
      }
    }
    cuda::lay_out(elements, query, chunk, threadIdx.x % 4, tile);
  }
};

template <int kChunks>
__device__ void merge_group(const FewRows& few, const BlockShare& share) {
  const int num_heads = share.last_head - share.first_head;
  const int num_queries = (share.last_row - share.first_row) * num_heads;
  static_assert(kSplitThreads / kMergeLanes == kTileQueries);
  const int i = min(static_cast<int>(threadIdx.x) / kMergeLanes, num_queries - 1);
  const int row = share.first_row + i / num_heads;
  const int query =
      row * static_cast<int>(few.pass.shape.num_heads) + share.first_head + i % num_heads;
  merge_splits<kChunks * 16 / kMergeLanes>(few.pass, query, few.pass.map.positions[row], few.y);
}

// Blocks that are made for a multiprocessor: two where keys are short. From sm_89 on it has
// registers for both at once; on sm_80, which would spill if it were held to them, they come one by
// one.
template <int kChunks>
constexpr int kFewBlocks = kChunks <= 2 ? 2 : 1;

// Grid: as split_kernel, with groups of one tile.
template <int kChunks>
__global__ void __launch_bounds__(kSplitThreads) few_kernel(FewRows few) {
  static_assert(kChunks <= kHeldChunks);  // in registers, with a block of v a warp
  __shared__ SplitShared shared;
  __shared__ QueryTile<kChunks> tile;
  const AttentionPass& pass = few.pass;
  if (!few.reads_early) wait_for_earlier_kernels();
  const BlockShare share(pass);
  const HeadPages pages = share.pages(pass);
  const int warp = threadIdx.x / kWarp;
  SplitWalk walk(pass, share);
  uint4 keys[kChunks][kWarpGroups];
  uint4 values[kSplitPages];
  while (share.has_heads() && walk.advance()) {
    const QueryGroup& group = walk.group;
    const int split = walk.split;
    const int my_page = page_of_lane(pass, group, split);
    const auto load = [&] {
      load_keys<kChunks, true>(pages, my_page, 0, keys);
      load_all_values<true>(pages, my_page, warp, values);
    };
    load();
    const LaneQueries queries(pass, group, 0);
    const bool grows = has_new_rows(pass, group, split);
    NewToken<kChunks> token = {};
    if (grows) token = new_token<kChunks>(few, pages, group, split);
    wait_for_earlier_kernels();
    QueryPart<kChunks> query;
    query.load(few, group);
    if (grows) {
      token.load();
      token.store();
      __syncthreads();
      load();
    }
    query.lay_out(tile);
    __syncthreads();
    float scores[kWarpGroups][4] = {};
    score<kChunks, kChunks>(tile, 0, keys, scores);
    finish_tile<kChunks>(pass, group, 0, split, queries, scores, values, shared);
  }
  wait_for_earlier_kernels();  // where there was no split
  if (!share.has_heads()) return;
  if (is_last_block(&few.arrivals[blockIdx.x], gridDim.y)) merge_group<kChunks>(few, share);
}

}  // namespace outrider::cuda
