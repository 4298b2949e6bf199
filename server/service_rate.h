// ServiceRate: how fast requests come to their end, to tell refused clients when to try again.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

namespace outrider {

// Thread-safe.
class ServiceRate {
 public:
  using Clock = std::chrono::steady_clock;

  // A request that ran came to its end.
  void completed(Clock::time_point now);

  // The time in which half of `waiting` requests will have been served, 100 ms … 60 s; 1 s until
  // there is something to go by.
  std::chrono::milliseconds retry_delay(int64_t waiting) const;

 private:
  mutable std::mutex mutex_;  // guards all below
  std::optional<Clock::time_point> last_;
  std::optional<double> interval_ms_;  // between ends, recent ones count most
};

}  // namespace outrider
