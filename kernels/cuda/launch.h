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

// Whether kernels can begin before those before them have ended: whether this process's GPU can,
// and this program's kernels, of which `kernel` is one, were compiled to wait.
template <class Kernel>
bool kernels_overlap(Kernel* kernel) {
  static const bool overlap = [&] {
    int device = 0, major = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
               "cudaDeviceGetAttribute");
    cudaFuncAttributes attributes;
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
    return major >= 9 && attributes.ptxVersion >= 90;
  }();
  return overlap;
}

template <class... Parameters, class... Arguments>
void launch_with(unsigned num_attributes, cudaLaunchAttribute* attributes,
                 void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
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
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  check_cuda(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...),
             "cudaLaunchKernelEx");
}

// Enqueues kernel(arguments…) on `stream`, with shared_bytes behind dynamic_shared(). Arguments are
// converted to the kernel's parameters and copied. Throws Error where it cannot be launched.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, Arguments&&... arguments) {
  launch_with(0, nullptr, kernel, grid, block, shared_bytes, stream,
              std::forward<Arguments>(arguments)...);
}

// The same of a kernel that calls wait_for_earlier_kernels (ptx.cuh): its blocks may begin while
// the kernel before it ends, so that what they do before that call costs no time.
template <class... Parameters, class... Arguments>
void launch_overlapped(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                       cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  launch_with(kernels_overlap(kernel) ? 1 : 0, &attribute, kernel, grid, block, shared_bytes,
              stream, std::forward<Arguments>(arguments)...);
}

}  // namespace outrider::cuda
