// CostFit: by how much steps take longer than a table says that was measured at the start, what a
// plain step takes and what drafted rows add to it apart.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/verify_types.h"

namespace outrider {

// A Kalman filter (Kalman 1960) on time = (plain factor + share of so many rows) × plain + added
// factor × added, whose factors drift: that of all steps quickly, as machines do, and that of
// drafted rows slowly. A step with drafts does not tell the two apart; one without does, now and
// then. What the table has wrong of one drafted row is as large as what it has wrong of eight,
// which add more: so each number of rows has a share of its own for what the factors leave.
class CostFit {
 public:
  CostFit();
  // Nothing was observed yet; the factors of `guess` are the first guess.
  static CostFit from(const CostFit& guess);

  // A step took ms where the table says plain_ms and, for so many drafted rows, added_ms more.
  void observe(double plain_ms, double added_ms, int64_t drafted_rows, double ms);
  // A step went by that says nothing of these factors.
  void drift();

  double plain_factor() const { return mean_[kPlain]; }
  double added_factor() const { return mean_[kAdded]; }
  // What steps with so many drafted rows take beyond both factors, as a share of the table's plain.
  double share(int64_t drafted_rows) const {
    return drafted_rows == 0 ? 0 : mean_[share_of(drafted_rows)];
  }
  int64_t num_observed() const { return num_observed_; }

 private:
  // Behind these, the share of one drafted row, of two, … of as many as one sequence drafts or
  // more.
  static constexpr int kPlain = 0, kAdded = 1, kStates = 2 + kMaxDraftTokens;

  static int share_of(int64_t drafted_rows) {
    return kAdded + static_cast<int>(std::min<int64_t>(drafted_rows, kMaxDraftTokens));
  }
  CostFit(double plain, double added);
  // Standard deviations: of a state at most, and of what it changes from step to step.
  struct Doubt {
    double most, drift;
  };
  Doubt doubt(int state) const;

  std::array<double, kStates> mean_{};
  std::array<std::array<double, kStates>, kStates> covariance_{};
  int64_t num_observed_ = 0;
};

}  // namespace outrider
