#include <cuda_runtime.h>

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/distribution.h"
#include "kernels/math.h"

namespace outrider::cuda {
namespace {

constexpr int kNormThreads = 512;  // part of the order
constexpr int kThreads = 256;

unsigned blocks_of(int64_t size) { return static_cast<unsigned>((size + kThreads - 1) / kThreads); }

__device__ int64_t grid_index() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

constexpr int kHeld = 8;  // elements of a row that a thread has in registers: of 4096 all

// kWidth neighbours, that one instruction loads.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Neighbours {
  T of[kWidth];
};

// body(the first of kWidth elements, their place among those held), for this thread's elements in
// order; kHeld / kWidth: they are not held.
template <int kWidth, class Body>
__device__ void for_each_mine(int hidden, const Body& body) {
  constexpr int kPlaces = kHeld / kWidth;
  constexpr int kStride = kNormThreads * kWidth;
  const int mine = static_cast<int>(threadIdx.x) * kWidth;
#pragma unroll
  for (int j = 0; j < kPlaces; ++j) {
    if (mine + j * kStride < hidden) body(mine + j * kStride, j);
  }
#pragma unroll 1  // rarely there, and code that is fetched takes longer than it runs
  for (int i = mine + kPlaces * kStride; i < hidden; i += kStride) body(i, kPlaces);
}

// This thread's elements of a row: the first of them in registers, so that their loads are under
// way together, and are not made again.
template <class T, int kWidth>
class RowShare {
 public:
  using Some = Neighbours<T, kWidth>;

  __device__ RowShare(const T* row, int hidden) : row_(row) {
#pragma unroll
    for (int j = 0; j < kPlaces; ++j) {
      const int i = (static_cast<int>(threadIdx.x) + j * kNormThreads) * kWidth;
      held_[j] = i < hidden ? load(i) : Some{};
    }
  }
  __device__ Some of(int i, int j) const { return j < kPlaces ? held_[j] : load(i); }
  __device__ void set(int j, const Some& values) {
    if (j < kPlaces) held_[j] = values;
  }

 private:
  static constexpr int kPlaces = kHeld / kWidth;
  __device__ Some load(int i) const { return *reinterpret_cast<const Some*>(row_ + i); }

  const T* row_;
  Some held_[kPlaces];
};

// A row of x, once what is to be added is.
template <int kWidth>
__device__ RowShare<float, kWidth> add_row(float* x, const float* addend, int hidden) {
  RowShare<float, kWidth> values(x, hidden);
  if (addend == nullptr) return values;
  const RowShare<float, kWidth> added(addend, hidden);
  for_each_mine<kWidth>(hidden, [&](int i, int j) {
    auto sums = values.of(i, j);
    const auto more = added.of(i, j);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sums.of[e] += more.of[e];
    values.set(j, sums);
    *reinterpret_cast<Neighbours<float, kWidth>*>(x + i) = sums;
  });
  return values;
}

__device__ inline float plus(float a, float b) { return a + b; }

// Grid: rows.
template <int kWidth>
__global__ void __launch_bounds__(kNormThreads)
    rms_norm_kernel(float* x, const float* addend, const bf16* weight, bf16* y, int hidden,
                    float epsilon) {
  const RowShare<bf16, kWidth> weights(weight, hidden);
  wait_for_earlier_kernels();
  const int64_t offset = int64_t{blockIdx.x} * hidden;
  const RowShare<float, kWidth> values =
      add_row<kWidth>(x + offset, addend == nullptr ? nullptr : addend + offset, hidden);
  float squares = 0.0f;
  for_each_mine<kWidth>(hidden, [&](int i, int j) {
    const auto some = values.of(i, j);
#pragma unroll
    for (const float value : some.of) squares = fmaf(value, value, squares);
  });
  squares = block_reduce(squares, plus);
  const float scale = rsqrtf(squares / static_cast<float>(hidden) + epsilon);
  for_each_mine<kWidth>(hidden, [&](int i, int j) {
    const auto some = values.of(i, j);
    const auto weighed_by = weights.of(i, j);
    Neighbours<bf16, kWidth> normed;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      normed.of[e] = narrow(some.of[e] * scale * widen(weighed_by.of[e]));
    }
    *reinterpret_cast<Neighbours<bf16, kWidth>*>(y + offset + i) = normed;
  });
}

// Grid: rows.
template <int kWidth>
__global__ void __launch_bounds__(kNormThreads)
    layer_norm_kernel(float* x, const float* addend, const bf16* weight, const bf16* bias, bf16* y,
                      int hidden, float epsilon) {
  const RowShare<bf16, kWidth> weights(weight, hidden), biases(bias, hidden);
  wait_for_earlier_kernels();
  const int64_t offset = int64_t{blockIdx.x} * hidden;
  const RowShare<float, kWidth> values =
      add_row<kWidth>(x + offset, addend == nullptr ? nullptr : addend + offset, hidden);
  float sum = 0.0f;
  for_each_mine<kWidth>(hidden, [&](int i, int j) {
    const auto some = values.of(i, j);
#pragma unroll
    for (const float value : some.of) sum += value;
  });
  const float mean = block_reduce(sum, plus) / static_cast<float>(hidden);
  float squares = 0.0f;
  for_each_mine<kWidth>(hidden, [&](int i, int j) {
    const auto some = values.of(i, j);
#pragma unroll
    for (const float value : some.of) squares = fmaf(value - mean, value - mean, squares);
  });
  const float variance = block_reduce(squares, plus) / static_cast<float>(hidden);
  const float scale = rsqrtf(variance + epsilon);
  for_each_mine<kWidth>(hidden, [&](int i, int j) {
    const auto some = values.of(i, j);
    const auto weighed_by = weights.of(i, j), moved_by = biases.of(i, j);
    Neighbours<bf16, kWidth> normed;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      normed.of[e] =
          narrow((some.of[e] - mean) * scale * widen(weighed_by.of[e]) + widen(moved_by.of[e]));
    }
    *reinterpret_cast<Neighbours<bf16, kWidth>*>(y + offset + i) = normed;
  });
}

