// The operations of a decoder layer that work row by row: norm with the residual sum before it,
// the choice of rows, activations where a product has none; and the logits of a trimmed LM head.
#pragma once

#include <cstdint>

#include "core/bf16.h"
#include "kernels/cuda/stream.h"
#include "kernels/logit_table.h"

namespace outrider::cuda {

// x += addend, where there is one; y = x / rms(x) * weight, rounded once to bf16.
// Bound: rows * hidden * 6 bytes, 14 with an addend. Order: thread i of 512 sums the squares of
// elements 4 i … 4 i + 3, 4 i + 2048, … by fma (of i, i + 512, … where hidden is no multiple of 4);
// threads are added in fixed trees. Twin: ../cpu/elementwise.cc.
void rms_norm(float* x,             // [rows, hidden]
              const float* addend,  // [rows, hidden], or null
              const bf16* weight,   // [hidden]
              bf16* y,              // [rows, hidden]
              int64_t rows, int64_t hidden, float epsilon, cudaStream_t stream);

// x += addend, where there is one; y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias,
// rounded once to bf16.
// Bound: rows * hidden * 6 bytes, 14 with an addend. Order: the sum for the mean, then that of the
// squared differences from it by fma, each as rms_norm's. Twin: ../cpu/elementwise.cc.
void layer_norm(float* x,             // [rows, hidden]
                const float* addend,  // [rows, hidden], or null
                const bf16* weight,   // [hidden]
                const bf16* bias,     // [hidden]
                bf16* y,              // [rows, hidden]
                int64_t rows, int64_t hidden, float epsilon, cudaStream_t stream);

// The activations alone, behind a product that cuBLASLt made (--numerics fast); linear_activated of
// linear.h has them in its own.
//
// y = silu(gate) * up, rounded once to bf16. exp is ours (math.h): the bits of the CPU.
// Bound: rows * width * 10 bytes. No sums, so no order. Twin: ../cpu/elementwise.cc.
void silu_mul(const float* gate_up,  // [rows, 2 * width]: gate, then up
              bf16* y,               // [rows, width]
              int64_t rows, int64_t width, cudaStream_t stream);

// y = gelu(x) by its approximation with tanh (math.h: the bits of the CPU), rounded once to bf16.
// Bound: size * 6 bytes. No sums, so no order. Twin: ../cpu/elementwise.cc.
void gelu_tanh(const float* x, bf16* y, int64_t size, cudaStream_t stream);

// Copies rows `indices` of x to y. Bound: count * width * 4 bytes. Twin: the copies of the CPU's
// backend, csrc/backend/cpu/cpu_backend.cc.
void gather_rows(const bf16* x,           // [rows, width], x_stride from row to row
                 const int32_t* indices,  // [count]
                 bf16* y,                 // [count, width], y_stride from row to row
                 int64_t count, int64_t width, int64_t x_stride, int64_t y_stride,
                 cudaStream_t stream);

// y[r][tokens[i]] = x[r][i], kUnscoredLogit for other tokens. Bound: rows * (vocab_size +
// num_tokens) * 4 bytes. Twin: ../cpu/elementwise.cc.
void expand_logits(const float* x,         // [rows, num_tokens], x_stride from row to row
                   const int32_t* tokens,  // [num_tokens]: ascending, in [0, vocab_size)
                   float* y,               // [rows, vocab_size]
                   int64_t rows, int64_t num_tokens, int64_t x_stride, int64_t vocab_size,
                   cudaStream_t stream);

// y[r] = the logits that a table holds behind token tokens[r]; kUnscoredLogit for tokens that it
// does not list. Bound: rows * vocab_size * 4 bytes. Twin: ../cpu/elementwise.cc.
void table_logits(const int32_t* tokens,  // [rows]: in [0, vocab_size)
                  const LogitTable& table, float* y /* [rows, vocab_size] */, int64_t rows,
                  int64_t vocab_size, cudaStream_t stream);

}  // namespace outrider::cuda
