#include "core/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace outrider {

Buffer allocate_host(size_t bytes) {
  if (bytes == 0) return {};
  const size_t unit = bytes >= kHugePage ? kHugePage : 4096;
  // mmap aligns to 4 KiB; for huge pages map one more and trim both ends.
  const size_t size = (bytes + unit - 1) / unit * unit;
  const size_t mapped = size + (unit == kHugePage ? kHugePage : 0);
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    throw Error("out of memory: cannot allocate " + std::to_string(bytes) +
                " bytes: " + std::strerror(errno));
  }
  auto* data = static_cast<std::byte*>(base);
  if (unit == kHugePage) {
    const size_t head = (kHugePage - reinterpret_cast<uintptr_t>(base) % kHugePage) % kHugePage;
    if (head > 0) munmap(base, head);
    if (mapped - head > size) munmap(data + head + size, mapped - head - size);
    data += head;
    madvise(data, size, MADV_HUGEPAGE);  // advice: without it the memory is only slower
  }
  return Buffer(data, size, [](void* p, size_t n) { munmap(p, n); });
}

}  // namespace outrider
