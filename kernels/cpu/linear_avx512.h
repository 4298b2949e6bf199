// What the two AVX-512 forms of linear share: sums of R rows x P panels in registers.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/linear_tile.h"

#define OUTRIDER_AVX512 __attribute__((target("avx512f"), always_inline)) inline

namespace outrider::cpu {

constexpr int kMaxRegisterRows = 16;  // whose sums the registers hold

// The valid outputs of a panel, one bit each.
OUTRIDER_AVX512 __mmask16 panel_mask(const LinearTile& tile, int64_t panel) {
  const int64_t outputs = tile.num_outputs - 16 * panel;
  return static_cast<__mmask16>(outputs >= 16 ? 0xffff : (1 << outputs) - 1);
}

template <int R, int P>
OUTRIDER_AVX512 void load_sums(const LinearTile& tile, int64_t panel, __m512 (&sums)[R][P]) {
  OUTRIDER_UNROLL
  for (int r = 0; r < R; ++r) {
    OUTRIDER_UNROLL
    for (int p = 0; p < P; ++p) {
      const float* y = tile.y + r * tile.y_stride + 16 * (panel + p);
      sums[r][p] =
          tile.resume ? _mm512_maskz_loadu_ps(panel_mask(tile, panel + p), y) : _mm512_setzero_ps();
    }
  }
}

template <int R, int P>
OUTRIDER_AVX512 void store_sums(const LinearTile& tile, int64_t panel, const __m512 (&sums)[R][P]) {
  OUTRIDER_UNROLL
  for (int r = 0; r < R; ++r) {
    OUTRIDER_UNROLL
    for (int p = 0; p < P; ++p) {
      float* y = tile.y + r * tile.y_stride + 16 * (panel + p);
      _mm512_mask_storeu_ps(y, panel_mask(tile, panel + p), sums[r][p]);
    }
  }
}

}  // namespace outrider::cpu
