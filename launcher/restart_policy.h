// RestartPolicy: whether `outrider launch` starts an ended job again, and after how long.
#pragma once

#include <chrono>
#include <deque>
#include <optional>

namespace outrider {

class RestartPolicy {
 public:
  using Clock = std::chrono::steady_clock;

  // So many ends before the job served are one too many: within so long, once it has ever served.
  static constexpr int kMaxFailedStarts = 3;
  static constexpr std::chrono::seconds kFailedStartsWindow{60};
  // A job that has served for so long has proved itself: the next start is at once.
  static constexpr std::chrono::seconds kProven{60};
  static constexpr std::chrono::seconds kLongestDelay{30};

  struct End {
    Clock::time_point at;
    std::optional<Clock::time_point> served_since;  // unset: it never served
    // It told itself why it could not start; a crash or a lost rank does not.
    bool explained = false;
  };

  // How long to wait before the next start: 0, 1, 2, 4, … s while the job keeps dying. Unset: give
  // up. A job that has never served and says why will not do better the next time.
  std::optional<std::chrono::seconds> after(const End& end);

  bool ever_served() const { return ever_served_; }  // of the ends so far

 private:
  bool ever_served_ = false;
  std::optional<std::chrono::seconds>
      last_delay_;  // unset: the last start was the first, or proven
  std::deque<Clock::time_point> failed_starts_;
};

}  // namespace outrider
