#include "bench/bandwidth.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "core/buffer.h"

namespace outrider {

uint64_t read_all(const std::byte* data, size_t bytes) {
  using Line = uint64_t __attribute__((vector_size(64), aligned(16), may_alias));
  constexpr size_t kAhead = 4096;  // the processor's own prefetch stops at a page's end
  Line sums = {};
  for (size_t i = 0; i < bytes; i += sizeof(Line)) {
    __builtin_prefetch(data + i + kAhead);
    sums ^= *reinterpret_cast<const Line*>(data + i);
  }
  uint64_t sum = 0;
  for (int i = 0; i < 8; ++i) sum ^= sums[i];
  return sum;
}

double measure_read_bandwidth() {
  using Clock = std::chrono::steady_clock;
  const Buffer buffer = allocate_host(kBandwidthBytes);
  std::memset(buffer.data(), 1, buffer.bytes());
  std::array<double, 5> seconds;
  for (double& pass : seconds) {
    const Clock::time_point start = Clock::now();
    volatile uint64_t sum = read_all(static_cast<const std::byte*>(buffer.data()), buffer.bytes());
    static_cast<void>(sum);
    pass = std::chrono::duration<double>(Clock::now() - start).count();
  }
  std::nth_element(seconds.begin(), seconds.begin() + 2, seconds.end());
  return static_cast<double>(kBandwidthBytes) / seconds[2];
}

}  // namespace outrider
