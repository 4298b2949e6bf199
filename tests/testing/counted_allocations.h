// Counts this thread's allocations by replacing operator new. Include it in one file of a program.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace outrider {

struct Allocations {
  int64_t count = 0;
  int64_t bytes = 0;
};
inline thread_local Allocations allocations;

inline void* counted_allocation(size_t bytes) noexcept {
  ++allocations.count;
  allocations.bytes += static_cast<int64_t>(bytes);
  return std::malloc(bytes);
}

inline void* counted_allocation_or_throw(size_t bytes) {
  void* data = counted_allocation(bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace outrider

// Not inlined: GCC would see free() meet what it knows from operator new, and warn.
void* operator new(size_t bytes) { return outrider::counted_allocation_or_throw(bytes); }
void* operator new[](size_t bytes) { return outrider::counted_allocation_or_throw(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return outrider::counted_allocation(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return outrider::counted_allocation(bytes);
}
[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete[](void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, size_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete[](void* data, size_t) noexcept { std::free(data); }
