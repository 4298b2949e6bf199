// Which GPUs this process can use. A program built without CUDA has this too, and is told so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"

namespace outrider {

struct CudaDevice {
  std::string name;    // "NVIDIA H200"
  int capability = 0;  // 90: compute capability 9.0
  std::string id;      // CUDA's UUID: the same in every process of the host that is shown it
};

constexpr int kMinCudaCapability = 80;  // the first with bf16

// Bytes of a GPU's memory. What is not free is other processes', and CUDA's own.
struct CudaMemory {
  int64_t free = 0;
  int64_t total = 0;
};

// There is none to be had: a build without CUDA, no driver, a driver that is too old, no GPU.
class NoGpuError : public Error {
 public:
  using Error::Error;
};

// The GPUs of this host that CUDA shows, by their numbers; at least one. Throws NoGpuError where
// there is none, and Error where CUDA fails otherwise: what is there does not work.
std::vector<CudaDevice> cuda_devices();

// Makes the device the calling thread's, and throws Error where its kernels cannot run there, or
// where others have all of its memory.
// Returns what its memory has room for.
CudaMemory open_cuda_device(int device);

int64_t max_cuda_head_dim();  // of attention on a GPU; 0: built without CUDA

}  // namespace outrider
