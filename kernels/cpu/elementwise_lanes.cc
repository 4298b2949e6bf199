// rms_norm and silu_mul of elementwise.h for one instruction set (lanes.h).
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/lanes_kernels.h"

namespace outrider::cpu::OUTRIDER_LANES {

void rms_norm(const float* x, const bf16* weight, bf16* y, int64_t rows, int64_t hidden,
              float epsilon) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = x + r * hidden;
    bf16* out = y + r * hidden;
    Lanes squares = broadcast(0.0f);
    for (int64_t i = 0; i < hidden; i += kLanes) {
      const Lanes v = load(in + i, hidden - i);
      squares = fma(v, v, squares);
    }
    const float mean = sum(squares) / static_cast<float>(hidden);
    const float scale = 1.0f / __builtin_sqrtf(mean + epsilon);
    for (int64_t i = 0; i < hidden; ++i) out[i] = narrow(in[i] * scale * widen(weight[i]));
  }
}

void silu_mul(const float* gate_up, bf16* y, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* gate = gate_up + r * 2 * width;
    const float* up = gate + width;
    bf16* out = y + r * width;
    for (int64_t i = 0; i < width; ++i) out[i] = narrow(silu_f32(gate[i]) * up[i]);
  }
}

}  // namespace outrider::cpu::OUTRIDER_LANES
