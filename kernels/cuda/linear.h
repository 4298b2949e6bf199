// y = x Wᵀ + bias on packed weights: every projection of a decoder layer, and the LM head; with the
// activation behind it, the first product of an FFN. Weights are bf16, or 8 bits with a scale for
// each output.
//
// Layout of bf16: panels of 16 output rows; inside a panel, for each step of 32 along k, two blocks
// of 512 bytes, each the left operand of one mma.m16n8k16: 16 bytes for each of 32 lanes, so that a
// lane fetches its part with one load and a warp reads 512 bytes on end. Lane 4 g + t of a step
// holds elements 8 t … 8 t + 7 of rows g and g + 8, the first four in the first block: so the right
// operand of both blocks is 16 bytes on end of a row of x. Odd n and k are padded with zeros.
// Of a gate and an up, a panel has eight rows each: output i of both is one lane's.
// Layout of int8: the same panels and steps, but a step has 512 bytes: of each lane the 8 numbers
// that it holds of the first block and then those of the second, in bf16's order, so that one load
// of 16 bytes fetches both. Behind the panels the scales, fp32 [n], by output as the bias is.
//
// Order: the steps along k are cut into linear_splits(k) neighbouring parts; each part of y[r, o]
// is one chain of mma.m16n8k16 over its steps, from zero; the parts are added in order in fp32, the
// bias last. Neither the number of rows, nor a row's place, nor the tile enters. Numbers of 8 bits
// are multiplied as the bf16 that they are exactly, and the sum is multiplied by the output's scale
// and rounded before the bias comes.
//
// Bound: n * k * 2 bytes of weights (int8: half of it), read from memory once for as many rows as a
// tile has; beyond some 64 rows the 2 * rows * n * k operations. With tiles of up to 16 rows, a
// block is one panel and a warp one part of k, which streams weights straight into registers and
// meets the others in shared memory. With larger ones, a block is a tile of rows by outputs, both
// operands pass through shared memory in several stages, and the parts follow one another. Twin:
// ../cpu/linear.cc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/bf16.h"
#include "kernels/activation.h"
#include "kernels/cuda/stream.h"
#include "kernels/weight_format.h"

namespace outrider::cuda {

constexpr int kPanelRows = 16;  // outputs of an mma
constexpr int kStepK = 32;      // elements of k in two of them

// Parts that a sum over k is made of: at least four steps each, so that a chain hides its loads.
constexpr int linear_splits(int64_t k) {
  const int64_t steps = (k + kStepK - 1) / kStepK;
  return static_cast<int>(std::clamp<int64_t>(steps / 4, 1, 16));
}

// What one block computes of y. Any tile gives the same bits.
struct LinearTile {
  int rows;
  int outputs;
  bool operator==(const LinearTile&) const = default;
};
inline constexpr LinearTile kLinearTiles[] = {{8, 16},  {16, 16},  {32, 64},  {32, 128},
                                              {64, 64}, {64, 128}, {128, 128}};
// The one to take: least data through the second-level cache, on processors that are all busy.
LinearTile linear_tile(int64_t rows, int64_t n);

constexpr int64_t kMostOutputs = 16 * 65535;  // a grid has so many panels of 16

// Bytes of an [n, k] matrix once packed; n is at most kMostOutputs.
size_t packed_bytes(int64_t n, int64_t k, WeightFormat format);

// Writes rows [first_row, first_row + rows) of a packed [n, k] matrix. The rest of `packed` is left
// as it is (zeroed memory pads correctly). gate_up: the first half of the n rows are gates, the
// other half ups.
void pack(const bf16* source,  // [rows, k]
          int64_t rows, int64_t first_row, int64_t n, int64_t k, bool gate_up, void* packed,
          cudaStream_t stream);
void pack_int8(const int8_t* source,  // [rows, k]
               const float* scales,   // [rows]
               int64_t rows, int64_t first_row, int64_t n, int64_t k, bool gate_up, void* packed,
               cudaStream_t stream);

void linear(const bf16* x,       // [rows, k]
            const void* packed,  // [n, k] of that format, see above
            const float* bias,   // [n], or null
            float* y,            // [rows, n]
            int64_t rows, int64_t n, int64_t k, WeightFormat format, LinearTile tile,
            cudaStream_t stream);

// y = the activation of x Wᵀ + bias, rounded once to bf16: as linear and then silu_mul or gelu_tanh
// of elementwise.h, bit for bit, without their rows * n * 8 bytes between.
void linear_activated(const bf16* x,       // [rows, k]
                      const void* packed,  // [n, k]: n is twice the width where there is a gate
                      const float* bias,   // [n], gates first, or null
                      Activation activation,
                      bf16* y,  // [rows, width]
                      int64_t rows, int64_t n, int64_t k, WeightFormat format, LinearTile tile,
                      cudaStream_t stream);

// y[r] = row tokens[r] - first_token of the packed bf16 table, in fp32; zeros where that is outside
// [0, n). Bound: rows * k * 6 bytes.
void embed(const void* packed,     // [n, k]
           const int32_t* tokens,  // [rows]
           int64_t first_token,
           float* y,  // [rows, k]
           int64_t rows, int64_t n, int64_t k, cudaStream_t stream);

}  // namespace outrider::cuda
