// What a program that was built without CUDA has in place of the CUDA backend.
#include "backend/backend.h"
#include "backend/cuda_devices.h"
#include "backend/device_copy.h"

namespace outrider {
namespace {

[[noreturn]] void refuse() { throw NoGpuError("this program was built without CUDA"); }

}  // namespace

std::vector<CudaDevice> cuda_devices() { refuse(); }

CudaMemory open_cuda_device(int) { refuse(); }

int64_t max_cuda_head_dim() { return 0; }

std::unique_ptr<Backend> make_cuda_backend(int, Numerics) { refuse(); }

void copy_with_kernel(TensorView, TensorView, Stream&) { refuse(); }

}  // namespace outrider
