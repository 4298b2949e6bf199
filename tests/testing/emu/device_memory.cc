#include "testing/emu/device_memory.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "testing/emu/environment.h"

namespace emu {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 256;  // of cudaMalloc
constexpr unsigned char kPoisonByte = 0xff;

constexpr size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

struct Allocation {
  std::byte* mapping;  // a page out of reach, `pages` bytes, a page out of reach
  size_t pages;
  size_t bytes;

  std::byte* begin() const { return mapping + kPage + pages - round_up(bytes, kAlignment); }
  std::byte* end() const { return begin() + bytes; }
  size_t fence() const { return round_up(bytes, kAlignment) - bytes; }
};

struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, Allocation> device;  // by their first byte
  std::vector<Allocation> freed;           // out of reach for ever, so that late accesses are seen
  std::atomic<size_t> num_freed = 0;
  std::map<uintptr_t, size_t> pinned;
  size_t used = 0;
  int accesses = 0;  // that go on
};

// Never destroyed: buffers of static storage may be freed after everything else.
Memory& memory() {
  static Memory& memory = *new Memory;
  return memory;
}

// The last allocation that begins at or below `data`; null where there is none.
const Allocation* find(const Memory& memory, const void* data) {
  auto next = memory.device.upper_bound(reinterpret_cast<uintptr_t>(data));
  return next == memory.device.begin() ? nullptr : &std::prev(next)->second;
}

void set_reachable(const Allocation& allocation, bool reachable) {
  if (mprotect(allocation.mapping + kPage, allocation.pages,
               reachable ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
    std::perror("emulator: mprotect");
    std::abort();
  }
}

}  // namespace

void* allocate_device_memory(size_t bytes) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (bytes > device_memory_bytes() - m.used) return nullptr;
  Allocation allocation{nullptr, round_up(bytes, kPage), bytes};
  void* const mapping = mmap(nullptr, allocation.pages + 2 * kPage, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  allocation.mapping = static_cast<std::byte*>(mapping);
  set_reachable(allocation, true);
  // Where there are few pages, they are soon out of reach and in it again.
  madvise(allocation.mapping + kPage, allocation.pages, MADV_HUGEPAGE);
  std::memset(allocation.begin(), kPoisonByte, bytes);
  ASAN_POISON_MEMORY_REGION(allocation.mapping + kPage,
                            allocation.begin() - allocation.mapping - kPage);
  ASAN_POISON_MEMORY_REGION(allocation.end(), allocation.fence());
  if (m.accesses == 0) set_reachable(allocation, false);
  m.used += bytes;
  m.device[reinterpret_cast<uintptr_t>(allocation.begin())] = allocation;
  return allocation.begin();
}

bool free_device_memory(void* data) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto found = m.device.find(reinterpret_cast<uintptr_t>(data));
  if (found == m.device.end()) return false;
  const Allocation& allocation = found->second;
  ASAN_UNPOISON_MEMORY_REGION(allocation.mapping, allocation.pages + 2 * kPage);
  if (mmap(allocation.mapping, allocation.pages + 2 * kPage, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    std::perror("emulator: mmap");
    std::abort();
  }
  m.used -= allocation.bytes;
  m.freed.push_back(allocation);
  m.device.erase(found);
  ++m.num_freed;
  return true;
}

// Kernels ask for every 16 bytes that they load: what a thread found last is kept for as long as
// nothing is freed.
bool in_device_memory(const void* data, size_t bytes) {
  struct Found {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    size_t num_freed = 0;
  };
  constinit thread_local Found last;
  Memory& m = memory();
  const auto* const begin = static_cast<const std::byte*>(data);
  if (begin < last.begin || begin + bytes > last.end || last.num_freed != m.num_freed) {
    const std::lock_guard lock(m.mutex);
    const Allocation* const allocation = find(m, data);
    if (allocation == nullptr) return false;
    last = {allocation->begin(), allocation->end(), m.num_freed};
  }
  return begin + bytes <= last.end;
}

size_t device_memory_bytes() {
  static const size_t bytes = environment_number("OUTRIDER_EMU_MEMORY_BYTES", size_t{2} << 30);
  return bytes;
}

size_t device_memory_used() {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  return m.used;
}

DeviceAccess::DeviceAccess() {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (m.accesses++ > 0) return;
  for (const auto& [begin, allocation] : m.device) set_reachable(allocation, true);
}

DeviceAccess::~DeviceAccess() {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (--m.accesses > 0) return;
  for (const auto& [begin, allocation] : m.device) set_reachable(allocation, false);
}

void* allocate_pinned_memory(size_t bytes) {
  void* data = nullptr;
  if (posix_memalign(&data, 64, bytes) != 0) return nullptr;
  std::memset(data, kPoisonByte, bytes);
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  m.pinned[reinterpret_cast<uintptr_t>(data)] = bytes;
  return data;
}

bool free_pinned_memory(void* data) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (m.pinned.erase(reinterpret_cast<uintptr_t>(data)) == 0) return false;
  std::free(data);
  return true;
}

bool in_pinned_memory(const void* data, size_t bytes) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto at = reinterpret_cast<uintptr_t>(data);
  auto next = m.pinned.upper_bound(at);
  if (next == m.pinned.begin()) return false;
  const auto& [begin, size] = *std::prev(next);
  return at + bytes <= begin + size;
}

}  // namespace emu
