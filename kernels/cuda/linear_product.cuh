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

constexpr int kMmaRows = 8;  // rows of x in an mma
constexpr int kChunk = 8;    // bf16 in 16 bytes

// A lane's part of the left operands of a step's two mma.
struct StepWeights {
  uint4 block[2];
};

// A word's bytes, numbers of 8 bits, as two pairs of bf16: exactly, and in plain arithmetic, since
// conversions are slow. A byte with its sign bit turned over, the number + 128, is the last bits of
// an fp32 of 2^23; less 2^23 + 128 it is the number, and all of it is in the upper half.
__device__ inline uint2 widen_bytes(uint32_t word) {
  const uint32_t biased = word ^ 0x80808080u;
  uint32_t bits[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const float above = __uint_as_float(__byte_perm(biased, 0x4b000000u, 0x7440u + i));
    bits[i] = __float_as_uint(above - 8388736.0f);  // 2^23 + 128
  }
  return make_uint2(__byte_perm(bits[0], bits[1], 0x7632u), __byte_perm(bits[2], bits[3], 0x7632u));
}

// Weight formats: what there is of a panel's step, and what that is to an mma.
// kLaneChunks: of 16 bytes, a lane's, kStepChunks: all lanes' together, by turns; kScaled: sums
// have a scale; eight_of: which 8 of a step's elements are a lane's in a block.
struct Bf16Weights {
  using Element = bf16;
  static constexpr int kLaneChunks = 2, kStepChunks = kLaneChunks * kWarp;
  static constexpr bool kScaled = false;
  __device__ static int eight_of(int lane, int block) { return block * kWarp + lane; }
  __device__ static StepWeights widen(const uint4 (&chunks)[kLaneChunks]) {
    return {{chunks[0], chunks[1]}};
  }
};
struct Int8Weights {
  using Element = int8_t;
  static constexpr int kLaneChunks = 1, kStepChunks = kLaneChunks * kWarp;
  static constexpr bool kScaled = true;
  __device__ static int eight_of(int lane, int block) { return lane * 2 + block; }
  __device__ static StepWeights widen(const uint4 (&chunks)[kLaneChunks]) {
    const uint4& both = chunks[0];
    return {{eight(both.x, both.y), eight(both.z, both.w)}};
  }

 private:
  __device__ static uint4 eight(uint32_t low, uint32_t high) {
    const uint2 first = widen_bytes(low), last = widen_bytes(high);
    return make_uint4(first.x, first.y, last.x, last.y);
  }
};

struct Product {
  const bf16* x;        // [rows, k]
  const uint4* w;       // packed [n, k]
  const float* scales;  // [n], of formats that have them
  const float* bias;    // [n], or null
  void* y;              // [rows, columns], of what the epilogue makes
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
  template <class Weights>
  __device__ const uint4* panel(int panel) const {
    return w + static_cast<int64_t>(panel) * steps * Weights::kStepChunks;
  }
  __device__ const bf16* row(int row) const { return x + static_cast<int64_t>(row) * k; }
  __device__ float bias_of(int output) const { return bias == nullptr ? 0.0f : bias[output]; }
  template <class Weights>
  __device__ float scale_of(int output) const {
    if constexpr (Weights::kScaled) {
      return scales[output];
    } else {
      return 1.0f;
    }
  }
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

// A column of y, with what its sums are multiplied by and what is added to them.
template <class Weights, class Epilogue>
class Column {
 public:
  __device__ Column(const Product& p, int column)
      : y_(static_cast<typename Epilogue::Element*>(p.y) + column),
        columns_(p.columns),
        scale_(p.scale_of<Weights>(column)),
        bias_(p.bias_of(column)) {
    if constexpr (Epilogue::kColumns < kPanelRows) {
      further_scale_ = p.scale_of<Weights>(p.columns + column);
      further_bias_ = p.bias_of(p.columns + column);
    }
  }

  // further: the sum 8 rows further on in the panel, which counts where it makes no column itself.
  __device__ void store(int row, float sum, float further) const {
    y_[static_cast<int64_t>(row) * columns_] =
        Epilogue::of(sum * scale_ + bias_, further * further_scale_ + further_bias_);
  }

 private:
  typename Epilogue::Element* y_;
  int columns_;
  float scale_, bias_;
  float further_scale_ = 1.0f, further_bias_ = 0.0f;
};

// Which row of the packed matrix row `row` of a gate and an up, `width` rows each, becomes.
__device__ inline int64_t interleaved(int64_t row, int64_t width) {
  const int64_t of_its_own = row < width ? row : row - width;
  return of_its_own / 8 * kPanelRows + of_its_own % 8 + (row < width ? 0 : 8);
}

// Where element (row, i) of a packed matrix stands, in elements.
template <class Weights>
__device__ int64_t packed_index(int64_t row, int64_t i, int64_t steps) {
  const int64_t step = row / kPanelRows * steps + i / kStepK;
  const int block = i % kChunk / 4;
  const int lane = row % 8 * 4 + i % kStepK / kChunk;
  const int64_t word = i % 4 / 2 * 2 + row % kPanelRows / 8;
  return (step * 2 * kWarp + Weights::eight_of(lane, block)) * 8 + word * 2 + i % 2;
}

// One step of one panel against 8 rows of x. x: this lane's chunk of row lane / 4.
__device__ inline void multiply_step(float (&sum)[4], const StepWeights& w, const uint4& x) {
  const uint4 &first = w.block[0], &second = w.block[1];
  const uint32_t w0[4] = {first.x, first.y, first.z, first.w};
  const uint32_t x0[2] = {x.x, x.y};
  mma_m16n8k16(sum, w0, x0);
  const uint32_t w1[4] = {second.x, second.y, second.z, second.w};
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
