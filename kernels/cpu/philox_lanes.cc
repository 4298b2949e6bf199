// Many calls of Philox (core/philox.h) side by side, for one instruction set (lanes.h).
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/lanes_kernels.h"

namespace outrider::cpu::OUTRIDER_LANES {

namespace {

// Words of 32 bits, one in the lower half of each lane; nobody reads the upper halves. So products
// are taken as they come: neither packed nor widened again. product: of lower halves. low_of,
// high_of: the lower, the upper half of the lanes of two, in turn.
#if defined(__AVX512F__)
using Words = uint64_t __attribute__((vector_size(64)));
OUTRIDER_INLINE Words product(Words a, Words b) {
  return (Words)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b);
}
OUTRIDER_INLINE Words low_of(Words a, Words b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
OUTRIDER_INLINE Words high_of(Words a, Words b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
#elif defined(__AVX2__)
using Words = uint64_t __attribute__((vector_size(32)));
OUTRIDER_INLINE Words product(Words a, Words b) {
  return (Words)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}
OUTRIDER_INLINE Words low_of(Words a, Words b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
OUTRIDER_INLINE Words high_of(Words a, Words b) {
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
#else
using Words = uint64_t __attribute__((vector_size(16)));
OUTRIDER_INLINE Words product(Words a, Words b) { return (a & UINT32_MAX) * (b & UINT32_MAX); }
OUTRIDER_INLINE Words low_of(Words a, Words b) { return __builtin_shufflevector(a, b, 0, 2); }
OUTRIDER_INLINE Words high_of(Words a, Words b) { return __builtin_shufflevector(a, b, 1, 3); }
#endif

constexpr int kCalls = sizeof(Words) / sizeof(uint64_t);  // of a register

// Two words of each call, the first in the lower half.
OUTRIDER_INLINE Words pairs(Words first, Words second) {
  return (first & UINT32_MAX) | second << 32;
}

// The four words of each of kCalls calls, call by call.
OUTRIDER_INLINE void store_calls(uint32_t* p, Words first_pairs, Words second_pairs) {
  const Words low = low_of(first_pairs, second_pairs), high = high_of(first_pairs, second_pairs);
  __builtin_memcpy(p, &low, sizeof low);
  __builtin_memcpy(p + 2 * kCalls, &high, sizeof high);
}

}  // namespace

void philox_block(const uint32_t* counter, uint32_t key_low, uint32_t key_high, uint32_t* words) {
  constexpr int kRegisters = 4;  // together, so that one's products hide the latency of another's
  static_assert(kPhiloxBlock % (kRegisters * kCalls) == 0);
  for (int call = 0; call < kPhiloxBlock; call += kRegisters * kCalls) {
    Words c0[kRegisters], c1[kRegisters], c2[kRegisters], c3[kRegisters];
    OUTRIDER_UNROLL
    for (int r = 0; r < kRegisters; ++r) {
      Words calls{};
      for (int lane = 0; lane < kCalls; ++lane) {
        calls[lane] = counter[0] + static_cast<uint32_t>(call + r * kCalls + lane);
      }
      c0[r] = calls;
      c1[r] = Words{} + counter[1];
      c2[r] = Words{} + counter[2];
      c3[r] = Words{} + counter[3];
    }
    uint32_t low = key_low, high = key_high;
    for (int round = 0; round < 10; ++round) {
      OUTRIDER_UNROLL
      for (int r = 0; r < kRegisters; ++r) {
        const Words a = product(c0[r], Words{} + 0xD2511F53u);
        const Words b = product(c2[r], Words{} + 0xCD9E8D57u);
        c0[r] = (b >> 32) ^ c1[r] ^ low;
        c1[r] = b;
        c2[r] = (a >> 32) ^ c3[r] ^ high;
        c3[r] = a;
      }
      low += 0x9E3779B9u;
      high += 0xBB67AE85u;
    }
    OUTRIDER_UNROLL
    for (int r = 0; r < kRegisters; ++r) {
      store_calls(words + 4 * (call + r * kCalls), pairs(c0[r], c1[r]), pairs(c2[r], c3[r]));
    }
  }
}

}  // namespace outrider::cpu::OUTRIDER_LANES
