// Lanes: 16 fp32 numbers, as one register, two, or an array. The files *_lanes.cc are compiled once
// for each of scalar, avx2 and avx512 (OUTRIDER_LANES), those that multiply Pairs, *_pairs.cc, for
// avx512_bf16 too, with that instruction set's flags, and give the same bits each time. Everything
// here is always inlined and in the instruction set's own namespace, so that no other file can pick
// it up.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/bf16.h"
#include "kernels/cpu/unroll.h"
#include "kernels/math.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define OUTRIDER_INLINE [[gnu::always_inline]] inline

namespace outrider::cpu::OUTRIDER_LANES {

constexpr int64_t kLanes = 16;

OUTRIDER_INLINE float widen(bf16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}

// to_bf16 of core/bf16.h without a branch, of a float or a vector of them (math.h): the lower
// halves of the result.
template <typename V>
OUTRIDER_INLINE IntegersOf<V> narrow(V x) {
  using Integers = IntegersOf<V>;
  const Integers bits = __builtin_bit_cast(Integers, x);
  const Integers rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return x != x ? (bits >> 16) | 0x40u : rounded;
}

// x rounded to bf16, denormals to the zero of their sign first, as vcvtneps2bf16 does.
template <typename V>
OUTRIDER_INLINE V flush_and_round(V x) {
  using Integers = IntegersOf<V>;
  const Integers bits = __builtin_bit_cast(Integers, x);
  const Integers rounded = narrow(x) << 16;
  return __builtin_bit_cast(V, (bits & 0x7f800000u) == 0 ? bits & 0x80000000u : rounded);
}

// a * b + c, rounded once, of a float or a vector of them.
OUTRIDER_INLINE float fma_of(float a, float b, float c) { return fma_f32(a, b, c); }
#if defined(__AVX2__)
OUTRIDER_INLINE __m256 fma_of(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
#endif
#if defined(__AVX512F__)
OUTRIDER_INLINE __m512 fma_of(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
#endif

// 2^x for x <= 0, within 1.7e-7 of it, relatively. 0 below -125; a NaN of bf16's stays NaN (its
// lowest 9 bits are zero). x = n + r with |r| <= 1/2; 2^r = 1 + r q(r), q minimax.
template <typename V>
OUTRIDER_INLINE V exp2_of_negative(V x) {
  const V lowest = V{} - 125.0f;
  const V shift = V{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const V clamped = lowest > x ? lowest : x;
  const V shifted = clamped + shift;
  const V r = clamped - (shifted - shift);
  V q = fma_of(V{} + 0x1.5bba14p-10f, r, V{} + 0x1.3cea88p-7f);
  q = fma_of(q, r, V{} + 0x1.c6b752p-5f);
  q = fma_of(q, r, V{} + 0x1.ebf9bcp-3f);
  q = fma_of(q, r, V{} + 0x1.62e42ap-1f);
  q = fma_of(q, r, V{} + 1.0f);
  using Integers = IntegersOf<V>;  // n is in the low bits of `shifted`
  const V y = __builtin_bit_cast(
      V, __builtin_bit_cast(Integers, q) + (__builtin_bit_cast(Integers, shifted) << 23));
  return x < lowest ? V{} : y;
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
// The first, the second of each of 16 pairs, 64 bytes in all.
OUTRIDER_INLINE Lanes load_even(const bf16* p) {
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, _mm512_loadu_si512(p), 16))};
}
OUTRIDER_INLINE Lanes load_odd(const bf16* p) {
  return {_mm512_castsi512_ps(
      _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
// a * b + c, rounded once
OUTRIDER_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
OUTRIDER_INLINE Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
OUTRIDER_INLINE Lanes sub(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
OUTRIDER_INLINE Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
OUTRIDER_INLINE Lanes div(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
OUTRIDER_INLINE Lanes max(Lanes a, Lanes b) {  // b where either is NaN
  return {_mm512_maskz_max_ps(0xffff, a.v, b.v)};
}
OUTRIDER_INLINE Lanes exp2_of_negative(Lanes x) { return {exp2_of_negative(x.v)}; }
OUTRIDER_INLINE Lanes silu(Lanes x) { return {silu_f32(x.v)}; }
OUTRIDER_INLINE Lanes gelu_tanh(Lanes x) { return {gelu_tanh_f32(x.v)}; }
OUTRIDER_INLINE Lanes round_to_bf16(Lanes x) { return {flush_and_round(x.v)}; }
OUTRIDER_INLINE void store_narrow(bf16* p, Lanes x) {
  const __m256i bits = _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)narrow(x.v));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
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
OUTRIDER_INLINE __m256 even_half(const bf16* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 16));
}
OUTRIDER_INLINE __m256 odd_half(const bf16* p) {
  return _mm256_castsi256_ps(
      _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
                       _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
OUTRIDER_INLINE Lanes load_even(const bf16* p) { return {even_half(p), even_half(p + 16)}; }
OUTRIDER_INLINE Lanes load_odd(const bf16* p) { return {odd_half(p), odd_half(p + 16)}; }
OUTRIDER_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
OUTRIDER_INLINE Lanes add(Lanes a, Lanes b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
OUTRIDER_INLINE Lanes sub(Lanes a, Lanes b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
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
OUTRIDER_INLINE Lanes exp2_of_negative(Lanes x) {
  return {exp2_of_negative(x.low), exp2_of_negative(x.high)};
}
OUTRIDER_INLINE Lanes silu(Lanes x) { return {silu_f32(x.low), silu_f32(x.high)}; }
OUTRIDER_INLINE Lanes gelu_tanh(Lanes x) { return {gelu_tanh_f32(x.low), gelu_tanh_f32(x.high)}; }
OUTRIDER_INLINE Lanes round_to_bf16(Lanes x) {
  return {flush_and_round(x.low), flush_and_round(x.high)};
}
OUTRIDER_INLINE void store_narrow(bf16* p, Lanes x) {
  const auto low = (__m256i)(narrow(x.low) & 0xffffu);
  const auto high = (__m256i)(narrow(x.high) & 0xffffu);
  const __m256i bits = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
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
OUTRIDER_INLINE Lanes load_even(const bf16* p) {
  Lanes y;
  for (int i = 0; i < 16; ++i) y.v[i] = widen(p[2 * i]);
  return y;
}
OUTRIDER_INLINE Lanes load_odd(const bf16* p) { return load_even(p + 1); }
OUTRIDER_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) {
  for (int i = 0; i < 16; ++i) c.v[i] = fma_f32(a.v[i], b.v[i], c.v[i]);
  return c;
}
OUTRIDER_INLINE Lanes add(Lanes a, Lanes b) {
  for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
  return a;
}
OUTRIDER_INLINE Lanes sub(Lanes a, Lanes b) {
  for (int i = 0; i < 16; ++i) a.v[i] -= b.v[i];
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
OUTRIDER_INLINE Lanes exp2_of_negative(Lanes x) {
  for (float& lane : x.v) lane = exp2_of_negative(lane);
  return x;
}
OUTRIDER_INLINE Lanes silu(Lanes x) {
  for (float& lane : x.v) lane = silu_f32(lane);
  return x;
}
OUTRIDER_INLINE Lanes gelu_tanh(Lanes x) {
  for (float& lane : x.v) lane = gelu_tanh_f32(lane);
  return x;
}
OUTRIDER_INLINE Lanes round_to_bf16(Lanes x) {
  for (float& lane : x.v) lane = flush_and_round(lane);
  return x;
}
OUTRIDER_INLINE void store_narrow(bf16* p, Lanes x) {
  for (int i = 0; i < 16; ++i) p[i] = {static_cast<uint16_t>(narrow(x.v[i]))};
}

#endif

#if defined(__AVX2__)
OUTRIDER_INLINE __m256 halves_added(Lanes x) {
#if defined(__AVX512F__)
  return _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_maskz_extractf32x8_ps(0xff, x.v, 1));
#else
  return _mm256_add_ps(x.low, x.high);
#endif
}
#endif

// Pairs of bf16 side by side, 16 of them in 64 bytes; and Factor, as which a number rounded to bf16
// is kept that is to multiply them.
#if defined(__AVX512BF16__)

struct Pairs {
  __m512i v;
};
using Factor = bf16;

OUTRIDER_INLINE Pairs load_pairs(const bf16* p) { return {_mm512_loadu_si512(p)}; }
OUTRIDER_INLINE Pairs without_second(Pairs x) {
  return {_mm512_and_si512(x.v, _mm512_set1_epi32(0xffff))};
}
// sum + factors[0] * the first of each pair + factors[1] * the second, as linear.h adds them.
OUTRIDER_INLINE Lanes add_products(const Factor* factors, Pairs x, Lanes sum) {
  int both;
  __builtin_memcpy(&both, factors, sizeof both);
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)_mm512_set1_epi32(both), (__m512bh)x.v)};
}
// x rounded to bf16, denormals as zeros, which is kept in factors[0 … 15].
OUTRIDER_INLINE Lanes store_factors(Factor* factors, Lanes x) {
  const auto bits = (__m256i)_mm512_cvtneps_pbh(x.v);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(factors), bits);
  return {_mm512_castsi512_ps(
      _mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, bits), 16))};
}

#else

struct Pairs {
  Lanes first, second;
};
using Factor = float;

OUTRIDER_INLINE Pairs load_pairs(const bf16* p) { return {load_even(p), load_odd(p)}; }
OUTRIDER_INLINE Pairs without_second(Pairs x) { return {x.first, broadcast(0.0f)}; }
OUTRIDER_INLINE Lanes add_products(const Factor* factors, Pairs x, Lanes sum) {
  sum = fma(broadcast(factors[1]), x.second, sum);
  return fma(broadcast(factors[0]), x.first, sum);
}
OUTRIDER_INLINE Lanes store_factors(Factor* factors, Lanes x) {
  const Lanes rounded = round_to_bf16(x);
  store(factors, rounded);
  return rounded;
}

#endif

// The sum of all lanes: lane i + lane i + 8, then i + 4, i + 2, i + 1.
OUTRIDER_INLINE float sum(Lanes x) {
#if defined(__AVX2__)
  const __m256 eight = halves_added(x);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) x.v[i] += x.v[i + width];
  }
  return x.v[0];
#endif
}

