// A .cu file, since whether a kernel is there for a device can be asked of a kernel alone.
#include <cstdlib>

#include "backend/cuda_devices.h"
#include "core/error.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch.h"

namespace outrider {

using cuda::check_cuda;

namespace {

__global__ void do_nothing() {}

std::string dotted(int major, int minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

std::string hexadecimal(const cudaUUID_t& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : uuid.bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += {kDigits[value / 16], kDigits[value % 16]};
  }
  return text;
}

// "13.0", as CUDA counts versions.
std::string version_name(int version) { return dotted(version / 1000, version % 1000 / 10); }

}  // namespace

std::vector<CudaDevice> cuda_devices() {
  int runtime = 0, driver = 0;
  check_cuda(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  check_cuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  if (driver == 0) {
    throw NoGpuError("no NVIDIA driver was found; expected one for CUDA " + version_name(runtime));
  }
  // A driver runs what was built for its own major version, or for one before it.
  if (driver / 1000 < runtime / 1000) {
    throw NoGpuError("the NVIDIA driver is for CUDA " + version_name(driver) + "; expected CUDA " +
                     version_name(runtime / 1000 * 1000) + " or later");
  }
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaErrorNoDevice || (result == cudaSuccess && count == 0)) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    throw NoGpuError(
        std::string("the NVIDIA driver shows no GPU") +
        (visible == nullptr ? "" : ", with CUDA_VISIBLE_DEVICES=" + std::string(visible)) +
        "; expected one at least, as nvidia-smi -L lists them");
  }
  check_cuda(result, "cudaGetDeviceCount");
  std::vector<CudaDevice> devices(count);
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    check_cuda(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    devices[i] = {properties.name, properties.major * 10 + properties.minor,
                  hexadecimal(properties.uuid)};
  }
  return devices;
}

CudaMemory open_cuda_device(int device) {
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  // The first call that needs CUDA's context on the device makes it.
  const auto check = [&](cudaError_t result, const char* call) {
    if (result != cudaErrorMemoryAllocation) return check_cuda(result, call);
    throw Error("GPU " + std::to_string(device) + " (" + properties.name +
                ") has no room for CUDA itself: " + call +
                " failed; expected some 512 MiB of its " +
                std::to_string(properties.totalGlobalMem >> 20) +
                " MiB free, which other processes have (nvidia-smi lists them)");
  };
  check(cudaSetDevice(device), "cudaSetDevice");
  cudaFuncAttributes attributes;
  const cudaError_t result = cudaFuncGetAttributes(&attributes, do_nothing);
  if (result == cudaErrorNoKernelImageForDevice || result == cudaErrorInvalidDeviceFunction) {
    throw Error("this program has no kernels for GPU " + std::to_string(device) + " (" +
                properties.name + ", compute capability " +
                dotted(properties.major, properties.minor) +
                "); expected a build with it in CMAKE_CUDA_ARCHITECTURES, such as the preset "
                "cuda-all");
  }
  check(result, "cudaFuncGetAttributes");
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

int64_t max_cuda_head_dim() { return cuda::kMaxHeadDim; }

}  // namespace outrider
