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
  mine_.fiber = this;
  mine_.stack = mapping_ + kGuardBytes;
  mine_.stack_bytes = kStackBytes;
#if defined(__SANITIZE_THREAD__)
  mine_.clock = __tsan_create_fiber(0);
#endif
  restart();
}

Fiber::~Fiber() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(mapping_ + kGuardBytes, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(mine_.clock);
#endif
  munmap(mapping_, kGuardBytes + kStackBytes);
}

void Fiber::restart() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(mapping_ + kGuardBytes, kStackBytes);
#endif
  mine_.fake_stack = nullptr;
  char* const top = mapping_ + kGuardBytes + kStackBytes - 256 * (colour_ % 16);
  mine_.context =
      boost::context::detail::make_fcontext(top, top - mapping_ - kGuardBytes, &Fiber::enter);
}

void Fiber::enter(boost::context::detail::transfer_t from) {
  Fiber* const self = arrive(from).fiber;
  self->body_(self->argument_);
  std::abort();
}

void Fiber::resume() {
  Side caller;
#if defined(__SANITIZE_THREAD__)
  caller.clock = __tsan_get_current_fiber();
#endif
  resumed_by_ = &caller;
  change(caller, mine_);
}

void Fiber::yield() { change(mine_, *resumed_by_); }

void Fiber::hand_over_to(Fiber& next) {
  next.resumed_by_ = resumed_by_;
  change(mine_, next.mine_);
}

// Returns once somebody has changed to `from` again.
void Fiber::change(Side& from, Side& to) {
  Switch sides = {&from, &to};
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.clock, 0);
#endif
  arrive(boost::context::detail::jump_fcontext(to.context, &sides));
}

// What comes first on the other side, which it returns.
Fiber::Side& Fiber::arrive(boost::context::detail::transfer_t from) {
  const Switch& sides = *static_cast<const Switch*>(from.data);
  sides.from->context = from.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(sides.to->fake_stack, &sides.from->stack,
                                  &sides.from->stack_bytes);
#endif
  return *sides.to;
}

}  // namespace emu
