// Lanes: 16 fp32 numbers, as one register, two, or an array. The files *_lanes.cc are compiled once
// for each of scalar, avx2 and avx512 (OUTRIDER_LANES), with that instruction set's flags, and give
// the same bits each time. Everything here is always inlined and in the instruction set's own
// namespace, so that no other file can pick it up.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/bf16.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/unroll.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define OUTRIDER_INLINE [[gnu::always_inline]] inline

namespace outrider::cpu::OUTRIDER_LANES {

constexpr int64_t kLanes = 16;

OUTRIDER_INLINE float widen(bf16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}

// to_bf16 of core/bf16.h without a branch.
OUTRIDER_INLINE bf16 narrow(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return {static_cast<uint16_t>(x != x ? (bits >> 16) | 0x40u : rounded)};
}

#if defined(__AVX512F__)

struct Lanes {
  __m512 v;
};

OUTRIDER_INLINE Lanes broadcast(float x) { return {_mm512_set1_ps(x)}; }
OUTRIDER_INLINE Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
OUTRIDER_INLINE void store(float* p, Lanes x) { _mm512_storeu_ps(p, x.v); }
OUTRIDER_INLINE Lanes load(const bf16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(
      _mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, bits), 16))};
}
// a * b + c, rounded once
OUTRIDER_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
OUTRIDER_INLINE Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
OUTRIDER_INLINE Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
OUTRIDER_INLINE Lanes div(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
OUTRIDER_INLINE Lanes max(Lanes a, Lanes b) {  // b where either is NaN
  return {_mm512_maskz_max_ps(0xffff, a.v, b.v)};
}

// a's 128-bit quarters kA and kB, then b's.
template <int kControl>
OUTRIDER_INLINE __m512 quarters(__m512 a, __m512 b) {
  return _mm512_maskz_shuffle_f32x4(0xffff, a, b, kControl);
}
template <int kControl>
OUTRIDER_INLINE __m512 elements(__m512 a, __m512 b) {
  return _mm512_maskz_shuffle_ps(0xffff, a, b, kControl);
}

// Lane t of the result is sum(rows[t]): each step adds halves of two vectors and packs them.
OUTRIDER_INLINE Lanes sums(const Lanes (&rows)[16]) {
  __m512 by_four[4];
  OUTRIDER_UNROLL
  for (int e = 0; e < 4; ++e) {
    const __m512 a = rows[e].v, b = rows[4 + e].v, c = rows[8 + e].v, d = rows[12 + e].v;
    const __m512 ab = _mm512_add_ps(quarters<0x44>(a, b), quarters<0xee>(a, b));
    const __m512 cd = _mm512_add_ps(quarters<0x44>(c, d), quarters<0xee>(c, d));
    by_four[e] = _mm512_add_ps(quarters<0x88>(ab, cd), quarters<0xdd>(ab, cd));
  }
  const __m512 low =
      _mm512_add_ps(elements<0x44>(by_four[0], by_four[1]), elements<0xee>(by_four[0], by_four[1]));
  const __m512 high =
      _mm512_add_ps(elements<0x44>(by_four[2], by_four[3]), elements<0xee>(by_four[2], by_four[3]));
  return {_mm512_add_ps(elements<0x88>(low, high), elements<0xdd>(low, high))};
}

#elif defined(__AVX2__)

struct Lanes {
  __m256 low, high;
};

OUTRIDER_INLINE Lanes broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
OUTRIDER_INLINE Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
OUTRIDER_INLINE void store(float* p, Lanes x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
OUTRIDER_INLINE __m256 load_half(const bf16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
OUTRIDER_INLINE Lanes load(const bf16* p) { return {load_half(p), load_half(p + 8)}; }
OUTRIDER_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
OUTRIDER_INLINE Lanes add(Lanes a, Lanes b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
OUTRIDER_INLINE Lanes mul(Lanes a, Lanes b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
OUTRIDER_INLINE Lanes div(Lanes a, Lanes b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
OUTRIDER_INLINE Lanes max(Lanes a, Lanes b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}

// sums of rows 0 … 7
OUTRIDER_INLINE __m256 eight_sums(const Lanes* rows) {
  __m256 by_four[4];
  OUTRIDER_UNROLL
  for (int e = 0; e < 4; ++e) {
    const __m256 a = _mm256_add_ps(rows[e].low, rows[e].high);
    const __m256 b = _mm256_add_ps(rows[4 + e].low, rows[4 + e].high);
    by_four[e] =
        _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  }
  const __m256 low = _mm256_add_ps(_mm256_shuffle_ps(by_four[0], by_four[1], 0x44),
                                   _mm256_shuffle_ps(by_four[0], by_four[1], 0xee));
  const __m256 high = _mm256_add_ps(_mm256_shuffle_ps(by_four[2], by_four[3], 0x44),
                                    _mm256_shuffle_ps(by_four[2], by_four[3], 0xee));
  return _mm256_add_ps(_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xdd));
}
OUTRIDER_INLINE Lanes sums(const Lanes (&rows)[16]) {
  return {eight_sums(rows), eight_sums(rows + 8)};
}

#else

struct Lanes {
  float v[16];
};

OUTRIDER_INLINE Lanes broadcast(float x) {
  Lanes y;
  for (float& lane : y.v) lane = x;
  return y;
}
OUTRIDER_INLINE Lanes load(const float* p) {
  Lanes y;
  for (int i = 0; i < 16; ++i) y.v[i] = p[i];
  return y;
}
OUTRIDER_INLINE void store(float* p, Lanes x) {
  for (int i = 0; i < 16; ++i) p[i] = x.v[i];
}
OUTRIDER_INLINE Lanes load(const bf16* p) {
  Lanes y;
  for (int i = 0; i < 16; ++i) y.v[i] = widen(p[i]);
  return y;
}
OUTRIDER_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) {
  for (int i = 0; i < 16; ++i) c.v[i] = fma_f32(a.v[i], b.v[i], c.v[i]);
  return c;
}
OUTRIDER_INLINE Lanes add(Lanes a, Lanes b) {
  for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
  return a;
}
OUTRIDER_INLINE Lanes mul(Lanes a, Lanes b) {
  for (int i = 0; i < 16; ++i) a.v[i] *= b.v[i];
  return a;
}
OUTRIDER_INLINE Lanes div(Lanes a, Lanes b) {
  for (int i = 0; i < 16; ++i) a.v[i] /= b.v[i];
  return a;
}
OUTRIDER_INLINE Lanes max(Lanes a, Lanes b) {
  for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}

#endif

// The sum of all lanes: lane i + lane i + 8, then i + 4, i + 2, i + 1.
OUTRIDER_INLINE float sum(Lanes x) {
  float v[16];
  store(v, x);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v[i] += v[i + width];
  }
  return v[0];
}

#if !defined(__AVX2__)
OUTRIDER_INLINE Lanes sums(const Lanes (&rows)[16]) {
  Lanes y;
  for (int t = 0; t < 16; ++t) y.v[t] = sum(rows[t]);
  return y;
}
#endif

OUTRIDER_INLINE float largest(Lanes x) {
  float v[16];
  store(v, x);
  float y = v[0];
  for (int i = 1; i < 16; ++i) y = v[i] > y ? v[i] : y;
  return y;
}

// The first `count` of 16, zeros behind them; nothing beyond is read.
template <typename T>
OUTRIDER_INLINE Lanes load(const T* p, int64_t count) {
  if (count >= kLanes) return load(p);
  T padded[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) padded[i] = p[i];
  return load(padded);
}

// 16 numbers rounded to bf16, of which the first `count` are stored.
OUTRIDER_INLINE void store_narrow(bf16* p, Lanes x, int64_t count) {
  float v[16];
  store(v, x);
  bf16 rounded[16];
  for (int i = 0; i < 16; ++i) rounded[i] = narrow(v[i]);
  if (count >= kLanes) {
    __builtin_memcpy(p, rounded, sizeof rounded);
  } else {
    __builtin_memcpy(p, rounded, static_cast<size_t>(count) * sizeof(bf16));
  }
}

}  // namespace outrider::cpu::OUTRIDER_LANES
