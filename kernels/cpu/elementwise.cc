#include "kernels/cpu/elementwise.h"

#include <algorithm>

#include "kernels/cpu/lanes_kernels.h"
#include "kernels/distribution.h"

namespace outrider::cpu {

void rms_norm(float* x, const float* addend, const bf16* weight, bf16* y, int64_t rows,
              int64_t hidden, float epsilon, Isa isa) {
  const auto kernel = isa == Isa::scalar ? scalar::rms_norm
                      : isa == Isa::avx2 ? avx2::rms_norm
                                         : avx512::rms_norm;
  kernel(x, addend, weight, y, rows, hidden, epsilon);
}

void layer_norm(float* x, const float* addend, const bf16* weight, const bf16* bias, bf16* y,
                int64_t rows, int64_t hidden, float epsilon, Isa isa) {
  const auto kernel = isa == Isa::scalar ? scalar::layer_norm
                      : isa == Isa::avx2 ? avx2::layer_norm
                                         : avx512::layer_norm;
  kernel(x, addend, weight, bias, y, rows, hidden, epsilon);
}

void silu_mul(const float* gate_up, bf16* y, int64_t rows, int64_t width, Isa isa) {
  const auto kernel = isa == Isa::scalar ? scalar::silu_mul
                      : isa == Isa::avx2 ? avx2::silu_mul
                                         : avx512::silu_mul;
  kernel(gate_up, y, rows, width);
}

void gelu_tanh(const float* x, bf16* y, int64_t size, Isa isa) {
  const auto kernel = isa == Isa::scalar ? scalar::gelu_tanh
                      : isa == Isa::avx2 ? avx2::gelu_tanh
                                         : avx512::gelu_tanh;
  kernel(x, y, size);
}

void expand_logits(const float* x, const int32_t* tokens, float* y, int64_t rows,
                   int64_t num_tokens, int64_t x_stride, int64_t vocab_size) {
  for (int64_t r = 0; r < rows; ++r, x += x_stride, y += vocab_size) {
    std::fill_n(y, vocab_size, kUnscoredLogit);
    for (int64_t i = 0; i < num_tokens; ++i) y[tokens[i]] = x[i];
  }
}

void table_logits(const int32_t* tokens, const LogitTable& table, float* y, int64_t rows,
                  int64_t vocab_size) {
  for (int64_t r = 0; r < rows; ++r, y += vocab_size) {
    std::fill_n(y, vocab_size, kUnscoredLogit);
    const TableRow row = table.rows[tokens[r]];
    for (int32_t i = row.begin; i < row.end; ++i) y[table.tokens[i]] = table.logits[i];
  }
}

}  // namespace outrider::cpu
