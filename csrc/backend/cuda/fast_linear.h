// FastLinear: y = x Wᵀ + bias for many rows by cuBLASLt, for --numerics fast. One algorithm for
// each (n, k), chosen while weights are loaded, so that the same shapes give the same bits in every
// run; a row's bits may depend on how many rows there are.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <tuple>

#include "core/bf16.h"
#include "core/buffer.h"

namespace outrider {

class FastLinear {
 public:
  // workspace: kFastLinearWorkspaceBytes of the device. Throws Error where cuBLASLt does not start.
  explicit FastLinear(Buffer workspace);
  ~FastLinear();
  FastLinear(const FastLinear&) = delete;
  FastLinear& operator=(const FastLinear&) = delete;

  // Chooses for weights of this shape, with a bias and without.
  void choose(int64_t n, int64_t k);
  // Whether linear() may be asked: cuBLASLt had something for the weights, which serves so many
  // rows as well.
  bool fits(int64_t rows, int64_t n, int64_t k, bool bias);

  // As cuda::linear; allocates nothing and waits for nothing. fits(rows, n, k, bias != null) must
  // be true.
  void linear(const bf16* x,       // [rows, k]
              const bf16* weight,  // [n, k]
              const float* bias,   // [n], or null
              float* y,            // [rows, n]
              int64_t rows, int64_t n, int64_t k, cudaStream_t stream) const;

 private:
  using Shape = std::tuple<int64_t, int64_t, bool>;  // n, k, with a bias
  struct Algorithm {
    cublasLtMatmulAlgo_t chosen;
    std::map<int64_t, bool> fits;  // by rows, of those that were asked for
  };

  const float* some_bias(bool wanted) const;

  cublasLtHandle_t handle_ = nullptr;
  Buffer workspace_;
  std::map<Shape, Algorithm> algorithms_;
};

}  // namespace outrider
