// 64-bit digests (XXH3) of plain bytes: equal on every machine, for comparing state between ranks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider {

// Chains: digest(b, n, digest(a, m)) depends on both.
uint64_t digest(const void* data, size_t bytes, uint64_t seed = 0);

}  // namespace outrider
