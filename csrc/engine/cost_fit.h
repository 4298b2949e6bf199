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
  // A step took ms where the table says plain_ms and, for drafted rows, added_ms more.
  void observe(double plain_ms, double added_ms, double ms);

  double plain_factor() const { return plain_; }
  double added_factor() const { return added_; }
  int64_t num_plain() const { return num_plain_; }  // steps without drafts that were observed

 private:
  double plain_ = 1, added_ = 1;
  double plain_variance_ = 0.25, added_variance_ = 0.25, covariance_ = 0;
  int64_t num_plain_ = 0;
};

}  // namespace outrider
