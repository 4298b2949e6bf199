// Random numbers of a load test, real or simulated, the same everywhere for the same seed. The
// generators are the standard's mt19937_64, whose sequence is laid down; its distributions are not,
// so numbers are taken from the bits here.
#pragma once

#include <cstdint>
#include <random>

namespace outrider {

// One generator a purpose: other lengths do not mean another order.
enum class RandomPurpose : uint32_t {
  arrivals,
  order,
  lengths,
  seeds,
  prompts,
  resampling,
  noise,
  blocks
};

// part: which of several streams of one seed and purpose, as of a round or a block of a prompt.
std::mt19937_64 make_generator(uint64_t seed, RandomPurpose purpose, uint64_t part = 0);

// [0, 1), 53 bits
double uniform(std::mt19937_64& random);

// 0 … count - 1; the bias of count / 2^53 shows in no load test
uint64_t below(std::mt19937_64& random, uint64_t count);

// Mean 0, variance 1 (Box and Muller)
double normal(std::mt19937_64& random);

}  // namespace outrider
