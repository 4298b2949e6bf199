#include "testing/emu/fiber.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace emu {
namespace {

constexpr size_t kStackBytes = 128 * 1024;  // frames under AddressSanitizer are large
constexpr size_t kGuardBytes = 4096;        // below the stack: running over its end is a fault

}  // namespace

Fiber::Fiber(Body body, void* argument, int colour)
    : body_(body), argument_(argument), colour_(colour) {
  void* const mapping = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED || mprotect(mapping, kGuardBytes, PROT_NONE) != 0) {
    std::fprintf(stderr, "emulator: no memory for the stack of a thread\n");
    std::abort();
  }
  mapping_ = static_cast<char*>(mapping);
#if defined(__SANITIZE_THREAD__)
  fiber_clock_ = __tsan_create_fiber(0);
#endif
  restart();
}

Fiber::~Fiber() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(mapping_ + kGuardBytes, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(fiber_clock_);
#endif
  munmap(mapping_, kGuardBytes + kStackBytes);
}

void Fiber::restart() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(mapping_ + kGuardBytes, kStackBytes);
#endif
  fiber_fake_stack_ = nullptr;
  char* const top = mapping_ + kGuardBytes + kStackBytes - 256 * (colour_ % 16);
  fiber_ = boost::context::detail::make_fcontext(top, top - mapping_ - kGuardBytes, &Fiber::enter);
}

void Fiber::enter(boost::context::detail::transfer_t from) {
  auto* const self = static_cast<Fiber*>(from.data);
  self->caller_ = from.fctx;
  self->arrive_from_caller();
  self->body_(self->argument_);
  std::abort();
}

void Fiber::resume() {
  leave_to_fiber();
  const auto from = boost::context::detail::jump_fcontext(fiber_, this);
  arrive_from_fiber();
  fiber_ = from.fctx;
}

void Fiber::yield() {
  leave_to_caller();
  const auto from = boost::context::detail::jump_fcontext(caller_, nullptr);
  caller_ = from.fctx;
  arrive_from_caller();
}

void Fiber::leave_to_fiber() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&caller_fake_stack_, mapping_ + kGuardBytes, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  caller_clock_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber_clock_, 0);
#endif
}

void Fiber::arrive_from_caller() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber_fake_stack_, &caller_stack_, &caller_stack_bytes_);
#endif
}

void Fiber::leave_to_caller() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fiber_fake_stack_, caller_stack_, caller_stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(caller_clock_, 0);
#endif
}

void Fiber::arrive_from_fiber() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(caller_fake_stack_, nullptr, nullptr);
#endif
}

}  // namespace emu
