// What both kernels of linear.cu share: a product's arguments, the layout, and the one step of
// multiplication that makes a row's bits the same in every tile.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ptx.cuh"

namespace outrider::cuda {

constexpr int kMmaRows = 8;      // rows of x in an mma
constexpr int kStepChunks = 64;  // chunks of 16 bytes in a panel's step
constexpr int kChunk = 8;        // bf16 in one of them

struct Product {
  const bf16* x;      // [rows, k]
  const uint4* w;     // packed [n, k]
  const float* bias;  // [n], or null
  float* y;           // [rows, n]
  int rows, n, k;
  int steps;     // along k
  int panels;    // of outputs
  int splits;    // parts that the steps are cut into
  bool aligned;  // every row of x starts at a multiple of 16 bytes

  int part_steps;  // in a part; the first long_parts have one more
  int long_parts;

  // Part i of each sum covers steps [part_begin(i), part_begin(i + 1)).
  __device__ int part_begin(int part) const { return part * part_steps + min(part, long_parts); }
  // A panel's steps, kStepChunks each.
  __device__ const uint4* panel(int panel) const {
    return w + static_cast<int64_t>(panel) * steps * kStepChunks;
  }
  __device__ const bf16* row(int row) const { return x + static_cast<int64_t>(row) * k; }
  __device__ float bias_of(int output) const { return bias == nullptr ? 0.0f : bias[output]; }
  __device__ float* output(int row, int output) const {
    return y + static_cast<int64_t>(row) * n + output;
  }
};

// Where element (row, i) of a packed matrix stands, in bf16.
__device__ inline int64_t packed_index(int64_t row, int64_t i, int64_t steps) {
  const int64_t step = row / kPanelRows * steps + i / kStepK;
  const int64_t block = i % kChunk / 4;
  const int64_t lane = row % 8 * 4 + i % kStepK / kChunk;
  const int64_t word = i % 4 / 2 * 2 + row % kPanelRows / 8;
  return ((step * 2 + block) * kWarp + lane) * kChunk + word * 2 + i % 2;
}

// One step of one panel against 8 rows of x. w: the step's two blocks; x: this lane's chunk of row
// lane / 4.
__device__ inline void multiply_step(float (&sum)[4], const uint4 (&w)[2], const uint4& x) {
  const uint32_t w0[4] = {w[0].x, w[0].y, w[0].z, w[0].w};
  const uint32_t x0[2] = {x.x, x.y};
  mma_m16n8k16(sum, w0, x0);
  const uint32_t w1[4] = {w[1].x, w[1].y, w[1].z, w[1].w};
  const uint32_t x1[2] = {x.z, x.w};
  mma_m16n8k16(sum, w1, x1);
}

// Elements i … i + 7 of a row, zeros from `end` on, wherever they stand.
__device__ inline uint4 gather_chunk(const bf16* row, int i, int end) {
  uint32_t words[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int at = i + 2 * j;
    words[j] = pair_of(at < end ? row[at] : bf16{}, at + 1 < end ? row[at + 1] : bf16{});
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace outrider::cuda
