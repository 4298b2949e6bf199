// Digests (XXH3) of plain bytes, equal on every machine: 64 bits for comparing state between ranks,
// 128 where a digest stands for the content itself.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider {

// Chains: digest(b, n, digest(a, m)) depends on both.
uint64_t digest(const void* data, size_t bytes, uint64_t seed = 0);

struct Digest128 {
  uint64_t low = 0, high = 0;

  bool operator==(const Digest128&) const = default;
};

// Chains likewise, through all 128 bits.
Digest128 digest128(const void* data, size_t bytes, Digest128 chain = {});

}  // namespace outrider
