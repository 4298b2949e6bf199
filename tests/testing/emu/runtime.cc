// Devices, memory, copies and launches of the CUDA runtime, over the emulator.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "testing/emu/block_scheduler.h"
#include "testing/emu/device_memory.h"
#include "testing/emu/environment.h"
#include "testing/emu/grid.h"
#include "testing/emu/stream.h"

#if defined(OUTRIDER_EMU_SANITIZED)
// OpenMPI leaves memory behind, some of it by parts that it has unloaded before the end.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }
#endif

namespace {

// The least that any device which Outrider supports lets a block have (8.6, 8.9, 12.0).
constexpr int kMaxSharedBytes = 99 * 1024;
constexpr int kNewestCapability = 121;  // that kernels were "built" for
constexpr int kDefaultSharedBytes = 48 * 1024;

// A test may ask for more.
int num_devices() { return static_cast<int>(emu::environment_number("OUTRIDER_EMU_DEVICES", 1)); }

int driver_version() {
  static const int version =
      static_cast<int>(emu::environment_number("OUTRIDER_EMU_DRIVER", CUDART_VERSION));
  return version;
}

int capability() {
  static const int digits =
      static_cast<int>(emu::environment_number("OUTRIDER_EMU_CAPABILITY", 90));
  return digits;
}

// Asks that a driver can answer.
cudaError_t check_driver() {
  if (driver_version() < CUDART_VERSION) return cudaErrorInsufficientDriver;
  return num_devices() == 0 ? cudaErrorNoDevice : cudaSuccess;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

// Blocks of `function` that asked for more dynamic shared memory may have it.
struct FunctionAttributes {
  std::mutex mutex;
  std::map<const void*, int> max_dynamic_shared_bytes;
};

FunctionAttributes& function_attributes() {
  static FunctionAttributes attributes;
  return attributes;
}

int max_dynamic_shared_bytes(const void* function) {
  FunctionAttributes& attributes = function_attributes();
  const std::lock_guard lock(attributes.mutex);
  const auto found = attributes.max_dynamic_shared_bytes.find(function);
  return found == attributes.max_dynamic_shared_bytes.end() ? kDefaultSharedBytes : found->second;
}

// Rows of bytes, one after the other.
struct Copy {
  void* to;
  size_t to_pitch;
  const void* from;
  size_t from_pitch;
  size_t width, height;

  size_t to_bytes() const { return to_pitch * (height - 1) + width; }
  size_t from_bytes() const { return from_pitch * (height - 1) + width; }
  void operator()() const {
    for (size_t row = 0; row < height; ++row) {
      std::memmove(static_cast<std::byte*>(to) + row * to_pitch,
                   static_cast<const std::byte*>(from) + row * from_pitch, width);
    }
  }
};

emu::Operation as_operation(const Copy& copy) {
  return [copy] {
    copy();
    return std::string();
  };
}

cudaError_t enqueue_copy(const Copy& copy, cudaMemcpyKind kind, cudaStream_t stream) {
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  if (copy.to_pitch < copy.width || copy.from_pitch < copy.width) return cudaErrorInvalidValue;
  const bool to_device = emu::in_device_memory(copy.to, copy.to_bytes());
  const bool from_device = emu::in_device_memory(copy.from, copy.from_bytes());
  const cudaMemcpyKind actual = to_device && from_device ? cudaMemcpyDeviceToDevice
                                : to_device              ? cudaMemcpyHostToDevice
                                : from_device            ? cudaMemcpyDeviceToHost
                                                         : cudaMemcpyHostToHost;
  if (kind != cudaMemcpyDefault && kind != actual) return cudaErrorInvalidValue;
  const bool pinned = (to_device || emu::in_pinned_memory(copy.to, copy.to_bytes())) &&
                      (from_device || emu::in_pinned_memory(copy.from, copy.from_bytes()));
  if (pinned) return emu::enqueue(stream, as_operation(copy));
  // Pageable memory: the host's side is done with when the call returns.
  if (emu::is_capturing(stream)) {
    emu::refuse_in_capture();
    return cudaErrorStreamCaptureUnsupported;
  }
  if (actual == cudaMemcpyHostToDevice) {
    const auto* const from = static_cast<const std::byte*>(copy.from);
    return emu::enqueue(stream,
                        [copy, staged = std::vector<std::byte>(from, from + copy.from_bytes())] {
                          Copy from_staged = copy;
                          from_staged.from = staged.data();
                          from_staged();
                          return std::string();
                        });
  }
  const cudaError_t result = emu::enqueue(stream, as_operation(copy));
  return result == cudaSuccess ? emu::run_stream(stream) : result;
}

Copy flat_copy(void* to, const void* from, size_t bytes) {
  return {to, bytes, from, bytes, bytes, 1};
}

}  // namespace

namespace emu {

cudaError_t launch_kernel(const cudaLaunchConfig_t& config, const void* function,
                          std::function<void()> body) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const bool grid_fits = grid.x >= 1 && grid.y >= 1 && grid.z >= 1 && grid.x <= 0x7fffffff &&
                         grid.y <= 0xffff && grid.z <= 0xffff;
  if (!grid_fits || threads < 1 || threads > kMaxBlockThreads || block.z > 64) {
    return ::remember(cudaErrorInvalidConfiguration);
  }
  const bool has_attribute = config.numAttrs == 1;
  if (config.numAttrs > 1 ||
      (has_attribute && config.attrs->id != cudaLaunchAttributeProgrammaticStreamSerialization) ||
      config.dynamicSmemBytes > static_cast<size_t>(max_dynamic_shared_bytes(function))) {
    return ::remember(cudaErrorInvalidValue);
  }
  const bool overlapped =
      has_attribute && config.attrs->val.programmaticStreamSerializationAllowed != 0;
  const auto launched = std::make_shared<const Grid>(function, grid, block, config.dynamicSmemBytes,
                                                     overlapped, std::move(body));
  Operation operation([launched] { return launched->run(); });
  operation.is_kernel = true;
  if (overlapped) operation.begin = [launched] { return launched->begin(); };
  return ::remember(enqueue(config.stream, std::move(operation)));
}

}  // namespace emu

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define EMU_NAME(name) \
  case name:           \
    return #name;
    EMU_NAME(cudaSuccess)
    EMU_NAME(cudaErrorInvalidValue)
    EMU_NAME(cudaErrorMemoryAllocation)
    EMU_NAME(cudaErrorInvalidConfiguration)
    EMU_NAME(cudaErrorInsufficientDriver)
    EMU_NAME(cudaErrorInvalidDeviceFunction)
    EMU_NAME(cudaErrorNoDevice)
    EMU_NAME(cudaErrorInvalidDevice)
    EMU_NAME(cudaErrorNoKernelImageForDevice)
    EMU_NAME(cudaErrorInvalidResourceHandle)
    EMU_NAME(cudaErrorNotReady)
    EMU_NAME(cudaErrorLaunchFailure)
    EMU_NAME(cudaErrorSystemNotReady)
    EMU_NAME(cudaErrorStreamCaptureUnsupported)
    EMU_NAME(cudaErrorStreamCaptureInvalidated)
    EMU_NAME(cudaErrorStreamCaptureUnjoined)
    EMU_NAME(cudaErrorUnknown)
