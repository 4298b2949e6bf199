// A fiber: a function on a stack of its own, which runs until it yields. The switch is
// Boost.Context's; the sanitizers are told of it. No exception may leave or cross it.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

namespace emu {

class Fiber {
 public:
  using Body = void (*)(void* argument);

  // Body is called on the first resume(). It never returns: it yields for ever when it is done.
  // colour: fibers of different colours do not compete for the same lines of the cache.
  Fiber(Body body, void* argument, int colour);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs it until it yields. Always from the same thread, and never from a fiber.
  void resume();
  // On the fiber itself: goes on behind resume().
  void yield();
  // Forgets what it was doing, without unwinding; the next resume() calls Body.
  void restart();

 private:
  static void enter(boost::context::detail::transfer_t from);
  void leave_to_fiber();
  void arrive_from_fiber();
  void leave_to_caller();
  void arrive_from_caller();

  Body body_;
  void* argument_;
  int colour_;
  char* mapping_;
  boost::context::detail::fcontext_t fiber_ = nullptr;   // where the fiber goes on
  boost::context::detail::fcontext_t caller_ = nullptr;  // where its caller does

  // The sanitizers' books; unused without them.
  void* fiber_fake_stack_ = nullptr;
  void* caller_fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
  void* fiber_clock_ = nullptr;
  void* caller_clock_ = nullptr;
};

}  // namespace emu
