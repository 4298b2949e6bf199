// See load_plan.h.
#include "launcher/loadtest/load_plan.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/random.h"
#include "core/error.h"

namespace outrider {
LoadPlan open_loop(double rate, double duration_s, int64_t max_requests, uint64_t seed,
                   uint64_t round) {
  CHECK(rate > 0 && std::isfinite(rate));
  LoadPlan plan{.duration_s = duration_s, .max_requests = max_requests};
  CHECK(std::isfinite(duration_s) || max_requests < LoadPlan().max_requests);
  std::mt19937_64 random = make_generator(seed, RandomPurpose::arrivals, round);
  double time_s = 0;
  while (static_cast<int64_t>(plan.due_s.size()) < max_requests) {
    time_s -= std::log1p(-uniform(random)) / rate;  // exponential gaps
    if (time_s >= duration_s) break;
    plan.due_s.push_back(time_s);
  }
  return plan;
}

LoadPlan closed_loop(int concurrency, double duration_s, int64_t max_requests) {
  return {.due_s = std::vector<double>(static_cast<size_t>(concurrency), 0.0),
          .closed_loop = true,
          .duration_s = duration_s,
          .max_requests = max_requests};
}

LoadPlan replay(const std::vector<double>& due_s, double duration_s, int64_t max_requests) {
  // All of the trace is a number of requests: nothing is measured between its end and duration_s.
  max_requests = std::min<int64_t>(max_requests, std::ssize(due_s));
  const auto end = std::lower_bound(due_s.begin(), due_s.begin() + max_requests, duration_s);
  return {.due_s = std::vector<double>(due_s.begin(), end),
          .duration_s = duration_s,
          .max_requests = max_requests};
}

}  // namespace outrider
