// See distribution.h.
#include "launcher/loadtest/distribution.h"

#include <algorithm>
#include <numeric>

namespace outrider {
namespace {

// sorted: ascending, not empty. In whole numbers, since 0.999 * 1000 need not be 999.
double nearest_rank(const std::vector<double>& sorted, int64_t per_mille) {
  const auto count = static_cast<int64_t>(sorted.size());
  const int64_t rank = (count * per_mille + 999) / 1000;  // 1 … count
  return sorted[static_cast<size_t>(rank - 1)];
}

}  // namespace

Distribution summarise(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto count = static_cast<double>(samples.size());
  return {.count = static_cast<int64_t>(samples.size()),
          .mean = std::accumulate(samples.begin(), samples.end(), 0.0) / count,
          .p50 = nearest_rank(samples, 500),
          .p90 = nearest_rank(samples, 900),
          .p99 = nearest_rank(samples, 990),
          .p999 = nearest_rank(samples, 999),
          .max = samples.back()};
}

}  // namespace outrider
