#include "kernels/cpu/linear.h"

#include <cpuid.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/linear_tile.h"

namespace outrider::cpu {
namespace {

// x is laid out for the kernels on the stack, a block of rows and of k at a time.
constexpr int64_t kMaxBlockRows = 64;  // weights are read once for so many
struct alignas(64) XBlock {
  float data[kMaxBlockRows * kManyRowsStride];
};
static_assert(kFewRows * kFewRowsStride <= kMaxBlockRows * kManyRowsStride);

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int64_t panel_bytes(int64_t k, int64_t pair_bytes) {
  return divide_up(k, 2) * pair_bytes;
}

// Behind which the scales stand: whole cache lines.
constexpr int64_t int8_panels_bytes(int64_t n, int64_t k) {
  return divide_up(divide_up(n, kPanelRows) * panel_bytes(k, kInt8PairBytes), 64) * 64;
}

// The family of AMD's Zen 5.
bool is_zen5() {
  unsigned eax, ebx, ecx, edx;
  if (!__builtin_cpu_is("amd") || __get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (eax >> 8 & 0xf) + (eax >> 20 & 0xff) == 0x1a;
}

// A vdpbf16ps takes an Intel core 2 cycles (seen on Emerald Rapids), the two fmas that give the
// same bits take one. One row, too, is multiplied faster by these there, though they have to widen
// the weights.
const TileKernels& avx512_bf16_kernels() {
  static const TileKernels& kernels = __builtin_cpu_is("intel") ? kTileAvx512
                                      : is_zen5()               ? kTileAvx512Bf16Far
                                                                : kTileAvx512Bf16;
  return kernels;
}

const TileKernels& kernels_for(WeightFormat format, Isa isa) {
  const bool int8 = format == WeightFormat::int8;
  switch (isa) {
    case Isa::scalar:
      break;
    case Isa::avx2:
      return int8 ? kTileAvx2Int8 : kTileAvx2;
    case Isa::avx512_bf16:
      return int8 ? kTileAvx512Int8 : avx512_bf16_kernels();
    case Isa::avx512:
      return int8 ? kTileAvx512Int8 : kTileAvx512;
    case Isa::amx_bf16:
      return int8 ? kTileAvx512Int8 : kTileAmxBf16;
  }
  return int8 ? kTileScalarInt8 : kTileScalar;
}

// Elements [begin, end) of a row of k, zeros beyond k.
void lay_out(const bf16* row, int64_t begin, int64_t end, int64_t k, bool as_f32, std::byte* out) {
  const int64_t count = std::min(end, k) - begin;
  if (as_f32) {
    float* out_f32 = reinterpret_cast<float*>(out);
    for (int64_t i = 0; i < count; ++i) out_f32[i] = to_float(row[begin + i]);
    std::fill(out_f32 + count, out_f32 + (end - begin), 0.0f);
  } else {
    std::memcpy(out, row + begin, count * sizeof(bf16));
    std::memset(out + count * sizeof(bf16), 0, (end - begin - count) * sizeof(bf16));
  }
}

// Tiles of about equal height. Where there are several, a group of panels meets all of them while
// it is in the cache.
void run_tiles(const TileKernels& kernels, const LinearTile& block, int64_t rows) {
  const bool few = rows <= kFewRows;
  const int64_t num_tiles = rows <= kernels.max_rows ? 1 : divide_up(rows, kernels.max_shared_rows);
  const int64_t group = num_tiles == 1 ? block.num_panels : kernels.group_panels;
  const size_t x_row_bytes =
      (few ? kFewRowsStride : kManyRowsStride) * (kernels.x_is_f32 ? sizeof(float) : sizeof(bf16));
  for (int64_t panel = 0; panel < block.num_panels; panel += group) {
    for (int64_t t = 0; t < num_tiles; ++t) {
      const int64_t begin = rows * t / num_tiles;
      const int64_t end = rows * (t + 1) / num_tiles;
      LinearTile tile = block;
      tile.x = static_cast<const std::byte*>(block.x) + begin * x_row_bytes;
      tile.w = block.w + panel * block.w_stride;
      tile.num_panels = std::min(group, block.num_panels - panel);
      tile.y = block.y + begin * block.y_stride + panel * kPanelRows;
      tile.num_outputs =
          std::min(tile.num_panels * kPanelRows, block.num_outputs - panel * kPanelRows);
      tile.index = t;
      tile.count = num_tiles;
      (few ? kernels.few_rows : kernels.many_rows)[end - begin](tile);
    }
  }
}

}  // namespace

size_t packed_bytes(int64_t n, int64_t k, WeightFormat format) {
  if (format == WeightFormat::bf16) return divide_up(n, kPanelRows) * panel_bytes(k, kPairBytes);
  return int8_panels_bytes(n, k) + divide_up(n, kPanelRows) * kPanelRows * sizeof(float);
}

void pack(const bf16* source, int64_t row_stride, int64_t rows, int64_t first_row, int64_t k,
          void* packed) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = first_row + r;
    std::byte* out = static_cast<std::byte*>(packed) +
                     row / kPanelRows * panel_bytes(k, kPairBytes) +
                     row % kPanelRows * sizeof(uint32_t);
    const bf16* in = source + r * row_stride;
    for (int64_t j = 0; j < k / 2; ++j) std::memcpy(out + j * kPairBytes, in + 2 * j, 4);
    if (k % 2 != 0) {
      const bf16 last[2] = {in[k - 1], bf16{}};
      std::memcpy(out + k / 2 * kPairBytes, last, sizeof last);
    }
  }
}

