// One body of plain C++, compiled for each instruction set and chosen by Isa. The bits are equal
// everywhere: nothing is fused (-ffp-contract=off), and the order of every sum is written in the
// body.
#pragma once

#include "kernels/cpu/isa.h"

// OUTRIDER_MULTIVERSION(void, add, (float* x, int n), (x, n)) makes add_avx512, add_avx2 and
// add_scalar of an always-inlined add_body; call OUTRIDER_DISPATCH(isa, add, (x, n)).
#define OUTRIDER_MULTIVERSION(result, name, parameters, arguments)    \
  [[gnu::target("arch=x86-64-v4")]] result name##_avx512 parameters { \
    return name##_body arguments;                                     \
  }                                                                   \
  [[gnu::target("arch=x86-64-v3")]] result name##_avx2 parameters {   \
    return name##_body arguments;                                     \
  }                                                                   \
  result name##_scalar parameters { return name##_body arguments; }   \
  static_assert(true)

#define OUTRIDER_DISPATCH(isa, name, arguments)                  \
  ((isa) >= outrider::cpu::Isa::avx512 ? name##_avx512 arguments \
   : (isa) == outrider::cpu::Isa::avx2 ? name##_avx2 arguments   \
                                       : name##_scalar arguments)
