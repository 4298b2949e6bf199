// elementwise.h for one instruction set (lanes.h).
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/lanes_kernels.h"

namespace outrider::cpu::OUTRIDER_LANES {

namespace {

// The elements of x from `at` on, once what is to be added is.
template <bool kAdds>
OUTRIDER_INLINE Lanes load_sum(float* x, const float* addend, int64_t at, int64_t count) {
  Lanes v = load(x + at, count);
  if constexpr (kAdds) {
    v = add(v, load(addend + at, count));
    store(x + at, v, count);
  }
  return v;
}

// R rows together, so that one row's chains hide the latency of another's.
template <int R, bool kAdds>
OUTRIDER_INLINE void norm_rows(float* x, const float* addend, const bf16* weight, bf16* y,
                               int64_t hidden, float epsilon) {
  Lanes squares[R];
  OUTRIDER_UNROLL
  for (int r = 0; r < R; ++r) squares[r] = broadcast(0.0f);
  for (int64_t i = 0; i < hidden; i += kLanes) {
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r) {
      const Lanes v = load_sum<kAdds>(x, addend, r * hidden + i, hidden - i);
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

template <int R, bool kAdds>
OUTRIDER_INLINE void layer_norm_rows(float* x, const float* addend, const bf16* weight,
                                     const bf16* bias, bf16* y, int64_t hidden, float epsilon) {
  Lanes sums[R];
  OUTRIDER_UNROLL
  for (int r = 0; r < R; ++r) sums[r] = broadcast(0.0f);
  for (int64_t i = 0; i < hidden; i += kLanes) {
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r) {
      sums[r] = add(sums[r], load_sum<kAdds>(x, addend, r * hidden + i, hidden - i));
    }
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

template <bool kAdds>
void all_norm_rows(float* x, const float* addend, const bf16* weight, bf16* y, int64_t rows,
                   int64_t hidden, float epsilon) {
  const int64_t end = rows * hidden, end_of_fours = rows / 4 * 4 * hidden;
  int64_t at = 0;
  for (; at < end_of_fours; at += 4 * hidden) {
    norm_rows<4, kAdds>(x + at, addend + (kAdds ? at : 0), weight, y + at, hidden, epsilon);
  }
  for (; at < end; at += hidden) {
    norm_rows<1, kAdds>(x + at, addend + (kAdds ? at : 0), weight, y + at, hidden, epsilon);
  }
}

template <bool kAdds>
void all_layer_norm_rows(float* x, const float* addend, const bf16* weight, const bf16* bias,
                         bf16* y, int64_t rows, int64_t hidden, float epsilon) {
  const int64_t end = rows * hidden, end_of_fours = rows / 4 * 4 * hidden;
  int64_t at = 0;
  for (; at < end_of_fours; at += 4 * hidden) {
    layer_norm_rows<4, kAdds>(x + at, addend + (kAdds ? at : 0), weight, bias, y + at, hidden,
                              epsilon);
  }
  for (; at < end; at += hidden) {
    layer_norm_rows<1, kAdds>(x + at, addend + (kAdds ? at : 0), weight, bias, y + at, hidden,
                              epsilon);
  }
}

}  // namespace

void rms_norm(float* x, const float* addend, const bf16* weight, bf16* y, int64_t rows,
              int64_t hidden, float epsilon) {
  const auto norm = addend != nullptr ? all_norm_rows<true> : all_norm_rows<false>;
  norm(x, addend, weight, y, rows, hidden, epsilon);
}

void layer_norm(float* x, const float* addend, const bf16* weight, const bf16* bias, bf16* y,
                int64_t rows, int64_t hidden, float epsilon) {
  const auto norm = addend != nullptr ? all_layer_norm_rows<true> : all_layer_norm_rows<false>;
  norm(x, addend, weight, bias, y, rows, hidden, epsilon);
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

}  // namespace outrider::cpu::OUTRIDER_LANES
