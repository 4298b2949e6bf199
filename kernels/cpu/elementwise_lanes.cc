// elementwise.h for one instruction set (lanes.h).
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/lanes_kernels.h"

namespace outrider::cpu::OUTRIDER_LANES {

namespace {

// R rows together, so that one row's chains hide the latency of another's.
template <int R>
OUTRIDER_INLINE void norm_rows(const float* x, const bf16* weight, bf16* y, int64_t hidden,
                               float epsilon) {
  Lanes squares[R];
  OUTRIDER_UNROLL
  for (int r = 0; r < R; ++r) squares[r] = broadcast(0.0f);
  for (int64_t i = 0; i < hidden; i += kLanes) {
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r) {
      const Lanes v = load(x + r * hidden + i, hidden - i);
      squares[r] = fma(v, v, squares[r]);
    }
  }
  Lanes scale[R];
  for (int r = 0; r < R; ++r) {
    const float mean = sum(squares[r]) / static_cast<float>(hidden);
    scale[r] = broadcast(1.0f / __builtin_sqrtf(mean + epsilon));
  }
  for (int64_t i = 0; i < hidden; i += kLanes) {
    const int64_t count = hidden - i;
    const Lanes weights = load(weight + i, count);
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r) {
      const Lanes scaled = mul(load(x + r * hidden + i, count), scale[r]);
      store_narrow(y + r * hidden + i, mul(scaled, weights), count);
    }
  }
}

template <int R>
OUTRIDER_INLINE void layer_norm_rows(const float* x, const bf16* weight, const bf16* bias, bf16* y,
                                     int64_t hidden, float epsilon) {
  Lanes sums[R];
  OUTRIDER_UNROLL
  for (int r = 0; r < R; ++r) sums[r] = broadcast(0.0f);
  for (int64_t i = 0; i < hidden; i += kLanes) {
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r) sums[r] = add(sums[r], load(x + r * hidden + i, hidden - i));
  }
  Lanes mean[R], squares[R];
  for (int r = 0; r < R; ++r) {
    mean[r] = broadcast(sum(sums[r]) / static_cast<float>(hidden));
    squares[r] = broadcast(0.0f);
  }
  for (int64_t i = 0; i < hidden; i += kLanes) {
    const int64_t count = hidden - i;
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r) {
      const Lanes v = first(sub(load(x + r * hidden + i, count), mean[r]), count);
      squares[r] = fma(v, v, squares[r]);
    }
  }
  Lanes scale[R];
  for (int r = 0; r < R; ++r) {
    const float variance = sum(squares[r]) / static_cast<float>(hidden);
    scale[r] = broadcast(1.0f / __builtin_sqrtf(variance + epsilon));
  }
  for (int64_t i = 0; i < hidden; i += kLanes) {
    const int64_t count = hidden - i;
    const Lanes weights = load(weight + i, count), biases = load(bias + i, count);
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r) {
      const Lanes scaled = mul(sub(load(x + r * hidden + i, count), mean[r]), scale[r]);
      store_narrow(y + r * hidden + i, add(mul(scaled, weights), biases), count);
    }
  }
}

}  // namespace

void rms_norm(const float* x, const bf16* weight, bf16* y, int64_t rows, int64_t hidden,
              float epsilon) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    norm_rows<4>(x + r * hidden, weight, y + r * hidden, hidden, epsilon);
  }
  for (; r < rows; ++r) norm_rows<1>(x + r * hidden, weight, y + r * hidden, hidden, epsilon);
}

void layer_norm(const float* x, const bf16* weight, const bf16* bias, bf16* y, int64_t rows,
                int64_t hidden, float epsilon) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    layer_norm_rows<4>(x + r * hidden, weight, bias, y + r * hidden, hidden, epsilon);
  }
  for (; r < rows; ++r) {
    layer_norm_rows<1>(x + r * hidden, weight, bias, y + r * hidden, hidden, epsilon);
  }
}

void silu_mul(const float* gate_up, bf16* y, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* gate = gate_up + r * 2 * width;
    const float* up = gate + width;
    bf16* out = y + r * width;
    for (int64_t i = 0; i < width; i += kLanes) {
      const int64_t count = width - i;
      store_narrow(out + i, mul(silu(load(gate + i, count)), load(up + i, count)), count);
    }
  }
}

void gelu_tanh(const float* x, bf16* y, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t count = size - i;
    store_narrow(y + i, gelu_tanh(load(x + i, count)), count);
  }
}

void add(float* x, const float* y, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t count = size - i;
    store(x + i, add(load(x + i, count), load(y + i, count)), count);
  }
}

}  // namespace outrider::cpu::OUTRIDER_LANES
