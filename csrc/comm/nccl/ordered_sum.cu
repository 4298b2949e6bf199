// An element a thread, or four where rows allow it; the order in which an element's parts are added
// is the same.
#include "comm/nccl/ordered_sum.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 256;

__device__ inline float add(float a, float b) { return a + b; }
__device__ inline float4 add(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// parts: [ranks, n] of T
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_parts(const T* parts, int ranks, int64_t n, T* sum) {
  wait_for_earlier_kernels();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  T total = parts[i];
  for (int rank = 1; rank < ranks; ++rank) total = add(total, parts[rank * n + i]);
  sum[i] = total;
}

template <class T>
void launch_sum(const void* parts, int ranks, int64_t n, void* sum, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((n + kThreads - 1) / kThreads);
  launch_overlapped(add_parts<T>, blocks, kThreads, 0, stream, static_cast<const T*>(parts), ranks,
                    n, static_cast<T*>(sum));
}

}  // namespace

void ordered_sum(const float* parts, int ranks, int64_t n, float* sum, cudaStream_t stream) {
  if (n == 0) return;
  const auto aligned = [](const float* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  if (n % 4 == 0 && aligned(parts) && aligned(sum)) {
    launch_sum<float4>(parts, ranks, n / 4, sum, stream);
  } else {
    launch_sum<float>(parts, ranks, n, sum, stream);
  }
}

}  // namespace outrider::cuda
