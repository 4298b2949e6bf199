// When the requests of a load test are due, which is known before the first one is sent.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace outrider {

// Times are seconds since the start of the test.
struct LoadPlan {
  // Ascending. Open loop: one request each. Closed loop: one user each, whose next request is due
  // when the last one was answered.
  std::vector<double> due_s;
  bool closed_loop = false;
  // What is due then or later is not sent.
  double duration_s = std::numeric_limits<double>::infinity();
  // No more than these are sent.
  int64_t max_requests = std::numeric_limits<int64_t>::max();
};

// Poisson arrivals, `rate` a second in the mean, up to `duration_s` or `max_requests`, whichever
// comes first; one of them must be finite. round: of a comparison; each has arrivals of its own.
LoadPlan open_loop(double rate, double duration_s, int64_t max_requests, uint64_t seed,
                   uint64_t round = 0);

// `concurrency` users, all there at the start.
LoadPlan closed_loop(int concurrency, double duration_s, int64_t max_requests);

// A request for each time, up to `duration_s` or `max_requests`. due_s: ascending.
LoadPlan replay(const std::vector<double>& due_s, double duration_s, int64_t max_requests);

}  // namespace outrider
