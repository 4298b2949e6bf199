// One floating-point environment in every thread that computes: denormals are flushed, as vdpbf16ps
// does.
#pragma once

#include <immintrin.h>

namespace outrider {

// Call at the start of each thread that runs kernels. Sets flush-to-zero and denormals-are-zero.
inline void set_float_environment() {
  _mm_setcsr((_mm_getcsr() & ~_MM_ROUND_MASK) | _MM_FLUSH_ZERO_ON |
             0x0040u /* denormals are zero */);
}

}  // namespace outrider
