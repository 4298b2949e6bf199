// linear on AVX-512 BF16: one vdpbf16ps a pair.
#include <utility>

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

// What of the weights a tile asks for at a time, where it is alone and memory is what it waits for:
// panels side by side, and how far ahead it fetches.
struct FetchNear {
  // Memory delivers most to a single stream; from 6 rows on, x is better loaded once for several
  // panels. At most 24 registers hold sums.
  static constexpr int panels(int rows) {
    return rows <= 5 ? 1 : rows <= 8 ? 3 : rows <= 12 ? 2 : 1;
  }
  // Of one row or two the core itself has some 35 pairs under way, and more than that and these are
  // more than it can wait for: 128, which is best for five rows, takes one row 4 to 9 % longer
  // (seen on Zen 4).
  static constexpr int64_t pairs(int rows) { return rows <= 2 ? 40 : rows <= 4 ? 112 : 128; }
};
// On Zen 5, where against the above one row takes 15 % less, five 5 % and eight 9 %.
struct FetchFar {
  static constexpr int panels(int rows) { return rows <= 10 ? 1 : FetchNear::panels(rows); }
  static constexpr int64_t pairs(int) { return 256; }
};

template <typename Fetch, int R, int P, int64_t kStride>
OUTRIDER_AVX512_BF16 void add_panels(const LinearTile& tile, int64_t panel) {
  __m512 sums[R][P];
  load_sums<R, P>(tile, panel, sums);
  const std::byte* w = tile.w + panel * tile.w_stride;
  if (tile.count > 1) {
    add_pairs<R, P, kStride>(tile, w, 0, tile.num_pairs, shared_prefetch(tile, w), sums);
  } else {
    constexpr int64_t kAhead = Fetch::pairs(R);
    const int64_t last = tile.num_pairs > kAhead ? tile.num_pairs - kAhead : 0;
    const std::byte* ahead = w + kAhead * kPairBytes;
    const std::byte* ahead_of_next = ahead + P * tile.w_stride - tile.num_pairs * kPairBytes;
    add_pairs<R, P, kStride>(tile, w, 0, last, {ahead, kPairBytes}, sums);
    add_pairs<R, P, kStride>(tile, w, last, tile.num_pairs, {ahead_of_next, kPairBytes}, sums);
  }
  store_sums<R, P>(tile, panel, sums);
}

template <typename Fetch, int R, int64_t kStride>
__attribute__((target("avx512f,avx512bf16"))) void run(const LinearTile& tile) {
  constexpr int P = Fetch::panels(R);
  int64_t panel = 0;
  for (; panel + P <= tile.num_panels; panel += P) add_panels<Fetch, R, P, kStride>(tile, panel);
  for (; panel < tile.num_panels; ++panel) add_panels<Fetch, R, 1, kStride>(tile, panel);
}

// Tiles of many rows share their panels, which are in the cache then.
template <typename Fetch, int... kRowsLess1>
constexpr TileKernels kernels(std::integer_sequence<int, kRowsLess1...>) {
  return {false,
          kPairBytes,
          kMaxRegisterRows,
          12,
          2,
          {nullptr, run<Fetch, kRowsLess1 + 1, kFewRowsStride>...},
          {nullptr, run<FetchNear, kRowsLess1 + 1, kManyRowsStride>...}};
}

}  // namespace

const TileKernels kTileAvx512Bf16 =
    kernels<FetchNear>(std::make_integer_sequence<int, kMaxRegisterRows>());
const TileKernels kTileAvx512Bf16Far =
    kernels<FetchFar>(std::make_integer_sequence<int, kMaxRegisterRows>());

}  // namespace outrider::cpu