void pack_int8(const int8_t* source, const float* scales, int64_t rows, int64_t first_row,
               int64_t n, int64_t k, void* packed) {
  auto* const panels = static_cast<std::byte*>(packed);
  std::byte* const packed_scales = panels + int8_panels_bytes(n, k);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = first_row + r;
    std::memcpy(packed_scales + row * sizeof(float), scales + r, sizeof(float));
    std::byte* const out =
        panels + row / kPanelRows * panel_bytes(k, kInt8PairBytes) + row % kPanelRows;
    for (int64_t i = 0; i < k; ++i) {
      out[i / 2 * kInt8PairBytes + i % 2 * kPanelRows] = std::byte(source[r * k + i]);
    }
  }
}

void linear(const bf16* x, const void* packed, const float* bias, float* y, int64_t rows, int64_t n,
            int64_t k, WeightFormat format, Isa isa) {
  const TileKernels& kernels = kernels_for(format, isa);
  const int64_t num_pairs = divide_up(k, 2);
  const int64_t num_row_blocks = divide_up(rows, kMaxBlockRows);
  XBlock block_x;
  for (int64_t b = 0; b < num_row_blocks; ++b) {
    const int64_t first = rows * b / num_row_blocks;
    const int64_t block_rows = rows * (b + 1) / num_row_blocks - first;
    const int64_t stride = block_rows <= kFewRows ? kFewRowsStride : kManyRowsStride;
    const size_t row_bytes = stride * (kernels.x_is_f32 ? sizeof(float) : sizeof(bf16));
    // A block begins with a tile of AMX, whose sums depend on where tiles begin.
    const int64_t num_tiles = divide_up(num_pairs, kTilePairs);
    const int64_t num_blocks = divide_up(num_tiles, stride / 2 / kTilePairs);
    for (int64_t c = 0; c < num_blocks; ++c) {
      const int64_t begin = num_tiles * c / num_blocks * kTilePairs;
      const int64_t padded_end = num_tiles * (c + 1) / num_blocks * kTilePairs;
      const int64_t end = std::min(padded_end, num_pairs);
      LinearTile block;
      block.x = block_x.data;
      block.w = static_cast<const std::byte*>(packed) + begin * kernels.pair_bytes;
      block.w_stride = num_pairs * kernels.pair_bytes;
      block.num_panels = divide_up(n, kPanelRows);
      block.num_pairs = end - begin;
      block.y = y + first * n;
      block.y_stride = n;
      block.num_outputs = n;
      block.resume = c > 0;
      for (int64_t r = 0; r < block_rows; ++r) {
        lay_out(x + (first + r) * k, 2 * begin, 2 * padded_end, k, kernels.x_is_f32,
                reinterpret_cast<std::byte*>(block_x.data) + r * row_bytes);
      }
      run_tiles(kernels, block, block_rows);
    }
  }
  if (format == WeightFormat::int8) {
    const auto* const scales = reinterpret_cast<const float*>(
        static_cast<const std::byte*>(packed) + int8_panels_bytes(n, k));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < n; ++o) y[r * n + o] *= scales[o];
    }
  }
  if (bias == nullptr) return;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < n; ++o) y[r * n + o] += bias[o];
  }
}

void embed(const void* packed, const int32_t* tokens, int64_t first_token, float* y, int64_t rows,
           int64_t n, int64_t k) {
  for (int64_t r = 0; r < rows; ++r) {
    float* out = y + r * k;
    const int64_t row = tokens[r] - first_token;
    if (row < 0 || row >= n) {
      std::fill(out, out + k, 0.0f);
      continue;
    }
    const std::byte* in = static_cast<const std::byte*>(packed) +
                          row / kPanelRows * panel_bytes(k, kPairBytes) +
                          row % kPanelRows * sizeof(uint32_t);
    for (int64_t i = 0; i < k; ++i) {
      bf16 value;
      std::memcpy(&value, in + i / 2 * kPairBytes + i % 2 * sizeof(bf16), sizeof value);
      out[i] = to_float(value);
    }
  }
}

}  // namespace outrider::cpu
