// Histogram: a Prometheus histogram that is observed without a lock. The library's own takes one
// that scrapes hold, and a scrape must never make a step wait.
#pragma once

#include <prometheus/metric_family.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace outrider {

class Histogram {
 public:
  // bounds: upper ends of the buckets, rising; one without an end follows.
  explicit Histogram(std::vector<double> bounds);

  // Thread-safe. Allocates nothing and never waits.
  void observe(double value);

  // A sample of one scrape. Buckets and count agree; the sum may be an observation ahead.
  prometheus::ClientMetric collect() const;

 private:
  const std::vector<double> bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> counts_;  // [bounds + 1], each bucket's own
  std::atomic<double> sum_ = 0;
};

// 10^first, 2·10^first, 5·10^first, … 10^last.
std::vector<double> one_two_five(int first, int last);

// Histograms of one name, told apart by one label; or one without a label.
class HistogramFamily {
 public:
  HistogramFamily(std::string name, std::string help, const std::vector<double>& bounds,
                  std::string label = "", const std::vector<std::string>& values = {""});

  Histogram& at(size_t i) { return *histograms_[i].second; }
  prometheus::MetricFamily collect() const;

 private:
  std::string name_, help_, label_;
  std::vector<std::pair<std::string, std::unique_ptr<Histogram>>> histograms_;  // label's value
};

}  // namespace outrider
