// What a load test says about many samples of one quantity.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

// Percentiles are exact: P is the smallest sample that at least P percent of all samples do not
// exceed (nearest rank), so each is a value that was measured. Without samples all are 0.
struct Distribution {
  int64_t count = 0;
  double mean = 0;
  double p50 = 0, p90 = 0, p99 = 0, p999 = 0;
  double max = 0;
};

Distribution summarise(std::vector<double> samples);

}  // namespace outrider
