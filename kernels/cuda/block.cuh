// What the threads of a block compute together. Every thread calls, and every thread gets the
// result; orders are fixed by the number of threads. Blocks are whole warps.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace outrider::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kMaxWarps = 1024 / kWarp;

// Folds one value of each thread: within warps by halving distances, then over warps in order.
// fold(a, b): a is of the lower thread.
template <typename T, typename Fold>
__device__ inline T block_reduce(T value, const Fold& fold) {
  __shared__ T of_warps[kMaxWarps];
  for (int distance = 1; distance < kWarp; distance *= 2) {
    value = fold(value, __shfl_down_sync(kAllLanes, value, distance));
  }
  __syncthreads();  // the call before is over
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  T total = of_warps[0];
  for (unsigned w = 1; w < blockDim.x / kWarp; ++w) total = fold(total, of_warps[w]);
  return total;
}

__device__ inline double block_sum(double value) {
  return block_reduce(value, [](double a, double b) { return a + b; });
}

__device__ inline unsigned long long block_max(unsigned long long value) {
  return block_reduce(value,
                      [](unsigned long long a, unsigned long long b) { return a > b ? a : b; });
}

// How many of the threads before this one have the flag set; `total`: of the whole block.
__device__ inline int block_rank(bool flag, int& total) {
  __shared__ int of_warps[kMaxWarps];
  const unsigned votes = __ballot_sync(kAllLanes, flag);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const unsigned below = votes & ((1u << threadIdx.x % kWarp) - 1);
  __syncthreads();  // the call before is over
  if (threadIdx.x % kWarp == 0) of_warps[warp] = __popc(votes);
  __syncthreads();
  int rank = __popc(below);
  total = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) {
    if (w < warp) rank += of_warps[w];
    total += of_warps[w];
  }
  return rank;
}

}  // namespace outrider::cuda
