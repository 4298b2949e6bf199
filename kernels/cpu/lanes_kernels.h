// The kernels that *_lanes.cc and *_pairs.cc define for each instruction set; elementwise.h and
// attention.h say what they compute, and choose among them, as sample.cc does among philox_block.
#pragma once

#include <cstdint>

#include "core/bf16.h"
#include "kernels/cpu/attention.h"

#define OUTRIDER_DECLARE_LANES_KERNELS(isa)                                                      \
  namespace isa {                                                                                \
  void rms_norm(float* x, const float* addend, const bf16* weight, bf16* y, int64_t rows,        \
                int64_t hidden, float epsilon);                                                  \
  void layer_norm(float* x, const float* addend, const bf16* weight, const bf16* bias, bf16* y,  \
                  int64_t rows, int64_t hidden, float epsilon);                                  \
  void silu_mul(const float* gate_up, bf16* y, int64_t rows, int64_t width);                     \
  void gelu_tanh(const float* x, bf16* y, int64_t size);                                         \
  void rope_and_cache(float* qkv, const float* cos_table, const float* sin_table, bf16* k_pages, \
                      bf16* v_pages, RowPointers map, int64_t rows, AttentionShape shape);       \
  void philox_block(const uint32_t* counter, uint32_t key_low, uint32_t key_high,                \
                    uint32_t* words);                                                            \
  }

#define OUTRIDER_DECLARE_PAIRS_KERNELS(isa)                                            \
  namespace isa {                                                                      \
  void attention(const float* qkv, const bf16* k_pages, const bf16* v_pages, bf16* y,  \
                 float* scratch, RowPointers map, int64_t rows, AttentionShape shape); \
  }

namespace outrider::cpu {

// philox_block: words[4 c … 4 c + 3] = philox4x32 (core/philox.h) of {counter[0] + c, counter[1],
// counter[2], counter[3]}, for kPhiloxBlock calls. counter: [4]. Bound: compute, two products, two
// shifts and four xors of a round.
constexpr int kPhiloxBlock = 64;

OUTRIDER_DECLARE_LANES_KERNELS(scalar)
OUTRIDER_DECLARE_LANES_KERNELS(avx2)
OUTRIDER_DECLARE_LANES_KERNELS(avx512)

OUTRIDER_DECLARE_PAIRS_KERNELS(scalar)
OUTRIDER_DECLARE_PAIRS_KERNELS(avx2)
OUTRIDER_DECLARE_PAIRS_KERNELS(avx512)
OUTRIDER_DECLARE_PAIRS_KERNELS(avx512_bf16)

}  // namespace outrider::cpu

#undef OUTRIDER_DECLARE_LANES_KERNELS
#undef OUTRIDER_DECLARE_PAIRS_KERNELS
