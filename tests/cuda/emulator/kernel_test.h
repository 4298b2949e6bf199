// For tests of the emulator: launches and copies in one line each.
#pragma once

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "testing/emu/grid.h"

namespace outrider::cuda {

// Device memory that holds what the vector did.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : size_(values.size()) {
    check_cuda(cudaMalloc(&data_, size_ * sizeof(T)), "cudaMalloc");
    check_cuda(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
               "cudaMemcpy");
  }
  explicit OnDevice(size_t size) : OnDevice(std::vector<T>(size)) {}
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* data() const { return data_; }
  // Waits for the default stream.
  std::vector<T> values() const {
    std::vector<T> values(size_);
    check_cuda(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
               "cudaMemcpy");
    return values;
  }

 private:
  size_t size_;
  T* data_ = nullptr;
};

// What is wrong with everything enqueued so far; empty if nothing. The device works again after.
inline std::string failure() {
  const cudaError_t result = cudaDeviceSynchronize();
  std::string what = result == cudaSuccess ? "" : cudaGetErrorString(result);
  cudaDeviceReset();
  return what;
}

// Calls body() with the order of threads drawn from 1, 2, … and counts how often it returns true.
template <class Body>
int count_seeds(int seeds, const Body& body) {
  int count = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    emu::seed_orders(seed);
    count += body();
  }
  return count;
}

}  // namespace outrider::cuda
