// linear on AVX-512: vdpbf16ps as two fmas, the weights widened to fp32.
#include "kernels/cpu/linear_avx512.h"

#include <algorithm>
#include <utility>

namespace outrider::cpu {
namespace {

constexpr int kGroupPanels = 2;  // that tiles which share panels get at a time
constexpr int kMaxShared = 12;   // rows of such a tile

// How many pairs ahead a tile that is alone fetches its weights, to the second-level cache and to
// the first; straight to the first where near is 0.
struct FetchAhead {
  int64_t far, near;
};
constexpr FetchAhead kFetchFar{kPrefetchPairs, kNearPairs};

// By a mask and a shift.
struct Bf16Weights {
  static constexpr int64_t kBytes = kPairBytes;
  static constexpr int kMaxAlone = 13;  // rows whose sums fit by two panels
  // As an Intel core without vdpbf16ps wants it, which has most from memory where many panels are
  // read side by side and little is fetched ahead of each, as long as all sums stay in registers:
  // on Ice Lake passes of eight rows took 1.19 times as long by four panels as by three, and of ten
  // 1.29 times by three as by two. Of few rows each line of many panels is fetched once: not for
  // both caches.
  static constexpr int panels(int rows) {
    return rows <= 2 ? 12 : rows == 3 ? 6 : rows == 4 ? 5 : rows == 5 ? 4 : rows <= 8 ? 3 : 2;
  }
  static constexpr FetchAhead fetch_ahead(int rows, int panels) {
    return panels == 1   ? kFetchFar
           : panels == 2 ? FetchAhead{48, 8}
                         : FetchAhead{24, rows <= 5 ? 0 : 4};
  }
  OUTRIDER_AVX512 static void widen(const std::byte* pair, __m512& odd, __m512& even) {
    const __m512i both = _mm512_loadu_si512(pair);
    odd = _mm512_castsi512_ps(
        _mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    even = _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, both, 16));
  }
};

// By two conversions each.
struct Int8Weights {
  static constexpr int64_t kBytes = kInt8PairBytes;
  static constexpr int kMaxAlone = 12;
  static constexpr int panels(int rows) { return rows <= 8 ? 3 : 2; }
  static constexpr FetchAhead fetch_ahead(int, int) { return kFetchFar; }
  OUTRIDER_AVX512 static __m512 widen(const std::byte* of_16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(of_16));
    return _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, bytes));
  }
  OUTRIDER_AVX512 static void widen(const std::byte* pair, __m512& odd, __m512& even) {
    even = widen(pair);
    odd = widen(pair + kBytes / 2);
  }
};

// Pairs [begin, end) of P panels side by side. The R * P chains are independent, which hides the
// latency of fma. A step is 2 R P fmas and P times the uops of widening; weights are loaded once
// for R rows and x once for P panels.
template <class Weights, int R, int P, int64_t kStride, int64_t kNear>
OUTRIDER_AVX512 void add_pairs(const LinearTile& tile, const std::byte* w, int64_t begin,
                               int64_t end, Prefetch prefetch, __m512 (&sums)[R][P]) {
  const float* x = static_cast<const float*>(tile.x);
  for (int64_t j = begin; j < end; ++j) {
    __m512 odd[P], even[P];
    OUTRIDER_UNROLL
    for (int p = 0; p < P; ++p) {
      const std::byte* pair = w + p * tile.w_stride + j * Weights::kBytes;
      fetch<Weights::kBytes, kNear>(pair, prefetch.start + p * tile.w_stride + j * prefetch.step);
      Weights::widen(pair, odd[p], even[p]);
    }
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512 x_odd = _mm512_set1_ps(x[r * kStride + 2 * j + 1]);
      OUTRIDER_UNROLL
      for (int p = 0; p < P; ++p) sums[r][p] = _mm512_fmadd_ps(x_odd, odd[p], sums[r][p]);
    }
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512 x_even = _mm512_set1_ps(x[r * kStride + 2 * j]);
      OUTRIDER_UNROLL
      for (int p = 0; p < P; ++p) sums[r][p] = _mm512_fmadd_ps(x_even, even[p], sums[r][p]);
    }
  }
}

