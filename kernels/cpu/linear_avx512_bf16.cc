// linear on AVX-512 BF16: one vdpbf16ps a pair.
#include "kernels/cpu/linear_avx512.h"

#define OUTRIDER_AVX512_BF16 __attribute__((target("avx512f,avx512bf16"), always_inline)) inline

namespace outrider::cpu {
namespace {

// Pairs [begin, end) of P panels side by side. The R * P chains are independent, which hides the
// latency of vdpbf16ps.
template <int R, int P>
OUTRIDER_AVX512_BF16 void add_pairs(const LinearTile& tile, const std::byte* w, int64_t begin,
                                    int64_t end, int64_t prefetch_bytes, __m512 (&sums)[R][P]) {
  const bf16* x = static_cast<const bf16*>(tile.x);
  for (int64_t j = begin; j < end; ++j) {
    __m512i pairs[P];
    OUTRIDER_UNROLL
    for (int p = 0; p < P; ++p) {
      const std::byte* pair = w + p * tile.w_stride + j * kPairBytes;
      _mm_prefetch(reinterpret_cast<const char*>(pair) + prefetch_bytes, _MM_HINT_T0);
      pairs[p] = _mm512_loadu_si512(pair);
    }
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r) {
      int x_pair;
      __builtin_memcpy(&x_pair, x + r * tile.x_stride + 2 * j, sizeof x_pair);
      const auto x_both = (__m512bh)_mm512_set1_epi32(x_pair);
      OUTRIDER_UNROLL
      for (int p = 0; p < P; ++p) {
        sums[r][p] = _mm512_dpbf16_ps(sums[r][p], x_both, (__m512bh)pairs[p]);
      }
    }
  }
}

template <int R, int P>
OUTRIDER_AVX512_BF16 void add_panels(const LinearTile& tile, int64_t panel) {
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
__attribute__((target("avx512f,avx512bf16"))) void run(const LinearTile& tile) {
  constexpr int P = R <= 2 ? 4 : R <= 6 ? 3 : 2;  // at most 18 of the 32 registers hold sums
  int64_t panel = 0;
  for (; panel + P <= tile.num_panels; panel += P) add_panels<R, P>(tile, panel);
  for (; panel < tile.num_panels; ++panel) add_panels<R, 1>(tile, panel);
}

}  // namespace

const TileKernels kTileAvx512Bf16 = {
    false, 8, 2, {nullptr, run<1>, run<2>, run<3>, run<4>, run<5>, run<6>, run<7>, run<8>}};

}  // namespace outrider::cpu
