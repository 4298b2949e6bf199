// See device_copy.h.
#include "backend/device_copy.h"
#include "kernels/cuda/launch.h"

namespace outrider {

namespace {

constexpr int kThreads = 256;
constexpr int kWords = 4;  // of 16 bytes, that a thread has on their way at once

// Bound: 32 bytes through the device's memory for each word of 16. Neighbouring threads copy
// neighbouring words.
__global__ void __launch_bounds__(kThreads) copy_words(const uint4* from, uint4* to, int64_t n) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * kWords + threadIdx.x;
  uint4 words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if (first + i * kThreads < n) words[i] = from[first + i * kThreads];
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if (first + i * kThreads < n) to[first + i * kThreads] = words[i];
  }
}

}  // namespace

void copy_with_kernel(TensorView to, TensorView from, Stream& stream) {
  CHECK(to.contiguous() && from.contiguous() && to.bytes() == from.bytes() &&
        to.bytes() % sizeof(uint4) == 0);
  const auto words = static_cast<int64_t>(to.bytes() / sizeof(uint4));
  const int64_t per_block = kThreads * kWords;
  cuda::launch(copy_words, static_cast<unsigned>((words + per_block - 1) / per_block), kThreads, 0,
               static_cast<cudaStream_t>(stream.handle), static_cast<const uint4*>(from.raw()),
               static_cast<uint4*>(to.raw()), words);
}

}  // namespace outrider
