#include "core/digest.h"

#include <xxhash.h>

namespace outrider {

uint64_t digest(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

Digest128 digest128(const void* data, size_t bytes, Digest128 chain) {
  // XXH3 takes a seed of 64 bits only: the other half comes in with a second round.
  const XXH128_hash_t own = XXH3_128bits_withSeed(data, bytes, chain.low);
  const uint64_t both[] = {own.low64, own.high64, chain.low, chain.high};
  const XXH128_hash_t linked = XXH3_128bits(both, sizeof both);
  return {linked.low64, linked.high64};
}

}  // namespace outrider
