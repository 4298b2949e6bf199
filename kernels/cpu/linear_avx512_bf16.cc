// linear on AVX-512 BF16: one vdpbf16ps a pair.
#include "kernels/cpu/linear_avx512.h"

#define OUTRIDER_AVX512_BF16 __attribute__((target("avx512f,avx512bf16"), always_inline)) inline

namespace outrider::cpu {
namespace {

// Pairs [begin, end) of P panels side by side, in R * P independent chains. Even a single chain, a
// line each six cycles, keeps up with memory.
template <int R, int P, int64_t kStride>
OUTRIDER_AVX512_BF16 void add_pairs(const LinearTile& tile, const std::byte* w, int64_t begin,
                                    int64_t end, Prefetch prefetch, __m512 (&sums)[R][P]) {
  const bf16* x = static_cast<const bf16*>(tile.x);
  for (int64_t j = begin; j < end; ++j) {
    __m512i pairs[P];
    OUTRIDER_UNROLL
    for (int p = 0; p < P; ++p) {
      const std::byte* pair = w + p * tile.w_stride + j * kPairBytes;
      fetch(pair, prefetch.start + p * tile.w_stride + j * prefetch.step);
      pairs[p] = _mm512_loadu_si512(pair);
    }
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r) {
      int x_pair;
      __builtin_memcpy(&x_pair, x + r * kStride + 2 * j, sizeof x_pair);
      const auto x_both = (__m512bh)_mm512_set1_epi32(x_pair);
      OUTRIDER_UNROLL
      for (int p = 0; p < P; ++p) {
        sums[r][p] = _mm512_dpbf16_ps(sums[r][p], x_both, (__m512bh)pairs[p]);
      }
    }
  }
}

// How far a tile that is alone fetches ahead. Of one row or two the core itself has some 35 pairs
// under way, and more than that and these are more than it can wait for: 128, which is best for
// five rows, takes one row 4 to 9 % longer (seen on Zen 4).
constexpr int64_t prefetch_pairs(int rows) { return rows <= 2 ? 40 : rows <= 4 ? 112 : 128; }

template <int R, int P, int64_t kStride>
OUTRIDER_AVX512_BF16 void add_panels(const LinearTile& tile, int64_t panel) {
  __m512 sums[R][P];
  load_sums<R, P>(tile, panel, sums);
  const std::byte* w = tile.w + panel * tile.w_stride;
  if (tile.count > 1) {
    add_pairs<R, P, kStride>(tile, w, 0, tile.num_pairs, shared_prefetch(tile, w), sums);
  } else {
    constexpr int64_t kAhead = prefetch_pairs(R);
    const int64_t last = tile.num_pairs > kAhead ? tile.num_pairs - kAhead : 0;
    const std::byte* ahead = w + kAhead * kPairBytes;
    const std::byte* ahead_of_next = ahead + P * tile.w_stride - tile.num_pairs * kPairBytes;
    add_pairs<R, P, kStride>(tile, w, 0, last, {ahead, kPairBytes}, sums);
    add_pairs<R, P, kStride>(tile, w, last, tile.num_pairs, {ahead_of_next, kPairBytes}, sums);
  }
  store_sums<R, P>(tile, panel, sums);
}

template <int R, int64_t kStride>
__attribute__((target("avx512f,avx512bf16"))) void run(const LinearTile& tile) {
  // Memory delivers most to a single stream; from 6 rows on, x is better loaded once for several
  // panels. At most 24 registers hold sums.
  constexpr int P = R <= 5 ? 1 : R <= 8 ? 3 : R <= 12 ? 2 : 1;
  int64_t panel = 0;
  for (; panel + P <= tile.num_panels; panel += P) add_panels<R, P, kStride>(tile, panel);
  for (; panel < tile.num_panels; ++panel) add_panels<R, 1, kStride>(tile, panel);
}

}  // namespace

const TileKernels kTileAvx512Bf16 = {
    false,
    16,
    12,
    2,
    {nullptr, run<1, kFewRowsStride>, run<2, kFewRowsStride>, run<3, kFewRowsStride>,
     run<4, kFewRowsStride>, run<5, kFewRowsStride>, run<6, kFewRowsStride>, run<7, kFewRowsStride>,
     run<8, kFewRowsStride>, run<9, kFewRowsStride>, run<10, kFewRowsStride>,
     run<11, kFewRowsStride>, run<12, kFewRowsStride>, run<13, kFewRowsStride>,
     run<14, kFewRowsStride>, run<15, kFewRowsStride>, run<16, kFewRowsStride>},
    {nullptr, run<1, kManyRowsStride>, run<2, kManyRowsStride>, run<3, kManyRowsStride>,
     run<4, kManyRowsStride>, run<5, kManyRowsStride>, run<6, kManyRowsStride>,
     run<7, kManyRowsStride>, run<8, kManyRowsStride>, run<9, kManyRowsStride>,
     run<10, kManyRowsStride>, run<11, kManyRowsStride>, run<12, kManyRowsStride>,
     run<13, kManyRowsStride>, run<14, kManyRowsStride>, run<15, kManyRowsStride>,
     run<16, kManyRowsStride>}};

}  // namespace outrider::cpu
