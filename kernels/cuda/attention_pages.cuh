// Where keys and values stand in the pages (attention.h says in words), and how a warp fetches them
// as operands of mma.m16n8k16.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention_types.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/ptx.cuh"

namespace outrider::cuda {

constexpr int kTokens = kPageTokens;
constexpr int kMmaTokens = 8;       // positions in the right operand of a score
constexpr int kBlockElements = 16;  // of a head, in a block of v
constexpr int kChunk = 8;           // bf16 in 16 bytes

// One KV head's part of the pages.
struct HeadPages {
  const bf16* k;
  const bf16* v;
  int64_t page_stride;  // elements from page to page
  int head_dim;
};

// Where element i of the value at `token` of a page stands, from the head's start in the page.
__device__ inline int value_index(int token, int i, int head_dim) {
  if (head_dim % kBlockElements != 0) return token * head_dim + i;
  const int lane = i % 8 * 4 + token % 8 / 2;
  const int word = i % kBlockElements / 8 * 2 + token / 8;
  return i / kBlockElements * 256 + lane * kChunk + word * 2 + token % 2;
}

// Elements i … i + 7 of the key at `token`, zeros beyond head_dim. kWhole: head_dim is a multiple
// of 16. page < 0: zeros.
template <bool kWhole>
__device__ uint4 load_key(const HeadPages& pages, int page, int token, int i) {
  const bf16* key = pages.k + page * pages.page_stride + token * pages.head_dim;
  if constexpr (kWhole) {
    return load_16_where(key + i, page >= 0 && i < pages.head_dim);
  } else {
    if (page < 0) return make_uint4(0, 0, 0, 0);
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // head_dim is even
      const int at = i + 2 * j;
      words[j] =
          at < pages.head_dim ? key[at].bits | static_cast<uint32_t>(key[at + 1].bits) << 16 : 0u;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// This lane's part of a block of v, 16 elements at 16 positions: for each half of the elements the
// two words of a right operand. page < 0: zeros.
template <bool kWhole>
__device__ uint4 load_values(const HeadPages& pages, int page, int block) {
  const int lane = threadIdx.x % kWarp;
  const bf16* values = pages.v + page * pages.page_stride;
  const bool there = page >= 0 && block * kBlockElements < pages.head_dim;
  if constexpr (kWhole) {
    return load_16_where(values + block * 256 + lane * kChunk, there);
  } else {
    if (!there) return make_uint4(0, 0, 0, 0);
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = block * kBlockElements + j / 2 * 8 + lane / 4;
      const int token = lane % 4 * 2 + j % 2 * 8;
      words[j] = 0;
      if (i >= pages.head_dim) continue;
      const bf16* value = values + token * pages.head_dim + i;
      words[j] = pair_of(value[0], value[pages.head_dim]);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Zeros for all but the first `num_tokens` of a block's positions: what lies behind was never
// written, and weight zero is not enough.
__device__ inline void mask_values(uint4& values, int num_tokens) {
  if (num_tokens >= kTokens) return;
  const int lane = threadIdx.x % kWarp;
  uint32_t* const words[4] = {&values.x, &values.y, &values.z, &values.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int token = lane % 4 * 2 + j % 2 * 8;
    if (token >= num_tokens) *words[j] = 0;
    if (token + 1 >= num_tokens) *words[j] &= 0xffffu;
  }
}

}  // namespace outrider::cuda
