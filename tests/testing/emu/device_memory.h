// The device's memory: host memory that kernels may touch and the host may not.
//
// Each allocation ends at its last byte for AddressSanitizer, and at a page that nobody may touch;
// it begins full of poison. While nothing runs on the device all of it is out of reach, so that
// host code which follows a device pointer is seen. Thread-safe.
#pragma once

#include <cstddef>

namespace emu {

// Null where the device has no room left.
void* allocate_device_memory(size_t bytes);
// False where nothing that was allocated begins there.
bool free_device_memory(void* data);

// Whether all of it is inside one allocation.
bool in_device_memory(const void* data, size_t bytes);

size_t device_memory_bytes();  // of the device: OUTRIDER_EMU_MEMORY_BYTES, or 2 GiB
size_t device_memory_used();

// While there is one, the device's memory can be reached.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

// Memory of the host that copies reach asynchronously (cudaMallocHost).
void* allocate_pinned_memory(size_t bytes);
bool free_pinned_memory(void* data);
bool in_pinned_memory(const void* data, size_t bytes);

}  // namespace emu
