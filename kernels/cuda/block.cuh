// What the threads of a block compute together. Every thread calls, and every thread gets the
// result; orders are fixed by the number of threads. Blocks are whole warps.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace outrider::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kMaxWarps = 1024 / kWarp;

// Folds one value of each of the first `count` lanes, neighbours first: lane 0 has the result.
// fold(a, b): a is of the lower lane. All lanes of the warp call.
template <typename T, typename Fold>
__device__ inline T warp_reduce(T value, const Fold& fold, int count = kWarp) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    if (distance >= count) break;
    const T other = __shfl_down_sync(kAllLanes, value, distance);
    if (lane + distance < count) value = fold(value, other);
  }
  return value;
}

// Folds one value of each thread: those of a warp as above, then the warps' in the same way, by
// every warp for itself. fold(a, b): a is of the lower thread.
template <typename T, typename Fold>
__device__ inline T block_reduce(T value, const Fold& fold) {
  __shared__ T of_warps[kMaxWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  value = warp_reduce(value, fold);
  __syncthreads();  // the call before is over
  if (lane == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  const T total = warp_reduce(of_warps[lane < warps ? lane : 0], fold, warps);
  return __shfl_sync(kAllLanes, total, 0);
}

__device__ inline double block_sum(double value) {
  return block_reduce(value, [](double a, double b) { return a + b; });
}

// By halves of the number, the upper one first: a warp has instructions for 32 bits.
__device__ inline unsigned long long warp_max(unsigned long long value) {
  const auto high = static_cast<unsigned>(value >> 32);
  const unsigned highest = __reduce_max_sync(kAllLanes, high);
  const unsigned low = high == highest ? static_cast<unsigned>(value) : 0;
  return static_cast<unsigned long long>(highest) << 32 | __reduce_max_sync(kAllLanes, low);
}

__device__ inline unsigned long long block_max(unsigned long long value) {
  __shared__ unsigned long long of_warps[kMaxWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  value = warp_max(value);
  __syncthreads();  // the call before is over
  if (lane == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  return warp_max(of_warps[lane < static_cast<int>(blockDim.x) / kWarp ? lane : 0]);
}

// Whether this block is the last of `blocks` to come here: then what all threads of the others
// wrote before is there for all of its threads. *arrivals is 0 before the first, and again behind
// the last. All threads call.
__device__ inline bool is_last_block(unsigned* arrivals, unsigned blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) last = count_arrival(arrivals, blocks) == blocks - 1;
  __syncthreads();
  return last;
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
