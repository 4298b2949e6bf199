// Where keys and values stand in the pages (attention.h says in words), and how a warp fetches them
// as operands of mma.m16n8k16.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention_types.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/block.cuh"

namespace outrider::cuda {

constexpr int kTokens = kPageTokens;
constexpr int kMmaTokens = 8;       // positions in the right operand of a score
constexpr int kBlockElements = 16;  // of a head, in a block of v
constexpr int kChunk = 8;           // bf16 in 16 bytes

// One KV head's part of the pages.
struct HeadPages {
  const bf16* k;
  const bf16* v;
  int page_bytes;  // from page to page
  int head_dim;

  // Widened once: one instruction.
  __device__ const bf16* at(const bf16* pages, int page) const {
    return reinterpret_cast<const bf16*>(reinterpret_cast<const char*>(pages) +
                                         int64_t{page} * page_bytes);
  }
};

// Where element i of the value at `token` of a page stands, from the head's start in the page.
__device__ inline int value_index(int token, int i, int head_dim) {
  if (head_dim % kBlockElements != 0) return token * head_dim + i;
  const int lane = i % 8 * 4 + token % 8 / 2;
  const int word = i % kBlockElements / 8 * 2 + token / 8;
  return i / kBlockElements * 256 + lane * kChunk + word * 2 + token % 2;
}

// Elements i … i + 7 of the key at `token`; beyond head_dim, others of the key's (kWhole: head_dim
// is a multiple of 16) or zeros: the query has zeros there.
template <bool kWhole>
__device__ uint4 load_key(const HeadPages& pages, int page, int token, int i) {
  const bf16* key = pages.at(pages.k, page) + token * pages.head_dim;
  if constexpr (kWhole) {
    return *reinterpret_cast<const uint4*>(key + min(i, pages.head_dim - kChunk));
  } else {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // head_dim is even
      const int at = i + 2 * j;
      words[j] = at < pages.head_dim ? pair_of(key[at], key[at + 1]) : 0u;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// This lane's part of a block of v, 16 elements at 16 positions: for each half of the elements the
// two words of a right operand. Beyond head_dim: others, which nobody stores.
template <bool kWhole>
__device__ uint4 load_values(const HeadPages& pages, int page, int block) {
  const int lane = threadIdx.x % kWarp;
  const bf16* values = pages.at(pages.v, page);
  if constexpr (kWhole) {
    const int there = min(block, pages.head_dim / kBlockElements - 1);
    return *reinterpret_cast<const uint4*>(values + there * 256 + lane * kChunk);
  } else {
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

}  // namespace outrider::cuda
