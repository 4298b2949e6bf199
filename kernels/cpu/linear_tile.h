// The inner part of linear: a tile of a few rows of x against panels of packed weights. One file of
// intrinsics an instruction set; all give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/bf16.h"
#include "kernels/cpu/unroll.h"

namespace outrider::cpu {

constexpr int kMaxTileRows = 8;
constexpr int64_t kPairBytes = 64;  // 16 outputs x 2 bf16: one step of a panel

struct LinearTile {
  const void* x;        // [rows, 2 * num_pairs] in the kernel's x format
  int64_t x_stride;     // from row to row, in elements of x
  const std::byte* w;   // first pair of the first panel
  int64_t w_stride;     // from panel to panel, in bytes
  int64_t num_panels;   // neighbours
  int64_t num_pairs;    // along k
  float* y;             // [rows, num_outputs]
  int64_t y_stride;     // from row to row, in elements
  int64_t num_outputs;  // more than 16 * (num_panels - 1), at most 16 * num_panels
  bool resume;          // goes on from the sums in y rather than from zero
};

struct TileKernels {
  bool x_is_f32;     // x format: fp32, else bf16
  int max_rows;      // that one tile may have
  int group_panels;  // panels to hand over at a time where several tiles share them
  void (*by_rows[kMaxTileRows + 1])(const LinearTile& tile);  // [rows]; [0] is empty
};

extern const TileKernels kTileScalar;
extern const TileKernels kTileAvx2;
extern const TileKernels kTileAvx512;
extern const TileKernels kTileAvx512Bf16;

// How far ahead of its use a weight is fetched. The processor's own prefetch stops at 4 KiB pages;
// this one goes on into the panels that come next.
constexpr int64_t kPrefetchPairs = 32;

}  // namespace outrider::cpu
