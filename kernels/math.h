// fp32 exp, silu, gelu and fma, ours instead of libm's: the same bits from every compiler, library
// and instruction set. Plain multiplies and adds without a branch, for a float or a vector of them.
// (Always inlined and free of std functions: files compiled for different instruction sets share
// this header, and the linker must not pick one file's copy for the others.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"

namespace outrider {

// Integers in place of floats: of V, a float or a vector of them (as __m256 and __m512 are).
template <size_t kBytes>
struct IntegersOfSize;
template <>
struct IntegersOfSize<4> {
  using type = uint32_t;
};
template <>
struct IntegersOfSize<32> {
  using type = uint32_t __attribute__((vector_size(32)));
};
template <>
struct IntegersOfSize<64> {
  using type = uint32_t __attribute__((vector_size(64)));
};
template <typename V>
using IntegersOf = typename IntegersOfSize<sizeof(V)>::type;

// e^x within 8.1e-8 of it, relatively. 0 below -87.3365, where e^x is a denormal; infinity above
// 88.7228; NaN stays NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2, ln 2 in two parts of which the first gives an exact product
// (Cody and Waite 1980); e^r = 1 + r + r² q(r), q minimax, 3.8e-9.
template <typename V>
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline V exp_f32(V x) {
  using Integers = IntegersOf<V>;
  const V lowest = V{} + -87.3365f;
  const V highest = V{} + 88.72283f;
  constexpr float kRound = 12582912.0f;   // 1.5 * 2^23: adding it rounds to an integer
  const V low = x > lowest ? x : lowest;  // a NaN goes on as `lowest` and comes back below
  const V clamped = low < highest ? low : highest;
  const V shifted = clamped * 1.44269504f + kRound;
  const V n = shifted - kRound;
  const V r = (clamped - n * 0.693359375f) - n * -2.12194442e-4f;
  V q = V{} + 0x1.6a240cp-10f;
  q = q * r + 0x1.1239f2p-7f;
  q = q * r + 0x1.5558f2p-5f;
  q = q * r + 0x1.555492p-3f;
  q = q * r + 0x1.fffffcp-2f;
  const V e = 1.0f + (r + (r * r) * q);
  // e * 2^n: n is in the low bits of `shifted`.
  V y = __builtin_bit_cast(
      V, __builtin_bit_cast(Integers, e) + (__builtin_bit_cast(Integers, shifted) << 23));
  y = x < lowest ? V{} : y;
  y = x > highest ? V{} + __builtin_inff() : y;
  return x != x ? x : y;
}

// x / (1 + e^-x)
template <typename V>
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline V silu_f32(V x) {
  return x / (1.0f + exp_f32(-x));
}

// x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x³), GELU's approximation by tanh
// (Hendrycks and Gimpel 2016), written as x / (1 + e^-2u), in which nothing cancels.
template <typename V>
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline V gelu_tanh_f32(V x) {
  constexpr float kLinear = 1.59576912f;   // 2 sqrt(2 / pi)
  constexpr float kCubic = 0.0713548163f;  // 0.044715 of it
  return x / (1.0f + exp_f32(-x * (x * x * kCubic + kLinear)));
}

// A denormal becomes the zero of its sign.
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline float flush_f32(float x) {
  return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x;
}

// a * b + c rounded once, to fp32, denormal operands and results taken as zeros of their sign: what
// fma gives with flush-to-zero and denormals-are-zero, on any processor and whatever its settings.
// The product is exact in fp64; the sum there is rounded to odd, so that rounding it again to fp32
// is right (Boldo and Melquiond 2008). x86 decides that a result is a denormal after rounding.
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline float fma_f32(float a, float b, float c) {
  const double product = static_cast<double>(flush_f32(a)) * static_cast<double>(flush_f32(b));
  const double addend = flush_f32(c);
  const double sum = product + addend;
  const double part = sum - product;
  const double lost = (product - (sum - part)) + (addend - part);  // exact; NaN at infinity
  uint64_t bits = __builtin_bit_cast(uint64_t, sum);
  const bool to_odd = (lost < 0.0 || lost > 0.0) && (bits & 1) == 0;
  bits += to_odd ? ((lost > 0.0) == (sum > 0.0) ? 1 : -1) : 0;
  const double odd = __builtin_bit_cast(double, bits);
  const bool tiny = __builtin_fabs(odd) < 0x1p-126 - 0x1p-151;  // below: rounds under 2^-126
  return tiny ? __builtin_copysignf(0.0f, static_cast<float>(sum)) : static_cast<float>(odd);
}

}  // namespace outrider
