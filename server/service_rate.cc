// See service_rate.h.
#include "server/service_rate.h"

#include <algorithm>

namespace outrider {
namespace {

using std::chrono::milliseconds;

constexpr double kWeightOfTheLast = 0.2;
constexpr milliseconds kShortest{100}, kUnknown{1'000}, kLongest{60'000};

}  // namespace

void ServiceRate::completed(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (last_) {
    const double interval_ms = std::chrono::duration<double, std::milli>(now - *last_).count();
    interval_ms_ = interval_ms_.value_or(interval_ms) * (1 - kWeightOfTheLast) +
                   interval_ms * kWeightOfTheLast;
  }
  last_ = now;
}

milliseconds ServiceRate::retry_delay(int64_t waiting) const {
  const std::lock_guard lock(mutex_);
  if (!interval_ms_) return kUnknown;
  const double ms = *interval_ms_ * static_cast<double>(waiting) / 2;
  const double longest = static_cast<double>(kLongest.count());
  return std::max(kShortest, milliseconds(static_cast<int64_t>(std::min(ms, longest))));
}

}  // namespace outrider