#undef EMU_NAME
  }
  return "unknown";
}

// Of a failed launch, what the emulator saw.
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorLaunchFailure) return emu::device_failure();
  return cudaGetErrorName(error);
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version();
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (emu::environment_number("OUTRIDER_EMU_BROKEN", 0) == 1) {
    return remember(cudaErrorSystemNotReady);
  }
  *count = num_devices();
  return remember(check_driver());
}

cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t error = check_driver()) return remember(error);
  if (device < 0 || device >= num_devices()) return remember(cudaErrorInvalidDevice);
  if (emu::environment_number("OUTRIDER_EMU_FULL", 0) == 1) {
    return remember(cudaErrorMemoryAllocation);
  }
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return remember(check_driver());
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (const cudaError_t error = check_driver()) return remember(error);
  if (device < 0 || device >= num_devices()) return remember(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulator");
  properties->uuid.bytes[0] =
      static_cast<char>(emu::environment_number("OUTRIDER_EMU_FIRST_DEVICE", 0) + device);
  properties->totalGlobalMem = emu::device_memory_bytes();
  properties->sharedMemPerBlock = kDefaultSharedBytes;
  properties->sharedMemPerBlockOptin = kMaxSharedBytes;
  properties->sharedMemPerMultiprocessor = kMaxSharedBytes + 1024;
  properties->major = capability() / 10;
  properties->minor = capability() % 10;
  properties->multiProcessorCount = 4;
  properties->maxThreadsPerBlock = emu::kMaxBlockThreads;
  properties->maxThreadsPerMultiProcessor = 1536;
  properties->regsPerMultiprocessor = 65536;
  properties->warpSize = emu::kWarpLanes;
  properties->l2CacheSize = 4 << 20;
  properties->pciBusID = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device)) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrL2CacheSize:
      *value = properties.l2CacheSize;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = properties.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(properties.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      break;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (device < 0 || device >= num_devices()) return remember(cudaErrorInvalidDevice);
  std::snprintf(text, length, "0000:%02x:00.0", device);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t refused = emu::refuse_in_capture()) return remember(refused);
  return remember(emu::run_everything());
}

