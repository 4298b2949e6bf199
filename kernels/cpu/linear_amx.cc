// linear on AMX: tiles of x, 16 rows x 16 pairs, against a kilobyte of each of two panels, which is
// a tile as it lies. The order of sums is AMX's own, see linear.h.
#include <cstring>
#include <utility>

#include "kernels/cpu/linear_tile.h"

namespace outrider::cpu {
namespace {

constexpr int kTileRows = 16;
constexpr int64_t kTileBytes = kTilePairs * kPairBytes;

// Of a tile each: its rows, and their bytes.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

// The compiler's own intrinsics take no template argument for a tile, and do not say what they
// read.
void configure(const TileShapes& shapes) { __asm__ volatile("ldtilecfg %0" : : "m"(shapes)); }

void release() { __asm__ volatile("tilerelease"); }

template <int kTile>
void zero() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// stride: from row to row, in bytes.
template <int kTile>
void load(const void* from, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                   :
                   : "r"(from), "r"(stride), "i"(kTile)
                   : "memory");
}

template <int kTile>
void store(void* to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                   :
                   : "r"(to), "r"(stride), "i"(kTile)
                   : "memory");
}

template <int kSums, int kX, int kW>
void multiply() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kX), "i"(kW));
}

// Tiles 0 and 1 are sums of the first rows with two panels, 2 and 3 of the rows behind them; 4 and
// 5 hold x of either, 6 and 7 a part of each panel.
void set_shapes(int rows, int rows_behind) {
  TileShapes shapes;
  const int of_tile[8] = {rows, rows,        rows_behind, rows_behind,
                          rows, rows_behind, kTileRows,   kTileRows};
  for (int i = 0; i < 8; ++i) {
    if (of_tile[i] == 0) continue;
    shapes.rows[i] = static_cast<uint8_t>(of_tile[i]);
    shapes.row_bytes[i] = kPairBytes;
  }
  configure(shapes);
}

// Sums of a tile's rows with a panel, whose outputs may be fewer than 16.
template <int kTile>
void load_sums(const float* y, int64_t y_stride, int64_t outputs, int rows) {
  if (outputs >= kTileRows) {
    load<kTile>(y, y_stride * sizeof(float));
    return;
  }
  alignas(64) float sums[kTileRows][kTileRows] = {};
  for (int r = 0; r < rows; ++r) std::memcpy(sums[r], y + r * y_stride, outputs * sizeof(float));
  load<kTile>(sums, kPairBytes);
}

template <int kTile>
void store_sums(float* y, int64_t y_stride, int64_t outputs, int rows) {
  if (outputs >= kTileRows) {
    store<kTile>(y, y_stride * sizeof(float));
    return;
  }
  alignas(64) float sums[kTileRows][kTileRows];
  store<kTile>(sums, kPairBytes);
  for (int r = 0; r < rows; ++r) std::memcpy(y + r * y_stride, sums[r], outputs * sizeof(float));
}

// What the first of P panels at w fetches while it uses the pairs from j on, see linear_tile.h.
const std::byte* next_pairs(const LinearTile& tile, const std::byte* w, int64_t j, int P) {
  if (tile.count > 1) return shared_prefetch(tile, w).start + j / tile.count * kPairBytes;
  const int64_t ahead = j + kPrefetchPairs;
  if (ahead < tile.num_pairs) return w + ahead * kPairBytes;
  return w + P * tile.w_stride + (ahead - tile.num_pairs) * kPairBytes;
}

