// What both kernels of linear.cu share: a product's arguments, the layout, the one step of
// multiplication that makes a row's bits the same in every tile, and what is done to its sums.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/math.h"

namespace outrider::cuda {

constexpr int kMmaRows = 8;      // rows of x in an mma
constexpr int kStepChunks = 64;  // chunks of 16 bytes in a panel's step
constexpr int kChunk = 8;        // bf16 in one of them

struct Product {
  const bf16* x;      // [rows, k]
  const uint4* w;     // packed [n, k]
  const float* bias;  // [n], or null
  void* y;            // [rows, columns], of what the epilogue makes
  int rows, columns, k;
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
};

// Epilogues: an element of y from what its row of a panel makes, and the row 8 further on.
// kColumns: of y, that a panel makes.
struct AsItIs {
  using Element = float;
  static constexpr int kColumns = kPanelRows;
  __device__ static float of(float sum, float) { return sum; }
};
struct Gelu {
  using Element = bf16;
  static constexpr int kColumns = kPanelRows;
  __device__ static bf16 of(float sum, float) { return narrow(gelu_tanh_f32(sum)); }
};
struct Swiglu {
  using Element = bf16;
  static constexpr int kColumns = kPanelRows / 2;
  __device__ static bf16 of(float gate, float up) { return narrow(silu_f32(gate) * up); }
};

// A column of y, with what is added to its sums.
template <class Epilogue>
class Column {
 public:
  __device__ Column(const Product& p, int column)
      : y_(static_cast<typename Epilogue::Element*>(p.y) + column),
        columns_(p.columns),
        bias_(p.bias_of(column)),
        further_bias_(Epilogue::kColumns < kPanelRows ? p.bias_of(p.columns + column) : 0.0f) {}

  // further: the sum 8 rows further on in the panel, which counts where it makes no column itself.
  __device__ void store(int row, float sum, float further) const {
    y_[static_cast<int64_t>(row) * columns_] = Epilogue::of(sum + bias_, further + further_bias_);
  }

 private:
  typename Epilogue::Element* y_;
  int columns_;
  float bias_, further_bias_;
};

// Which row of the packed matrix row `row` of a gate and an up, `width` rows each, becomes.
__device__ inline int64_t interleaved(int64_t row, int64_t width) {
  const int64_t of_its_own = row < width ? row : row - width;
  return of_its_own / 8 * kPanelRows + of_its_own % 8 + (row < width ? 0 : 8);
}

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
