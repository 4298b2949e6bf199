#include "core/digest.h"

#include <xxhash.h>

namespace outrider {

uint64_t digest(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

}  // namespace outrider
