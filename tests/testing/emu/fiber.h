// A fiber: a function on a stack of its own, which runs until it yields. The switch is
// Boost.Context's; the sanitizers are told of it. No exception may leave or cross it.
//
// A fiber that hands over to the next one spares a switch to whoever resumed it and one from there;
// and where both do the same, the processor foresees where calls return.
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

  // Runs it until it yields, or one that it has handed over to. Always from the same thread, and
  // never from a fiber.
  void resume();
  // On the fiber itself: goes on behind resume() …
  void yield();
  // … or in another, which yields in its place.
  void hand_over_to(Fiber& next);
  // Forgets what it was doing, without unwinding; the next resume() calls Body.
  void restart();

 private:
  // A stack that is switched from and to: a fiber's, or that of whoever resumed one.
  struct Side {
    boost::context::detail::fcontext_t context = nullptr;  // where it goes on
    Fiber* fiber = nullptr;                                // null: whoever resumed one
    // The sanitizers' books; unused without them.
    void* fake_stack = nullptr;
    const void* stack = nullptr;
    size_t stack_bytes = 0;
    void* clock = nullptr;
  };
  struct Switch {
    Side *from, *to;
  };

  static void enter(boost::context::detail::transfer_t from);
  static void change(Side& from, Side& to);
  static Side& arrive(boost::context::detail::transfer_t from);

  Body body_;
  void* argument_;
  int colour_;
  char* mapping_;
  Side mine_;
  Side* resumed_by_ = nullptr;
};

}  // namespace emu
