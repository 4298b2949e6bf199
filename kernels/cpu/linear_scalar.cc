// linear in plain C++: the reference of the other instruction sets.
#include <cstring>

#include "kernels/cpu/linear_tile.h"
#include "kernels/math.h"

namespace outrider::cpu {
namespace {

struct Bf16Weights {
  static constexpr int64_t kBytes = kPairBytes;
  static void widen(const std::byte* pair, int output, float& odd, float& even) {
    uint32_t both;
    std::memcpy(&both, pair + output * sizeof both, sizeof both);
    odd = __builtin_bit_cast(float, both & 0xffff0000u);
    even = __builtin_bit_cast(float, both << 16);
  }
};

struct Int8Weights {
  static constexpr int64_t kBytes = kInt8PairBytes;
  static void widen(const std::byte* pair, int output, float& odd, float& even) {
    even = static_cast<float>(static_cast<int8_t>(pair[output]));
    odd = static_cast<float>(static_cast<int8_t>(pair[kBytes / 2 + output]));
  }
};

template <class Weights>
void run_panel(const LinearTile& tile, int64_t panel) {
  const float* x = static_cast<const float*>(tile.x);
  float* y = tile.y + 16 * panel;
  const int64_t left = tile.num_outputs - 16 * panel;
  const size_t bytes = (left < 16 ? left : 16) * sizeof(float);
  float sums[16] = {};
  if (tile.resume) std::memcpy(sums, y, bytes);
  for (int64_t j = 0; j < tile.num_pairs; ++j) {
    const std::byte* const pair = tile.w + panel * tile.w_stride + j * Weights::kBytes;
    for (int o = 0; o < 16; ++o) {
      float odd, even;
      Weights::widen(pair, o, odd, even);
      sums[o] = fma_f32(x[2 * j + 1], odd, sums[o]);
      sums[o] = fma_f32(x[2 * j], even, sums[o]);
    }
  }
  std::memcpy(y, sums, bytes);
}

template <class Weights>
void run(const LinearTile& tile) {
  for (int64_t panel = 0; panel < tile.num_panels; ++panel) run_panel<Weights>(tile, panel);
}

template <class Weights>
constexpr TileKernels kKernels = {
    true, Weights::kBytes, 1, 1, 1, {nullptr, run<Weights>}, {nullptr, run<Weights>}};

}  // namespace

const TileKernels kTileScalar = kKernels<Bf16Weights>;
const TileKernels kTileScalarInt8 = kKernels<Int8Weights>;

}  // namespace outrider::cpu
