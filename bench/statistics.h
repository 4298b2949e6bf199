// What a load test says about many samples of one quantity: mean, percentiles, and how sure they
// are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace outrider {

// Percentiles are exact: P is the smallest sample that at least P percent of all samples do not
// exceed (nearest rank), so each is a value that was measured.
struct Statistics {
  double mean = 0;
  double p50 = 0, p90 = 0, p99 = 0, p999 = 0;
};

// 1 … count, of so many ordered samples. In whole numbers, since 0.999 * 1000 need not be 999.
constexpr int64_t nearest_rank(int64_t count, int64_t per_mille) {
  return (count * per_mille + 999) / 1000;
}

// For whoever goes through them all, with the names that they have in JSON.
struct NamedStatistic {
  const char* name;
  double Statistics::*member;
};
inline constexpr NamedStatistic kStatistics[] = {{"mean", &Statistics::mean},
                                                 {"p50", &Statistics::p50},
                                                 {"p90", &Statistics::p90},
                                                 {"p99", &Statistics::p99},
                                                 {"p999", &Statistics::p999}};

// Values, and what each was measured on. Values of one unit (the gaps between one answer's chunks)
// depend on each other, so a resample takes all of them or none.
struct Samples {
  std::vector<double> values;
  std::vector<int64_t> units;

  void add(double value, int64_t unit) {
    values.push_back(value);
    units.push_back(unit);
  }
};

struct Interval {
  double low = 0, high = 0;
};

struct Intervals {
  Statistics low, high;

  Interval of(const NamedStatistic& statistic) const {
    return {low.*statistic.member, high.*statistic.member};
  }
};

// Without samples all are 0.
struct Summary : Statistics {
  int64_t count = 0;
  double max = 0;
  std::optional<Intervals> ci95;  // nothing of fewer than kLeastUnits
};

// Intervals are bootstrap percentile intervals (Efron 1979): the statistics of kResamples draws of
// as many units as there are, with replacement; 95 % of them lie within. Of more than 10,000 units
// it is groups of them that are drawn.
constexpr int kResamples = 1000;
// Draws of few units differ less than the units' own population does: an interval of ten holds the
// truth in 90 of 100 cases, one of five in 84.
constexpr size_t kLeastUnits = 10;
Summary summarise(const Samples& samples, uint64_t seed);

// a / b for each statistic: the ratios of what was measured, and intervals. Units that both share
// are drawn together, so that what makes one slow for both cancels out.
struct Ratios : Statistics {
  std::optional<Intervals> ci95;  // nothing of fewer than kLeastUnits
};
// Nothing where there are no samples of one, or not all of b's are above 0.
std::optional<Ratios> compare(const Samples& a, const Samples& b, uint64_t seed);

}  // namespace outrider
