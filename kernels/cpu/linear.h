// y = x Wᵀ + bias on packed weights: every projection of a decoder layer, and the LM head.
//
// Layout: panels of 16 output rows; inside a panel, for each pair (2j, 2j+1) along k, 16 outputs x
// 2 bf16 = 64 bytes; int8: 16 outputs' elements 2j, then 16 outputs' 2j+1 = 32 bytes, and behind
// the panels the scales, fp32 [n]. Odd k and n are padded with zeros. Order: y[r, o] is one fp32
// chain over j = 0, 1, …: acc = fma(x[2j+1], w[2j+1], acc), then acc = fma(x[2j], w[2j], acc),
// denormals flushed: what vdpbf16ps computes; an int8 row's sum is multiplied by its scale; the
// bias is added last. It does not depend on the number of rows. Nor does that of `amx_bf16` on
// bf16, which is another, that of tdpbf16ps: the pairs 16t … 16t+15 of each t, the last ones with
// zeros behind them, make two chains from 0, even = fma(x[2j], w[2j], even) and odd likewise, and
// acc = acc + (even + odd). Bound: n * k * 2 bytes of weights (int8: 1), read from memory once for
// up to 64 rows, and for up to 16 in one pass; from some 10 rows a core on (AVX2: 4, AMX: 32; int8:
// half of AVX-512's or AVX2's), the 2 * rows * n * k operations. Twin: ../cuda/linear.cu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/bf16.h"
#include "kernels/cpu/isa.h"
#include "kernels/weight_format.h"

namespace outrider::cpu {

constexpr int64_t kPanelRows = 16;

// Bytes of an [n, k] matrix once packed.
size_t packed_bytes(int64_t n, int64_t k, WeightFormat format);

// Writes rows [first_row, first_row + rows) of a packed [n, k] matrix from a strided source. The
// rest of `packed` is left as it is (zeroed memory pads correctly).
void pack(const bf16* source,  // [rows, k], row stride in elements below
          int64_t row_stride, int64_t rows, int64_t first_row, int64_t k, void* packed);

// The same of an int8 matrix, and of its rows' scales.
void pack_int8(const int8_t* source,  // [rows, k]
               const float* scales,   // [rows]
               int64_t rows, int64_t first_row, int64_t n, int64_t k, void* packed);

// Denormals are flushed as set_float_environment() asks; call it first in each thread.
void linear(const bf16* x,       // [rows, k]
            const void* packed,  // [n, k], see above
            const float* bias,   // [n], or null
            float* y,            // [rows, n]
            int64_t rows, int64_t n, int64_t k, WeightFormat format, Isa isa);

// y[r] = row tokens[r] - first_token of the packed table, in fp32; zeros where that is outside [0,
// n).
void embed(const void* packed,     // bf16 [n, k]
           const int32_t* tokens,  // [rows]
           int64_t first_token,
           float* y,  // [rows, k]
           int64_t rows, int64_t n, int64_t k);

}  // namespace outrider::cpu
