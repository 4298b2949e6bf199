// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): randomness as
// a pure function of a key and a counter. The same code runs on host and device.
#pragma once

#include <array>
#include <cstdint>

namespace outrider {

struct PhiloxKey {
  uint32_t low, high;
};

constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key.low, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key.high, static_cast<uint32_t>(a)};
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
  return counter;
}

}  // namespace outrider
