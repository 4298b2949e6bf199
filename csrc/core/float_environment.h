// One floating-point environment in every thread that computes: denormals are flushed, as vdpbf16ps
// does.
#pragma once

#include <immintrin.h>

namespace outrider {

// Sets flush-to-zero and denormals-are-zero, for good: of a thread that does nothing but compute.
// Threads that it starts inherit them.
inline void set_float_environment() {
  _mm_setcsr((_mm_getcsr() & ~_MM_ROUND_MASK) | _MM_FLUSH_ZERO_ON |
             0x0040u /* denormals are zero */);
}

// The same within a scope, for the code that computes on somebody else's thread.
class FloatEnvironment {
 public:
  FloatEnvironment() : before_(_mm_getcsr()) { set_float_environment(); }
  ~FloatEnvironment() { _mm_setcsr(before_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  const unsigned before_;
};

}  // namespace outrider
