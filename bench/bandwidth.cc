#include "bench/bandwidth.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

namespace outrider {

// Four places at once, fetched well ahead: the processor's own prefetch follows each only to the
// end of its 4 KiB page. They are near each other: places far apart by a power of two meet in the
// same banks of memory.
uint64_t read_all(const std::byte* data, size_t bytes) {
  using Line = uint64_t __attribute__((vector_size(64), aligned(64), may_alias));
  constexpr size_t kPlaces = 4;
  constexpr size_t kRun = kReadBlock / kPlaces;
  constexpr size_t kNear = 1024;
  constexpr size_t kFar = 8192;
  Line sums[kPlaces] = {};
  for (size_t block = 0; block < bytes; block += kReadBlock) {
    for (size_t i = 0; i < kRun; i += sizeof(Line)) {
      const size_t far = i + kFar < kRun ? kFar : kFar + kReadBlock - kRun;  // of the next block
      for (size_t p = 0; p < kPlaces; ++p) {
        const std::byte* line = data + block + p * kRun + i;
        __builtin_prefetch(line + far, 0, 2);
        __builtin_prefetch(line + kNear);
        sums[p] ^= *reinterpret_cast<const Line*>(line);
      }
    }
  }
  sums[0] ^= sums[1] ^ sums[2] ^ sums[3];
  uint64_t sum = 0;
  for (int i = 0; i < 8; ++i) sum ^= sums[0][i];
  return sum;
}

ReadBandwidth::ReadBandwidth() : buffer_(allocate_host(kBandwidthBytes)) {
  std::memset(buffer_.data(), 1, buffer_.bytes());
}

double ReadBandwidth::pass() const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  volatile uint64_t sum = read_all(static_cast<const std::byte*>(buffer_.data()), buffer_.bytes());
  static_cast<void>(sum);
  const std::chrono::duration<double> seconds = Clock::now() - start;
  return static_cast<double>(kBandwidthBytes) / seconds.count();
}

double measure_read_bandwidth() {
  const ReadBandwidth memory;
  std::array<double, 5> passes;
  for (double& rate : passes) rate = memory.pass();
  std::nth_element(passes.begin(), passes.begin() + 2, passes.end());
  return passes[2];
}

}  // namespace outrider
