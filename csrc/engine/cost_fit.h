// CostFit: by how much steps take longer than a table says that was measured at the start, what a
// plain step takes and what drafted rows add to it apart.
#pragma once

#include <cstdint>

namespace outrider {

// A Kalman filter (Kalman 1960) on time = plain factor × plain + added factor × added, whose
// factors drift: that of all steps quickly, as machines do, and that of drafted rows slowly. A step
// with drafts does not tell the two apart; one without does, now and then.
class CostFit {
 public:
  CostFit() = default;
  // Nothing was observed yet; the factors of `guess` are the first guess.
  static CostFit from(const CostFit& guess);

  // A step took ms where the table says plain_ms and, for drafted rows, added_ms more.
  void observe(double plain_ms, double added_ms, double ms);
  // A step went by that says nothing of these factors.
  void drift();

  double plain_factor() const { return plain_; }
  double added_factor() const { return added_; }
  int64_t num_observed() const { return num_observed_; }
  int64_t num_plain() const { return num_plain_; }  // … of them, steps without drafts
  int64_t num_since_plain() const { return num_since_plain_; }

 private:
  static constexpr double kFirstVariance = 0.25;

  double plain_ = 1, added_ = 1;
  double plain_variance_ = kFirstVariance, added_variance_ = kFirstVariance, covariance_ = 0;
  int64_t num_observed_ = 0, num_plain_ = 0, num_since_plain_ = 0;
};

}  // namespace outrider
