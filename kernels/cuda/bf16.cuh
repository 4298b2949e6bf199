// bf16 in registers: numbers one by one, and pairs in a word, the first in the lower half. Rounding
// is to nearest, ties to even.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/bf16.h"

namespace outrider::cuda {

__device__ inline float widen(bf16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
__device__ inline bf16 narrow(float x) { return {__bfloat16_as_ushort(__float2bfloat16_rn(x))}; }

__device__ inline uint32_t pair_of(bf16 low, bf16 high) {
  return low.bits | static_cast<uint32_t>(high.bits) << 16;
}
__device__ inline uint32_t narrow_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return __bfloat16_as_ushort(pair.x) | static_cast<uint32_t>(__bfloat16_as_ushort(pair.y)) << 16;
}
__device__ inline float widen_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float widen_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

}  // namespace outrider::cuda
