#include "kernels/cpu/elementwise.h"

#include "kernels/cpu/lanes_kernels.h"

namespace outrider::cpu {

void rms_norm(const float* x, const bf16* weight, bf16* y, int64_t rows, int64_t hidden,
              float epsilon, Isa isa) {
  const auto kernel = isa == Isa::scalar ? scalar::rms_norm
                      : isa == Isa::avx2 ? avx2::rms_norm
                                         : avx512::rms_norm;
  kernel(x, weight, y, rows, hidden, epsilon);
}

void silu_mul(const float* gate_up, bf16* y, int64_t rows, int64_t width, Isa isa) {
  const auto kernel = isa == Isa::scalar ? scalar::silu_mul
                      : isa == Isa::avx2 ? avx2::silu_mul
                                         : avx512::silu_mul;
  kernel(gate_up, y, rows, width);
}

void add(float* x, const float* y, int64_t size, Isa isa) {
  const auto kernel = isa == Isa::scalar ? scalar::add : isa == Isa::avx2 ? avx2::add : avx512::add;
  kernel(x, y, size);
}

}  // namespace outrider::cpu