// Grid: pieces of a row by rows.
__global__ void __launch_bounds__(kThreads)
    silu_mul_kernel(const float* gate_up, bf16* y, int64_t width) {
  wait_for_earlier_kernels();
  const int64_t i = grid_index();
  if (i >= width) return;
  const float* gate = gate_up + blockIdx.y * 2 * width;
  y[blockIdx.y * width + i] = narrow(silu_f32(gate[i]) * gate[width + i]);
}

__global__ void __launch_bounds__(kThreads)
    gelu_tanh_kernel(const float* x, bf16* y, int64_t size) {
  wait_for_earlier_kernels();
  const int64_t i = grid_index();
  if (i < size) y[i] = narrow(gelu_tanh_f32(x[i]));
}

// Grid: rows of y.
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const bf16* x, const int32_t* indices, bf16* y, int64_t width, int64_t x_stride,
                  int64_t y_stride) {
  wait_for_earlier_kernels();
  const bf16* from = x + indices[blockIdx.x] * x_stride;
  bf16* to = y + blockIdx.x * y_stride;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) to[i] = from[i];
}

// The logit of token v among those of tokens [begin, end), which ascend.
__device__ float logit_of(const int32_t* tokens, const float* logits, int32_t begin, int32_t end,
                          int64_t v) {
  int32_t first = begin, last = end;  // the first token >= v is in [first, last]
  while (first < last) {
    const int32_t middle = first + (last - first) / 2;
    if (tokens[middle] < v) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first < end && tokens[first] == v ? logits[first] : kUnscoredLogit;
}

// Grid: pieces of a row of y by rows.
__global__ void __launch_bounds__(kThreads)
    expand_kernel(const float* x, const int32_t* tokens, float* y, int32_t num_tokens,
                  int64_t x_stride, int64_t vocab_size) {
  wait_for_earlier_kernels();
  const int64_t v = grid_index();
  if (v >= vocab_size) return;
  y[blockIdx.y * vocab_size + v] = logit_of(tokens, x + blockIdx.y * x_stride, 0, num_tokens, v);
}

// Grid: pieces of a row of y by rows.
__global__ void __launch_bounds__(kThreads)
    table_kernel(const int32_t* tokens, LogitTable table, float* y, int64_t vocab_size) {
  wait_for_earlier_kernels();
  const int64_t v = grid_index();
  if (v >= vocab_size) return;
  const TableRow row = table.rows[tokens[blockIdx.y]];
  y[blockIdx.y * vocab_size + v] = logit_of(table.tokens, table.logits, row.begin, row.end, v);
}

}  // namespace

void rms_norm(float* x, const float* addend, const bf16* weight, bf16* y, int64_t rows,
              int64_t hidden, float epsilon, cudaStream_t stream) {
  launch_overlapped(hidden % 4 == 0 ? rms_norm_kernel<4> : rms_norm_kernel<1>,
                    static_cast<unsigned>(rows), kNormThreads, 0, stream, x, addend, weight, y,
                    static_cast<int>(hidden), epsilon);
}

void layer_norm(float* x, const float* addend, const bf16* weight, const bf16* bias, bf16* y,
                int64_t rows, int64_t hidden, float epsilon, cudaStream_t stream) {
  launch_overlapped(hidden % 4 == 0 ? layer_norm_kernel<4> : layer_norm_kernel<1>,
                    static_cast<unsigned>(rows), kNormThreads, 0, stream, x, addend, weight, bias,
                    y, static_cast<int>(hidden), epsilon);
}

void silu_mul(const float* gate_up, bf16* y, int64_t rows, int64_t width, cudaStream_t stream) {
  launch_overlapped(silu_mul_kernel, dim3(blocks_of(width), rows), kThreads, 0, stream, gate_up, y,
                    width);
}

void gelu_tanh(const float* x, bf16* y, int64_t size, cudaStream_t stream) {
  launch_overlapped(gelu_tanh_kernel, blocks_of(size), kThreads, 0, stream, x, y, size);
}

void gather_rows(const bf16* x, const int32_t* indices, bf16* y, int64_t count, int64_t width,
                 int64_t x_stride, int64_t y_stride, cudaStream_t stream) {
  launch_overlapped(gather_kernel, static_cast<unsigned>(count), kThreads, 0, stream, x, indices, y,
                    width, x_stride, y_stride);
}

void expand_logits(const float* x, const int32_t* tokens, float* y, int64_t rows,
                   int64_t num_tokens, int64_t x_stride, int64_t vocab_size, cudaStream_t stream) {
  const dim3 grid(blocks_of(vocab_size), static_cast<unsigned>(rows));
  launch_overlapped(expand_kernel, grid, kThreads, 0, stream, x, tokens, y,
                    static_cast<int32_t>(num_tokens), x_stride, vocab_size);
}

void table_logits(const int32_t* tokens, const LogitTable& table, float* y, int64_t rows,
                  int64_t vocab_size, cudaStream_t stream) {
  const dim3 grid(blocks_of(vocab_size), static_cast<unsigned>(rows));
  launch_overlapped(table_kernel, grid, kThreads, 0, stream, tokens, table, y, vocab_size);
}

}  // namespace outrider::cuda
