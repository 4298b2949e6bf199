// See histogram.h.
#include "engine/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace outrider {

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)),
      counts_(std::make_unique<std::atomic<uint64_t>[]>(bounds_.size() + 1)) {
  CHECK(std::is_sorted(bounds_.begin(), bounds_.end()));
}

void Histogram::observe(double value) {
  // A bound is inside its bucket: `le` is ≤.
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

prometheus::ClientMetric Histogram::collect() const {
  prometheus::ClientMetric metric;
  uint64_t cumulative = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i) {
    cumulative += counts_[i].load(std::memory_order_relaxed);
    metric.histogram.bucket.push_back(
        {.cumulative_count = cumulative,
         .upper_bound = i < bounds_.size() ? bounds_[i] : std::numeric_limits<double>::infinity()});
  }
  metric.histogram.sample_count = cumulative;
  metric.histogram.sample_sum = sum_.load(std::memory_order_relaxed);
  return metric;
}

std::vector<double> one_two_five(int first, int last) {
  std::vector<double> bounds;
  for (int exponent = first; exponent < last; ++exponent) {
    for (const double digit : {1, 2, 5}) {
      // Dividing by a whole power gives the nearest number to what is written, 0.2 and not
      // 0.20000000000000001.
      bounds.push_back(exponent < 0 ? digit / std::pow(10, -exponent)
                                    : digit * std::pow(10, exponent));
    }
  }
  bounds.push_back(last < 0 ? 1 / std::pow(10, -last) : std::pow(10, last));
  return bounds;
}

HistogramFamily::HistogramFamily(std::string name, std::string help,
                                 const std::vector<double>& bounds, std::string label,
                                 const std::vector<std::string>& values)
    : name_(std::move(name)), help_(std::move(help)), label_(std::move(label)) {
  for (const std::string& value : values) {
    histograms_.emplace_back(value, std::make_unique<Histogram>(bounds));
  }
}

prometheus::MetricFamily HistogramFamily::collect() const {
  prometheus::MetricFamily family{
      .name = name_, .help = help_, .type = prometheus::MetricType::Histogram, .metric = {}};
  for (const auto& [value, histogram] : histograms_) {
    family.metric.push_back(histogram->collect());
    if (!label_.empty()) family.metric.back().label.push_back({label_, value});
  }
  return family;
}

}  // namespace outrider
