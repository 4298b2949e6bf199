// ServiceRate: how fast requests are served, to tell refused clients when to try again.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

namespace outrider {

// Thread-safe. Goes by how long requests ran and how many run at once (Little 1961), not by when
// they ended: those of one step end together, and nobody ends while nobody asks.
class ServiceRate {
 public:
  // A request came to its end that had run so long, without its time in the queue.
  void completed(double run_ms);

  // The time in which half of `waiting` requests will have been served where so many run, 100 ms …
  // 60 s; 1 s until there is something to go by.
  std::chrono::milliseconds retry_delay(int64_t waiting, int64_t running) const;

 private:
  mutable std::mutex mutex_;      // guards all below
  std::optional<double> run_ms_;  // recent ones count most
};

}  // namespace outrider
