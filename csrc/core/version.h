// The version of Outrider, and of this very build.
#pragma once

namespace outrider {

inline constexpr char kVersion[] = "0.1.0";

// 16 hex digits of a hash of the sources and flags that decide an answer's bits: builds with equal
// ids compute the same.
const char* build_id();

}  // namespace outrider
