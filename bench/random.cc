// See random.h.
#include "bench/random.h"

#include <cmath>
#include <numbers>
#include <vector>

namespace outrider {

std::mt19937_64 make_generator(uint64_t seed, RandomPurpose purpose, uint64_t part) {
  std::vector<uint32_t> words = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                                 static_cast<uint32_t>(purpose)};
  if (part != 0) {
    words.insert(words.end(), {static_cast<uint32_t>(part), static_cast<uint32_t>(part >> 32)});
  }
  std::seed_seq sequence(words.begin(), words.end());
  return std::mt19937_64(sequence);
}

double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

uint64_t below(std::mt19937_64& random, uint64_t count) {
  return static_cast<uint64_t>(uniform(random) * static_cast<double>(count));
}

double normal(std::mt19937_64& random) {
  const double radius = std::sqrt(-2 * std::log1p(-uniform(random)));
  return radius * std::cos(2 * std::numbers::pi * uniform(random));
}

}  // namespace outrider
