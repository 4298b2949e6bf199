// See statistics.h.
#include "launcher/loadtest/statistics.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "launcher/loadtest/random.h"

namespace outrider {
namespace {

// In whole numbers, since 0.999 * 1000 need not be 999. 1 … count
int64_t nearest_rank(int64_t count, int64_t per_mille) { return (count * per_mille + 999) / 1000; }

struct SortedSamples {
  std::vector<double> values;  // ascending
  std::vector<uint32_t> units;
};

// units: ascending; those of `samples` and perhaps others. They become positions in it.
SortedSamples sort(const Samples& samples, const std::vector<int64_t>& units) {
  std::vector<size_t> order(samples.values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return samples.values[a] < samples.values[b]; });
  SortedSamples sorted;
  for (const size_t i : order) {
    const auto unit = std::lower_bound(units.begin(), units.end(), samples.units[i]);
    sorted.values.push_back(samples.values[i]);
    sorted.units.push_back(static_cast<uint32_t>(unit - units.begin()));
  }
  return sorted;
}

// `sorted` with each unit as often as `times` says; nothing where no sample is left.
std::optional<Statistics> statistics(const SortedSamples& sorted,
                                     const std::vector<int64_t>& times) {
  int64_t count = 0;
  double sum = 0;
  for (size_t i = 0; i < sorted.values.size(); ++i) {
    count += times[sorted.units[i]];
    sum += static_cast<double>(times[sorted.units[i]]) * sorted.values[i];
  }
  if (count == 0) return std::nullopt;
  const std::array ranks = {nearest_rank(count, 500), nearest_rank(count, 900),
                            nearest_rank(count, 990), nearest_rank(count, 999)};
  std::array<double, ranks.size()> percentiles{};
  size_t next = 0;
  int64_t passed = 0;
  for (size_t i = 0; next < ranks.size(); ++i) {
    passed += times[sorted.units[i]];
    while (next < ranks.size() && passed >= ranks[next]) percentiles[next++] = sorted.values[i];
  }
  return Statistics{.mean = sum / static_cast<double>(count),
                    .p50 = percentiles[0],
                    .p90 = percentiles[1],
                    .p99 = percentiles[2],
                    .p999 = percentiles[3]};
}

void add_units(const Samples& samples, std::vector<int64_t>& units) {
  units.insert(units.end(), samples.units.begin(), samples.units.end());
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
}

// The intervals of what `measure` makes of draws of num_units units. A draw of which it makes
// nothing is made again.
template <typename Measure>
std::optional<Intervals> bootstrap(size_t num_units, uint64_t seed, Measure measure) {
  if (num_units < 2) return std::nullopt;
  std::mt19937_64 random = make_generator(seed, RandomPurpose::resampling);
  std::vector<int64_t> times(num_units);
  std::vector<Statistics> resamples;
  while (resamples.size() < kResamples) {
    std::fill(times.begin(), times.end(), 0);
    for (size_t i = 0; i < num_units; ++i) ++times[below(random, num_units)];
    if (const std::optional<Statistics> resample = measure(times)) resamples.push_back(*resample);
  }
  Intervals intervals;
  std::vector<double> values(kResamples);
  for (const auto& [_, member] : kStatistics) {
    std::transform(resamples.begin(), resamples.end(), values.begin(),
                   [m = member](const Statistics& resample) { return resample.*m; });
    std::sort(values.begin(), values.end());
    const auto at = [&](int64_t per_mille) {
      return values[static_cast<size_t>(nearest_rank(kResamples, per_mille) - 1)];
    };
    intervals.low.*member = at(25);
    intervals.high.*member = at(975);
  }
  return intervals;
}

Statistics ratios(const Statistics& a, const Statistics& b) {
  Statistics result;
  for (const auto& [_, member] : kStatistics) result.*member = a.*member / b.*member;
  return result;
}

}  // namespace

Summary summarise(const Samples& samples, uint64_t seed) {
  if (samples.values.empty()) return {};
  std::vector<int64_t> units;
  add_units(samples, units);
  const SortedSamples sorted = sort(samples, units);
  return {*statistics(sorted, std::vector<int64_t>(units.size(), 1)),
          static_cast<int64_t>(sorted.values.size()), sorted.values.back(),
          bootstrap(units.size(), seed,
                    [&](const std::vector<int64_t>& times) { return statistics(sorted, times); })};
}

std::optional<Ratios> compare(const Samples& a, const Samples& b, uint64_t seed) {
  if (a.values.empty() || b.values.empty()) return std::nullopt;
  if (*std::min_element(b.values.begin(), b.values.end()) <= 0) return std::nullopt;
  std::vector<int64_t> units;
  add_units(a, units);
  add_units(b, units);
  const SortedSamples sorted_a = sort(a, units), sorted_b = sort(b, units);
  const auto measure = [&](const std::vector<int64_t>& times) -> std::optional<Statistics> {
    const auto of_a = statistics(sorted_a, times), of_b = statistics(sorted_b, times);
    if (!of_a || !of_b) return std::nullopt;
    return ratios(*of_a, *of_b);
  };
  return Ratios{*measure(std::vector<int64_t>(units.size(), 1)),
                bootstrap(units.size(), seed, measure)};
}

}  // namespace outrider