// Tiles that share their panels (run_tiles in linear.cc) fetch otherwise than one that is alone.
template <class Weights, int R, int P, int64_t kStride, bool kShared>
OUTRIDER_AVX512 void add_panels(const LinearTile& tile, int64_t panel) {
  constexpr int64_t kBytes = Weights::kBytes;
  __m512 sums[R][P];
  load_sums<R, P>(tile, panel, sums);
  const std::byte* w = tile.w + panel * tile.w_stride;
  if constexpr (kShared) {
    add_pairs<Weights, R, P, kStride, kNearPairs>(tile, w, 0, tile.num_pairs,
                                                  shared_prefetch<kBytes>(tile, w), sums);
  } else {
    constexpr FetchAhead kAhead = Weights::fetch_ahead(R, P);
    const int64_t last = tile.num_pairs > kAhead.far ? tile.num_pairs - kAhead.far : 0;
    const std::byte* ahead = w + kAhead.far * kBytes;
    const std::byte* ahead_of_next = ahead + P * tile.w_stride - tile.num_pairs * kBytes;
    add_pairs<Weights, R, P, kStride, kAhead.near>(tile, w, 0, last, {ahead, kBytes}, sums);
    add_pairs<Weights, R, P, kStride, kAhead.near>(tile, w, last, tile.num_pairs,
                                                   {ahead_of_next, kBytes}, sums);
  }
  store_sums<R, P>(tile, panel, sums);
}

// count panels side by side, at most P.
template <class Weights, int R, int P, int64_t kStride, bool kShared>
OUTRIDER_AVX512 void add_group(const LinearTile& tile, int64_t panel, int64_t count) {
  if (count == P) {
    add_panels<Weights, R, P, kStride, kShared>(tile, panel);
  } else if constexpr (P > 1) {
    add_group<Weights, R, P - 1, kStride, kShared>(tile, panel, count);
  }
}

// Groups of about equal size, rather than full ones and panels left over; the larger ones first, so
// that each fetches all of the next one's panels.
template <class Weights, int R, int P, int64_t kStride, bool kShared>
OUTRIDER_AVX512 void add_groups(const LinearTile& tile) {
  int64_t panel = 0;
  for (int64_t groups = (tile.num_panels + P - 1) / P; groups > 0; --groups) {
    const int64_t count = (tile.num_panels - panel + groups - 1) / groups;
    add_group<Weights, R, P, kStride, kShared>(tile, panel, count);
    panel += count;
  }
}

template <class Weights, int R, int64_t kStride>
__attribute__((target("avx512f"))) void run(const LinearTile& tile) {
  constexpr int kAlone = Weights::panels(R);
  if constexpr (kStride == kFewRowsStride) {
    if (tile.count == 1) return add_groups<Weights, R, kAlone, kStride, false>(tile);
  }
  add_groups<Weights, R, std::min(kAlone, kGroupPanels), kStride, true>(tile);
}

template <class Weights, int... kRowsLess1>
constexpr TileKernels kernels(std::integer_sequence<int, kRowsLess1...>) {
  return {true,
          Weights::kBytes,
          Weights::kMaxAlone,
          kMaxShared,
          kGroupPanels,
          {nullptr, run<Weights, kRowsLess1 + 1, kFewRowsStride>...},
          {nullptr, run<Weights, kRowsLess1 + 1, kManyRowsStride>...}};
}

}  // namespace

const TileKernels kTileAvx512 =
    kernels<Bf16Weights>(std::make_integer_sequence<int, Bf16Weights::kMaxAlone>());
const TileKernels kTileAvx512Int8 =
    kernels<Int8Weights>(std::make_integer_sequence<int, Int8Weights::kMaxAlone>());

}  // namespace outrider::cpu
