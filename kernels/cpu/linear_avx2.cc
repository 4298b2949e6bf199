// linear on AVX2 and FMA: vdpbf16ps as two fmas on each half of a panel.
#include <immintrin.h>

#include <utility>

#include "kernels/cpu/linear_tile.h"

#define OUTRIDER_AVX2 __attribute__((target("avx2,fma"), always_inline)) inline

namespace outrider::cpu {
namespace {

// Half h of a panel, 8 outputs, of a pair.
struct Bf16Weights {
  static constexpr int64_t kBytes = kPairBytes;
  OUTRIDER_AVX2 static __m256i load(const std::byte* pair, int h) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pair) + h);
  }
  OUTRIDER_AVX2 static __m256 odd(const std::byte* pair, int h) {
    const __m256i odd_mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return _mm256_castsi256_ps(_mm256_and_si256(load(pair, h), odd_mask));
  }
  OUTRIDER_AVX2 static __m256 even(const std::byte* pair, int h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(load(pair, h), 16));
  }
};

struct Int8Weights {
  static constexpr int64_t kBytes = kInt8PairBytes;
  OUTRIDER_AVX2 static __m256 widen(const std::byte* of_8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(of_8));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  }
  OUTRIDER_AVX2 static __m256 odd(const std::byte* pair, int h) {
    return widen(pair + kBytes / 2 + 8 * h);
  }
  OUTRIDER_AVX2 static __m256 even(const std::byte* pair, int h) { return widen(pair + 8 * h); }
};

// Sums are [R][2 P]: two halves of 8 outputs a panel. The chain of a sum is two fmas long for each
// pair, so fewer than 8 chains wait for their latency. Even halves are widened once the odd ones
// are used up: with 12 chains, four registers are left.
template <class Weights, int R, int P, int64_t kStride>
OUTRIDER_AVX2 void add_pairs(const LinearTile& tile, const std::byte* w, int64_t begin, int64_t end,
                             Prefetch prefetch, __m256 (&sums)[R][2 * P]) {
  const float* x = static_cast<const float*>(tile.x);
  for (int64_t j = begin; j < end; ++j) {
    OUTRIDER_UNROLL
    for (int p = 0; p < P; ++p) {
      const std::byte* pair = w + p * tile.w_stride + j * Weights::kBytes;
      fetch<Weights::kBytes>(pair, prefetch.start + p * tile.w_stride + j * prefetch.step);
      __m256 odd[2], even[2];
      OUTRIDER_UNROLL
      for (int h = 0; h < 2; ++h) odd[h] = Weights::odd(pair, h);
      OUTRIDER_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m256 x_odd = _mm256_set1_ps(x[r * kStride + 2 * j + 1]);
        sums[r][2 * p] = _mm256_fmadd_ps(x_odd, odd[0], sums[r][2 * p]);
        sums[r][2 * p + 1] = _mm256_fmadd_ps(x_odd, odd[1], sums[r][2 * p + 1]);
      }
      OUTRIDER_UNROLL
      for (int h = 0; h < 2; ++h) even[h] = Weights::even(pair, h);
      OUTRIDER_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m256 x_even = _mm256_set1_ps(x[r * kStride + 2 * j]);
        sums[r][2 * p] = _mm256_fmadd_ps(x_even, even[0], sums[r][2 * p]);
        sums[r][2 * p + 1] = _mm256_fmadd_ps(x_even, even[1], sums[r][2 * p + 1]);
      }
    }
  }
}

// All ones in the lanes of half panel `half` that are outputs.
OUTRIDER_AVX2 __m256i half_mask(const LinearTile& tile, int64_t half) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int64_t outputs = tile.num_outputs - 8 * half;
  const int count = outputs >= 8 ? 8 : outputs <= 0 ? 0 : static_cast<int>(outputs);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes);
}

template <class Weights, int R, int P, int64_t kStride>
OUTRIDER_AVX2 void add_panels(const LinearTile& tile, int64_t panel) {
  constexpr int64_t kBytes = Weights::kBytes;
  __m256 sums[R][2 * P];
  OUTRIDER_UNROLL
  for (int r = 0; r < R; ++r) {
    OUTRIDER_UNROLL
    for (int h = 0; h < 2 * P; ++h) {
      const float* y = tile.y + r * tile.y_stride + 16 * panel + 8 * h;
      sums[r][h] =
          tile.resume ? _mm256_maskload_ps(y, half_mask(tile, 2 * panel + h)) : _mm256_setzero_ps();
    }
  }
  const std::byte* w = tile.w + panel * tile.w_stride;
  if (tile.count > 1) {
    add_pairs<Weights, R, P, kStride>(tile, w, 0, tile.num_pairs, shared_prefetch<kBytes>(tile, w),
                                      sums);
  } else {
    const int64_t last = tile.num_pairs > kPrefetchPairs ? tile.num_pairs - kPrefetchPairs : 0;
    const std::byte* ahead = w + kPrefetchPairs * kBytes;
    const std::byte* ahead_of_next = ahead + P * tile.w_stride - tile.num_pairs * kBytes;
    add_pairs<Weights, R, P, kStride>(tile, w, 0, last, {ahead, kBytes}, sums);
    add_pairs<Weights, R, P, kStride>(tile, w, last, tile.num_pairs, {ahead_of_next, kBytes}, sums);
  }
  OUTRIDER_UNROLL
  for (int r = 0; r < R; ++r) {
    OUTRIDER_UNROLL
    for (int h = 0; h < 2 * P; ++h) {
      float* y = tile.y + r * tile.y_stride + 16 * panel + 8 * h;
      _mm256_maskstore_ps(y, half_mask(tile, 2 * panel + h), sums[r][h]);
    }
  }
}

template <class Weights, int R, int64_t kStride>
__attribute__((target("avx2,fma"))) void run(const LinearTile& tile) {
  constexpr int P = R == 1 ? 4 : R == 2 ? 2 : 1;  // 6 to 12 of the 16 registers hold sums
  int64_t panel = 0;
  for (; panel + P <= tile.num_panels; panel += P) add_panels<Weights, R, P, kStride>(tile, panel);
  for (; panel < tile.num_panels; ++panel) add_panels<Weights, R, 1, kStride>(tile, panel);
}

template <class Weights, int... kRowsLess1>
constexpr TileKernels kernels(std::integer_sequence<int, kRowsLess1...>) {
  return {true,
          Weights::kBytes,
          6,
          6,
          1,
          {nullptr, run<Weights, kRowsLess1 + 1, kFewRowsStride>...},
          {nullptr, run<Weights, kRowsLess1 + 1, kManyRowsStride>...}};
}

}  // namespace

const TileKernels kTileAvx2 = kernels<Bf16Weights>(std::make_integer_sequence<int, 6>());
const TileKernels kTileAvx2Int8 = kernels<Int8Weights>(std::make_integer_sequence<int, 6>());

}  // namespace outrider::cpu
