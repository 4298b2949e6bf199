// The inner part of linear: a tile of a few rows of x against panels of packed weights. One file of
// intrinsics an instruction set; all but AMX give the same bits.
//
// Kernels that multiply fp32 are templates over the format of the weights: kBytes of a step of a
// panel, and how its two times 16 weights become fp32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/bf16.h"
#include "kernels/cpu/unroll.h"

namespace outrider::cpu {

constexpr int kMaxTileRows = 32;

// Elements from row to row of x, a constant, so that one address serves all rows: for up to
// kFewRows rows with much of k, or for many with less. 16 more than a power of two keep the rows
// out of each other's cache sets.
constexpr int64_t kFewRows = 16;
constexpr int64_t kFewRowsStride = 2048 + 16;
constexpr int64_t kManyRowsStride = 512 + 16;
constexpr int64_t kPairBytes = 64;      // 16 outputs x 2 bf16: one step of a panel
constexpr int64_t kInt8PairBytes = 32;  // 16 outputs x 2 int8
constexpr int64_t kTilePairs = 16;      // that AMX takes at once

struct LinearTile {
  const void* x;        // [rows, the kernel's stride], fp32 or bf16; zeros up to whole kTilePairs
  const std::byte* w;   // first pair of the first panel
  int64_t w_stride;     // from panel to panel, in bytes
  int64_t num_panels;   // neighbours
  int64_t num_pairs;    // along k
  float* y;             // [rows, num_outputs]
  int64_t y_stride;     // from row to row, in elements
  int64_t num_outputs;  // more than 16 * (num_panels - 1), at most 16 * num_panels
  bool resume;          // goes on from the sums in y rather than from zero
  int64_t index;        // among the tiles that meet these panels one after the other …
  int64_t count;        // … and how many they are
};

using TileKernel = void (*)(const LinearTile& tile);

struct TileKernels {
  bool x_is_f32;                           // else bf16
  int64_t pair_bytes;                      // of the weights that they multiply
  int max_rows;                            // that one tile may have, if it is alone
  int max_shared_rows;                     // that each of several may have
  int group_panels;                        // handed over together where several tiles share them
  TileKernel few_rows[kFewRows + 1];       // [rows], for x with kFewRowsStride; [0] is empty
  TileKernel many_rows[kMaxTileRows + 1];  // with kManyRowsStride
};

extern const TileKernels kTileScalar;
extern const TileKernels kTileAvx2;
extern const TileKernels kTileAvx512;
extern const TileKernels kTileAvx512Bf16;
extern const TileKernels kTileAvx512Bf16Far;  // fetches farther ahead, as Zen 5 wants it
extern const TileKernels kTileAmxBf16;
extern const TileKernels kTileScalarInt8;
extern const TileKernels kTileAvx2Int8;
extern const TileKernels kTileAvx512Int8;

// Where the weights lie that are fetched while a pair is used: a line a step and panel (of int8
// each line twice), at start + p * w_stride + j * step for panel p and pair j.
struct Prefetch {
  const std::byte* start;
  int64_t step;
};

// The processor's own prefetch stops at 4 KiB pages and starts anew for each panel. A tile that is
// alone fetches ahead, this far unless its kernel says otherwise, and over its panels' end into
// those that come next.
constexpr int64_t kPrefetchPairs = 128;

// The first-level cache can hold too few requests to cover memory's latency, so lines go to the
// second level first, and from there to the first, this far ahead unless a kernel says otherwise:
// 0 is straight to the first.
constexpr int64_t kNearPairs = 16;
template <int64_t kBytes = kPairBytes, int64_t kNear = kNearPairs>
[[gnu::always_inline]] inline void fetch(const std::byte* pair, const std::byte* next) {
  __builtin_prefetch(next, 0, kNear > 0 ? 2 : 3);
  if constexpr (kNear > 0) __builtin_prefetch(pair + kNear * kBytes);
}

// Tiles that share panels are slower than memory: each fetches its part of the next such panels,
// evenly as it goes.
template <int64_t kBytes = kPairBytes>
[[gnu::always_inline]] inline Prefetch shared_prefetch(const LinearTile& tile, const std::byte* w) {
  return {w + tile.num_panels * tile.w_stride + tile.index * tile.num_pairs / tile.count * kBytes,
          kBytes / tile.count};
}

}  // namespace outrider::cpu