OUTRIDER_INLINE float largest(Lanes x) {
  float v[16];
  store(v, x);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v[i] = v[i] > v[i + width] ? v[i] : v[i + width];
  }
  return v[0];
}

// The first `count` of 16, zeros behind them; nothing beyond is read.
template <typename T>
OUTRIDER_INLINE Lanes load(const T* p, int64_t count) {
  if (count >= kLanes) return load(p);
  T padded[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) padded[i] = p[i];
  return load(padded);
}

// The first `count` of 16 numbers, rounded to bf16.
OUTRIDER_INLINE void store_narrow(bf16* p, Lanes x, int64_t count) {
  if (count >= kLanes) return store_narrow(p, x);
  bf16 rounded[kLanes];
  store_narrow(rounded, x);
  __builtin_memcpy(p, rounded, static_cast<size_t>(count) * sizeof(bf16));
}
// The first `count` of 16.
OUTRIDER_INLINE void store(float* p, Lanes x, int64_t count) {
  if (count >= kLanes) return store(p, x);
  float v[16];
  store(v, x);
  __builtin_memcpy(p, v, static_cast<size_t>(count) * sizeof(float));
}

// x in the first `count` lanes of 16, zeros behind them.
OUTRIDER_INLINE Lanes first(Lanes x, int64_t count) {
  if (count >= kLanes) return x;
  float v[kLanes];
  store(v, x);
  return load(v, count);
}

}  // namespace outrider::cpu::OUTRIDER_LANES
