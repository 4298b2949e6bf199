#include "kernels/cpu/elementwise.h"

#include <algorithm>

#include "kernels/cpu/lanes_kernels.h"
#include "kernels/cpu/multiversion.h"
#include "kernels/distribution.h"

namespace outrider::cpu {

namespace {

[[gnu::always_inline]] inline void expand_row_body(const float* x, const int32_t* head_rows,
                                                   float* y, int64_t vocab_size) {
  for (int64_t v = 0; v < vocab_size; ++v) {
    const int32_t row = head_rows[v];
    const float logit = x[row < 0 ? 0 : row];
    y[v] = row < 0 ? kUnscoredLogit : logit;
  }
}

OUTRIDER_MULTIVERSION(void, expand_row,
                      (const float* x, const int32_t* head_rows, float* y, int64_t vocab_size),
                      (x, head_rows, y, vocab_size));

}  // namespace

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

void expand_logits(const float* x, const int32_t* head_rows, float* y, int64_t rows,
                   int64_t num_scored, int64_t vocab_size, Isa isa) {
  for (int64_t r = 0; r < rows; ++r) {
    OUTRIDER_DISPATCH(isa, expand_row,
                      (x + r * num_scored, head_rows, y + r * vocab_size, vocab_size));
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
