// rope_and_cache, a warp for one head of one row; and the rotation and the write of a token, which
// attention_of_few has too.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_pages.cuh"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/ptx.cuh"

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

// A pair of elements, one from each half of a head, rotated: the one of the lower half, the other.
__device__ inline float rotated_lower(float a, float b, float cosine, float sine) {
  return a * cosine - b * sine;
}
__device__ inline float rotated_upper(float a, float b, float cosine, float sine) {
  return b * cosine + a * sine;
}

// Rotates elements lane, lane + 32, … of each half of a head, in place.
__device__ inline void rotate_head(float* head, const float* cos_row, const float* sin_row,
                                   int half) {
  for (int i = threadIdx.x % kWarp; i < half; i += kWarp) {
    const float a = head[i];
    const float b = head[i + half];
    head[i] = rotated_lower(a, b, cos_row[i], sin_row[i]);
    head[i + half] = rotated_upper(a, b, cos_row[i], sin_row[i]);
  }
}

// One head's key and value of a row, on their way to the cache by kLanes neighbouring lanes; a lane
// has kPairs pairs of elements of a head's halves, kLanes apart. All lanes of the warp call.
template <int kLanes, int kPairs>
struct TokenToCache {
  const float* k;
  const float* v;
  bf16* k_page;
  bf16* v_page;
  int token;  // in the page
  int head_dim;
  bool there;    // or nothing is written
  bool rotates;  // or it was
  float cosines[kPairs], sines[kPairs];
  float keys[kPairs][2], values[kPairs][2];

  // body(pair, its first element), of those that there are.
  template <class Body>
  __device__ void for_each_pair(const Body& body) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int i = threadIdx.x % kLanes + j * kLanes;
      if (there && i < head_dim / 2) body(j, i);
    }
  }

  __device__ void load_angles(const float* cos_row, const float* sin_row) {
    if (!rotates) return;
    for_each_pair([&](int j, int i) {
      cosines[j] = cos_row[i];
      sines[j] = sin_row[i];
    });
  }

  __device__ void load() {
    for_each_pair([&](int j, int i) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        keys[j][part] = k[i + part * (head_dim / 2)];
        values[j][part] = v[i + part * (head_dim / 2)];
      }
    });
  }

  // What is not finite is kept out of the sums of rows that do not see the token: the value is zero
  // in its place, and the key says NaN.
  __device__ void store() {
    constexpr bf16 kNan = {0x7fc0};
    const auto is_finite = [](bf16 x) { return (x.bits & 0x7f80u) != 0x7f80u; };
    bool finite = true;
    bf16 cached[kPairs][2];
    for_each_pair([&](int j, int i) {
      const float a = keys[j][0], b = keys[j][1];
      cached[j][0] = narrow(rotates ? rotated_lower(a, b, cosines[j], sines[j]) : a);
      cached[j][1] = narrow(rotates ? rotated_upper(a, b, cosines[j], sines[j]) : b);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const bf16 value = narrow(values[j][part]);
        const bool kept = is_finite(value);
        finite = finite && kept && is_finite(cached[j][part]);
        v_page[value_index(token, i + part * (head_dim / 2), head_dim)] = kept ? value : bf16{};
      }
    });
    const unsigned of_token = kAllLanes >> (kWarp - kLanes)
                                               << threadIdx.x % kWarp / kLanes * kLanes;
    finite = (~__ballot_sync(kAllLanes, finite) & of_token) == 0;
    for_each_pair([&](int j, int i) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        k_page[token * head_dim + i + part * (head_dim / 2)] = finite ? cached[j][part] : kNan;
      }
    });
  }
};

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
  __syncwarp();  // the key was rotated by other lanes
  TokenToCache<kWarp, kMaxHeadDim / 2 / kWarp> cached = {};
  cached.k = rotated;
  cached.v = rotated + shape.num_kv_heads * head_dim;
  cached.k_page = pass.k_pages + offset;
  cached.v_page = pass.v_pages + offset;
  cached.token = static_cast<int>(position % kTokens);
  cached.head_dim = head_dim;
  cached.there = true;
  cached.load();
  cached.store();
}

}  // namespace outrider::cuda
