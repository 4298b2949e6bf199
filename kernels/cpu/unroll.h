// OUTRIDER_UNROLL before a short loop of constant length: its arrays become registers.
#pragma once

#if defined(__clang__)
#define OUTRIDER_UNROLL _Pragma("unroll")
#else
#define OUTRIDER_UNROLL _Pragma("GCC unroll 16")
#endif