// Forgets a failure; what is allocated stays.
cudaError_t cudaDeviceReset() {
  emu::run_everything();
  emu::forget_device_failure();
  last_error = cudaSuccess;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = 0;
  if (const cudaError_t error = check_driver()) return remember(error);
  if (const cudaError_t error = emu::device_error()) return remember(error);
  *total = emu::device_memory_bytes();
  *free = *total - emu::device_memory_used();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = nullptr;
  if (const cudaError_t error = check_driver()) return remember(error);
  if (const cudaError_t refused = emu::refuse_in_capture()) return remember(refused);
  if (const cudaError_t error = emu::device_error()) return remember(error);
  if (bytes == 0) return cudaSuccess;
  *data = emu::allocate_device_memory(bytes);
  return remember(*data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  if (const cudaError_t refused = emu::refuse_in_capture()) return remember(refused);
  emu::run_everything();
  return remember(emu::free_device_memory(data) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMallocHost(void** data, size_t bytes) {
  *data = nullptr;
  if (const cudaError_t error = check_driver()) return remember(error);
  if (const cudaError_t refused = emu::refuse_in_capture()) return remember(refused);
  if (const cudaError_t error = emu::device_error()) return remember(error);
  if (bytes == 0) return cudaSuccess;
  if (bytes > emu::environment_number("OUTRIDER_EMU_PINNED_BYTES", UINT64_MAX)) {
    return remember(cudaErrorMemoryAllocation);
  }
  *data = emu::allocate_pinned_memory(bytes);
  return remember(*data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  return cudaMallocHost(data, bytes);
}

cudaError_t cudaFreeHost(void* data) {
  if (data == nullptr) return cudaSuccess;
  if (const cudaError_t refused = emu::refuse_in_capture()) return remember(refused);
  emu::run_everything();
  return remember(emu::free_pinned_memory(data) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t refused = emu::refuse_in_capture()) return remember(refused);
  const cudaError_t result = enqueue_copy(flat_copy(to, from, bytes), kind, nullptr);
  return remember(result == cudaSuccess ? emu::run_blocking_streams() : result);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return remember(enqueue_copy(flat_copy(to, from, bytes), kind, stream));
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return remember(enqueue_copy({to, to_pitch, from, from_pitch, width, height}, kind, stream));
}

// Of device memory it returns before it is done, as cudaMemsetAsync does.
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  if (const cudaError_t refused = emu::refuse_in_capture()) return remember(refused);
  return cudaMemsetAsync(data, value, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (!emu::in_device_memory(data, bytes)) return remember(cudaErrorInvalidValue);
  return remember(emu::enqueue(stream, [data, value, bytes] {
    std::memset(data, value, bytes);
    return std::string();
  }));
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > kMaxSharedBytes) return remember(cudaErrorInvalidValue);
  FunctionAttributes& attributes = function_attributes();
  const std::lock_guard lock(attributes.mutex);
  attributes.max_dynamic_shared_bytes[function] = value;
  return cudaSuccess;
}

// Of the resources only a device's compiler knows nothing is said.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  if (const cudaError_t error = check_driver()) return remember(error);
  if (capability() > kNewestCapability) return remember(cudaErrorNoKernelImageForDevice);
  *attributes = {};
  attributes->ptxVersion = capability();
  attributes->maxThreadsPerBlock = emu::kMaxBlockThreads;
  attributes->maxDynamicSharedSizeBytes = max_dynamic_shared_bytes(function);
  return cudaSuccess;
}