// P panels from `panel` on, for rows of one tile of x or of two.
template <int P, bool kTwo>
void add_panels(const LinearTile& tile, int64_t x_stride, int64_t panel, int rows,
                int rows_behind) {
  const auto* x = static_cast<const bf16*>(tile.x);
  const bf16* x_behind = x + kTileRows * x_stride;
  const std::byte* w = tile.w + panel * tile.w_stride;
  float* y = tile.y + panel * kTileRows;
  float* y_behind = y + kTileRows * tile.y_stride;
  const int64_t outputs = tile.num_outputs - panel * kTileRows;
  if (tile.resume) {
    load_sums<0>(y, tile.y_stride, outputs, rows);
    if constexpr (P == 2) load_sums<1>(y + kTileRows, tile.y_stride, outputs - kTileRows, rows);
    if constexpr (kTwo) load_sums<2>(y_behind, tile.y_stride, outputs, rows_behind);
    if constexpr (kTwo && P == 2) {
      load_sums<3>(y_behind + kTileRows, tile.y_stride, outputs - kTileRows, rows_behind);
    }
  } else {
    zero<0>();
    if constexpr (P == 2) zero<1>();
    if constexpr (kTwo) zero<2>();
    if constexpr (kTwo && P == 2) zero<3>();
  }
  const int64_t num_fetched = kTilePairs / tile.count;
  for (int64_t j = 0; j < tile.num_pairs; j += kTilePairs) {
    const std::byte* parts[2] = {w + j * kPairBytes, w + tile.w_stride + j * kPairBytes};
    alignas(64) std::byte padded[P][kTileBytes];
    if (tile.num_pairs - j < kTilePairs) {
      const int64_t bytes = (tile.num_pairs - j) * kPairBytes;
      for (int p = 0; p < P; ++p) {
        std::memcpy(padded[p], parts[p], bytes);
        std::memset(padded[p] + bytes, 0, kTileBytes - bytes);
        parts[p] = padded[p];
      }
    }
    const std::byte* next = next_pairs(tile, w, j, P);
    for (int p = 0; p < P; ++p) {
      for (int64_t i = 0; i < num_fetched; ++i) {
        __builtin_prefetch(next + p * tile.w_stride + i * kPairBytes, 0, 2);
      }
    }
    load<4>(x + 2 * j, x_stride * sizeof(bf16));
    if constexpr (kTwo) load<5>(x_behind + 2 * j, x_stride * sizeof(bf16));
    load<6>(parts[0], kPairBytes);
    multiply<0, 4, 6>();
    if constexpr (kTwo) multiply<2, 5, 6>();
    if constexpr (P == 2) {
      load<7>(parts[1], kPairBytes);
      multiply<1, 4, 7>();
      if constexpr (kTwo) multiply<3, 5, 7>();
    }
  }
  store_sums<0>(y, tile.y_stride, outputs, rows);
  if constexpr (P == 2) store_sums<1>(y + kTileRows, tile.y_stride, outputs - kTileRows, rows);
  if constexpr (kTwo) store_sums<2>(y_behind, tile.y_stride, outputs, rows_behind);
  if constexpr (kTwo && P == 2) {
    store_sums<3>(y_behind + kTileRows, tile.y_stride, outputs - kTileRows, rows_behind);
  }
}

template <int R, int64_t kStride>
void run(const LinearTile& tile) {
  constexpr bool kTwo = R > kTileRows;
  constexpr int kRows = kTwo ? kTileRows : R, kRowsBehind = R - kRows;
  set_shapes(kRows, kRowsBehind);
  int64_t panel = 0;
  for (; panel + 2 <= tile.num_panels; panel += 2) {
    add_panels<2, kTwo>(tile, kStride, panel, kRows, kRowsBehind);
  }
  if (panel < tile.num_panels) add_panels<1, kTwo>(tile, kStride, panel, kRows, kRowsBehind);
  release();
}

template <int... kFewLess1, int... kManyLess1>
constexpr TileKernels kernels(std::integer_sequence<int, kFewLess1...>,
                              std::integer_sequence<int, kManyLess1...>) {
  return {false,
          kPairBytes,
          kMaxTileRows,
          kMaxTileRows,
          4,
          {nullptr, run<kFewLess1 + 1, kFewRowsStride>...},
          {nullptr, run<kManyLess1 + 1, kManyRowsStride>...}};
}

}  // namespace

const TileKernels kTileAmxBf16 = kernels(std::make_integer_sequence<int, kFewRows>(),
                                         std::make_integer_sequence<int, kMaxTileRows>());

}  // namespace outrider::cpu
