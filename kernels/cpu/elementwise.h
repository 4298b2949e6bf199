// The operations of a decoder layer that work row by row: norm with the residual sum before it,
// activation; and the logits of a trimmed LM head.
#pragma once

#include <cstdint>

#include "core/bf16.h"
#include "kernels/cpu/isa.h"
#include "kernels/logit_table.h"

namespace outrider::cpu {

// x += addend, where there is one; y = x / rms(x) * weight, rounded once to bf16.
// Bound: rows * hidden * 6 bytes, 14 with an addend. Order: 16 lanes, lane i sums elements i, i +
// 16, … by fma; lanes are added in a fixed tree. Twin: ../cuda/elementwise.cu.
void rms_norm(float* x,             // [rows, hidden]
              const float* addend,  // [rows, hidden], or null
              const bf16* weight,   // [hidden]
              bf16* y,              // [rows, hidden]
              int64_t rows, int64_t hidden, float epsilon, Isa isa);

// x += addend, where there is one; y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias,
// rounded once to bf16.
// Bound: rows * hidden * 6 bytes, 14 with an addend. Order: the sum for the mean, then that of the
// squared differences from it by fma, each in 16 lanes as rms_norm's. Twin: ../cuda/elementwise.cu.
void layer_norm(float* x,             // [rows, hidden]
                const float* addend,  // [rows, hidden], or null
                const bf16* weight,   // [hidden]
                const bf16* bias,     // [hidden]
                bf16* y,              // [rows, hidden]
                int64_t rows, int64_t hidden, float epsilon, Isa isa);

// y = silu(gate) * up, rounded once to bf16. exp is ours (math.h), the same on every machine.
void silu_mul(const float* gate_up,  // [rows, 2 * width]: gate, then up
              bf16* y,               // [rows, width]
              int64_t rows, int64_t width, Isa isa);

// y = gelu(x) by its approximation with tanh (math.h), rounded once to bf16. Bound: size * 6 bytes.
void gelu_tanh(const float* x, bf16* y, int64_t size, Isa isa);

// y[r][tokens[i]] = x[r][i], kUnscoredLogit for other tokens. Bound: rows * vocab_size * 4 bytes.
// Twin: ../cuda/elementwise.cu.
void expand_logits(const float* x,         // [rows, num_tokens], x_stride from row to row
                   const int32_t* tokens,  // [num_tokens]: ascending, in [0, vocab_size)
                   float* y,               // [rows, vocab_size]
                   int64_t rows, int64_t num_tokens, int64_t x_stride, int64_t vocab_size);

// y[r] = the logits that a table holds behind token tokens[r]; kUnscoredLogit for tokens that it
// does not list. Bound: rows * vocab_size * 4 bytes. Twin: ../cuda/elementwise.cu.
void table_logits(const int32_t* tokens,  // [rows]: in [0, vocab_size)
                  const LogitTable& table, float* y /* [rows, vocab_size] */, int64_t rows,
                  int64_t vocab_size);

}  // namespace outrider::cpu
