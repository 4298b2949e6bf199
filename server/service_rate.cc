// See service_rate.h.
#include "server/service_rate.h"

#include <algorithm>

namespace outrider {
namespace {

using std::chrono::milliseconds;

constexpr double kWeightOfTheLast = 0.1;
constexpr milliseconds kShortest{100}, kUnknown{1'000}, kLongest{60'000};

}  // namespace

void ServiceRate::completed(double run_ms) {
  const std::lock_guard lock(mutex_);
  run_ms_ = run_ms_.value_or(run_ms) * (1 - kWeightOfTheLast) + run_ms * kWeightOfTheLast;
}

milliseconds ServiceRate::retry_delay(int64_t waiting, int64_t running) const {
  const std::lock_guard lock(mutex_);
  if (!run_ms_) return kUnknown;
  const auto at_once = static_cast<double>(std::max<int64_t>(running, 1));
  const double ms = *run_ms_ / at_once * static_cast<double>(waiting) / 2;
  const double longest = static_cast<double>(kLongest.count());
  return std::max(kShortest, milliseconds(static_cast<int64_t>(std::min(ms, longest))));
}

}  // namespace outrider
