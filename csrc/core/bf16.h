// bfloat16: the upper half of an fp32. The storage type of weights, activations and the KV cache.
#pragma once

#include <bit>
#include <cstdint>

namespace outrider {

struct bf16 {
  uint16_t bits = 0;
};

inline float to_float(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN.
inline bf16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace outrider
