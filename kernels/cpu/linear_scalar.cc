// linear in plain C++: the reference of the other instruction sets.
#include <cstring>

#include "kernels/cpu/linear_tile.h"
#include "kernels/math.h"

namespace outrider::cpu {
namespace {

void run_panel(const LinearTile& tile, int64_t panel) {
  const float* x = static_cast<const float*>(tile.x);
  float* y = tile.y + 16 * panel;
  const int64_t left = tile.num_outputs - 16 * panel;
  const size_t bytes = (left < 16 ? left : 16) * sizeof(float);
  float sums[16] = {};
  if (tile.resume) std::memcpy(sums, y, bytes);
  for (int64_t j = 0; j < tile.num_pairs; ++j) {
    uint32_t pairs[16];
    std::memcpy(pairs, tile.w + panel * tile.w_stride + j * kPairBytes, sizeof pairs);
    for (int o = 0; o < 16; ++o) {
      const float odd = __builtin_bit_cast(float, pairs[o] & 0xffff0000u);
      const float even = __builtin_bit_cast(float, pairs[o] << 16);
      sums[o] = fma_f32(x[2 * j + 1], odd, sums[o]);
      sums[o] = fma_f32(x[2 * j], even, sums[o]);
    }
  }
  std::memcpy(y, sums, bytes);
}

void run(const LinearTile& tile) {
  for (int64_t panel = 0; panel < tile.num_panels; ++panel) run_panel(tile, panel);
}

}  // namespace

const TileKernels kTileScalar = {true, 1, 1, 1, {nullptr, run}, {nullptr, run}};

}  // namespace outrider::cpu
