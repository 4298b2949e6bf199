// Numerics: what is promised of the bits of an answer.
#pragma once

namespace outrider {

enum class Numerics {
  exact,  // a row's bits depend on that row alone, a sum's on its addends: docs/ARCHITECTURE.md
  fast,   // on GPUs: libraries add in orders of their own, and other neighbours may give other bits
};

inline const char* numerics_name(Numerics numerics) {
  return numerics == Numerics::fast ? "fast" : "exact";
}

}  // namespace outrider
