// launch: the one way to start a kernel, on a GPU and under the emulator alike. For .cu files; a
// header that only names a stream needs no more than cudaStream_t.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>
#include <utility>

#include "core/error.h"

namespace outrider::cuda {

// Throws Error naming the call where a function of the CUDA runtime failed.
inline void check_cuda(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  throw Error(std::string(call) + " failed: " + cudaGetErrorString(result));
}

// Dynamic shared memory that every kernel may have; more has to be asked for.
constexpr size_t kDefaultSharedBytes = 48 * 1024;

// Enqueues kernel(arguments…) on `stream`, with shared_bytes behind dynamic_shared(). Arguments are
// converted to the kernel's parameters and copied. Throws Error where it cannot be launched.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, Arguments&&... arguments) {
  if (shared_bytes > kDefaultSharedBytes) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               "cudaFuncSetAttribute");
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...),
             "cudaLaunchKernelEx");
}

}  // namespace outrider::cuda
