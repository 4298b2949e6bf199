// fp64 exp and log, ours instead of libm's: the same bits from every compiler, library and
// instruction set. Plain multiplies, adds and one division, without a branch, so a loop over them
// is vectorised. (Always inlined, as in math.h.)
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace outrider {

// x = 2^n m with sqrt(1/2) <= m < sqrt(2), for x > 0 that is not a denormal.
struct PowerOfTwo {
  double n, m;
};
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline PowerOfTwo split_f64(double x) {
  constexpr uint64_t kOne = 0x3ff0000000000000u;
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdu;
  constexpr uint64_t kFraction = 0x000fffffffffffffu;
  constexpr uint64_t kTwo52 = 0x4330000000000000u;
  // Adding the distance to 1 carries into the exponent exactly where x reaches 2^n sqrt(1/2).
  const uint64_t shifted = __builtin_bit_cast(uint64_t, x) + (kOne - kSqrtHalf);
  // The biased exponent becomes a double by way of the low bits of 2^52.
  return {__builtin_bit_cast(double, (shifted >> 52) | kTwo52) - (0x1p52 + 1023.0),
          __builtin_bit_cast(double, (shifted & kFraction) + kSqrtHalf)};
}

// n ln 2 + log(1 + f) for sqrt(1/2) <= 1 + f < sqrt(2).
// log(1 + f) = 2 atanh(s), s = f / (2 + f), |s| < 0.1716: nine terms of its series leave 3e-17.
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline double join_logs_f64(double n, double f) {
  const double s = f / (2.0 + f);
  const double z = s * s;
  double series = 2.0 / 19.0;
  series = series * z + 2.0 / 17.0;
  series = series * z + 2.0 / 15.0;
  series = series * z + 2.0 / 13.0;
  series = series * z + 2.0 / 11.0;
  series = series * z + 2.0 / 9.0;
  series = series * z + 2.0 / 7.0;
  series = series * z + 2.0 / 5.0;
  series = series * z + 2.0 / 3.0;
  return n * 0.693147180559945309 + (2.0 * s + s * z * series);
}

// -log(1 - u) for 0 < u < 1, within 5e-16 of it, relatively, however small u is: for small u,
// f = -u as it is given.
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline double neg_log1p_f64(double u) {
  const PowerOfTwo one_less = split_f64(1.0 - u);
  return -join_logs_f64(one_less.n, u < 0.25 ? -u : one_less.m - 1.0);
}

// log(x) for x > 0 that is not a denormal, within 5e-16 of it, relatively.
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline double log_f64(double x) {
  const PowerOfTwo split = split_f64(x);
  return join_logs_f64(split.n, split.m - 1.0);
}

// e^x for x <= 0, within 4e-16 of it, relatively; 0 below -700.
// x = n ln 2 + r, |r| <= ln 2 / 2, ln 2 in two parts; 13 terms of e^r leave 4e-18.
[[gnu::always_inline]] OUTRIDER_HOST_DEVICE inline double exp_f64(double x) {
  constexpr double kRound = 0x1.8p52;  // adding it rounds to an integer
  const double clamped = x > -700.0 ? x : -700.0;
  const double shifted = clamped * 1.44269504088896340736 + kRound;
  const double n = shifted - kRound;
  const double r = (clamped - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
  double e = 1.0 / 6227020800.0;
  e = e * r + 1.0 / 479001600.0;
  e = e * r + 1.0 / 39916800.0;
  e = e * r + 1.0 / 3628800.0;
  e = e * r + 1.0 / 362880.0;
  e = e * r + 1.0 / 40320.0;
  e = e * r + 1.0 / 5040.0;
  e = e * r + 1.0 / 720.0;
  e = e * r + 1.0 / 120.0;
  e = e * r + 1.0 / 24.0;
  e = e * r + 1.0 / 6.0;
  e = e * r + 0.5;
  e = e * r + 1.0;
  e = e * r + 1.0;
  const uint64_t scaled =
      __builtin_bit_cast(uint64_t, e) + (__builtin_bit_cast(uint64_t, shifted) << 52);
  return x < -700.0 ? 0.0 : __builtin_bit_cast(double, scaled);
}

}  // namespace outrider
