// See restart_policy.h.
#include "launcher/restart_policy.h"

#include <algorithm>

namespace outrider {

std::optional<std::chrono::seconds> RestartPolicy::after(const End& end) {
  using std::chrono::seconds;
  if (end.served_since) {
    ever_served_ = true;
    failed_starts_.clear();
    if (end.at - *end.served_since >= kProven) last_delay_.reset();
  } else {
    if (!ever_served_ && end.explained) return std::nullopt;
    failed_starts_.push_back(end.at);
    while (ever_served_ && end.at - failed_starts_.front() > kFailedStartsWindow) {
      failed_starts_.pop_front();
    }
    if (failed_starts_.size() >= kMaxFailedStarts) return std::nullopt;
  }
  last_delay_ = !last_delay_                 ? seconds(0)
                : *last_delay_ == seconds(0) ? seconds(1)
                                             : std::min(2 * *last_delay_, kLongestDelay);
  return last_delay_;
}

}  // namespace outrider
