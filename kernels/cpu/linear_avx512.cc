// linear on AVX-512: vdpbf16ps as two fmas, the weights widened to fp32 by a mask and a shift.
#include "kernels/cpu/linear_avx512.h"

namespace outrider::cpu {
namespace {

// Pairs [begin, end) of P panels side by side. The R * P chains are independent, which hides the
// latency of fma. A step is 2 R P fmas and 2 P uops of widening; weights are loaded once for R rows
// and x once for P panels.
template <int R, int P>
OUTRIDER_AVX512 void add_pairs(const LinearTile& tile, const std::byte* w, int64_t begin,
                               int64_t end, int64_t prefetch_bytes, __m512 (&sums)[R][P]) {
  const float* x = static_cast<const float*>(tile.x);
  const __m512i odd_mask = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  for (int64_t j = begin; j < end; ++j) {
    __m512 odd[P], even[P];
    OUTRIDER_UNROLL
    for (int p = 0; p < P; ++p) {
      const std::byte* pair = w + p * tile.w_stride + j * kPairBytes;
      _mm_prefetch(reinterpret_cast<const char*>(pair) + prefetch_bytes, _MM_HINT_T0);
      const __m512i both = _mm512_loadu_si512(pair);
      odd[p] = _mm512_castsi512_ps(_mm512_and_si512(both, odd_mask));
      even[p] = _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, both, 16));
    }
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512 x_odd = _mm512_set1_ps(x[r * tile.x_stride + 2 * j + 1]);
      OUTRIDER_UNROLL
      for (int p = 0; p < P; ++p) sums[r][p] = _mm512_fmadd_ps(x_odd, odd[p], sums[r][p]);
    }
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512 x_even = _mm512_set1_ps(x[r * tile.x_stride + 2 * j]);
      OUTRIDER_UNROLL
      for (int p = 0; p < P; ++p) sums[r][p] = _mm512_fmadd_ps(x_even, even[p], sums[r][p]);
    }
  }
}

template <int R, int P>
OUTRIDER_AVX512 void add_panels(const LinearTile& tile, int64_t panel) {
  __m512 sums[R][P];
  load_sums<R, P>(tile, panel, sums);
  const std::byte* w = tile.w + panel * tile.w_stride;
  const int64_t last = tile.num_pairs > kPrefetchPairs ? tile.num_pairs - kPrefetchPairs : 0;
  const int64_t ahead = kPrefetchPairs * kPairBytes;
  add_pairs<R, P>(tile, w, 0, last, ahead, sums);
  // The last steps fetch the first pairs of the panels that come next.
  add_pairs<R, P>(tile, w, last, tile.num_pairs,
                  P * tile.w_stride - tile.num_pairs * kPairBytes + ahead, sums);
  store_sums<R, P>(tile, panel, sums);
}

template <int R>
__attribute__((target("avx512f"))) void run(const LinearTile& tile) {
  constexpr int P = R <= 2 ? 4 : R <= 6 ? 3 : 2;  // at most 18 of the 32 registers hold sums
  int64_t panel = 0;
  for (; panel + P <= tile.num_panels; panel += P) add_panels<R, P>(tile, panel);
  for (; panel < tile.num_panels; ++panel) add_panels<R, 1>(tile, panel);
}

}  // namespace

const TileKernels kTileAvx512 = {
    true, 8, 2, {nullptr, run<1>, run<2>, run<3>, run<4>, run<5>, run<6>, run<7>, run<8>}};

}  // namespace outrider::cpu
