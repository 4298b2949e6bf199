// See statistics.h.
#include "bench/statistics.h"

#include <algorithm>
#include <numeric>

#include "bench/random.h"

namespace outrider {
namespace {

// A long run has millions of samples of hundreds of thousands of units. Units are drawn in so many
// groups at most, each of which is as good a draw as another, …
constexpr size_t kMostGroups = 10'000;
// … and a percentile is looked for in one of so many blocks of the ordered samples.
constexpr size_t kMostBlocks = 256;
constexpr size_t kLeastBlock = 1024;  // samples

struct SortedSamples {
  std::vector<double> values;  // ascending
  std::vector<uint32_t> groups;
  std::vector<double> sums;  // [groups]: of their values
  size_t block = 0;          // samples of a block but the last
  // [blocks + 1][groups]: samples of a group before each block, and at last all.
  std::vector<std::vector<int64_t>> before;

  size_t num_blocks() const { return before.size() - 1; }
};

size_t num_groups(const std::vector<int64_t>& units) { return std::min(units.size(), kMostGroups); }

// units: ascending; those of `samples` and perhaps others.
SortedSamples sort(const Samples& samples, const std::vector<int64_t>& units) {
  std::vector<size_t> order(samples.values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return samples.values[a] < samples.values[b]; });
  const size_t count = num_groups(units);
  SortedSamples sorted{.sums = std::vector<double>(count, 0.0)};
  sorted.block = std::max(kLeastBlock, (order.size() + kMostBlocks - 1) / kMostBlocks);
  std::vector<int64_t> seen(count, 0);
  for (const size_t i : order) {
    if (sorted.values.size() % sorted.block == 0) sorted.before.push_back(seen);
    const auto unit = std::lower_bound(units.begin(), units.end(), samples.units[i]);
    const size_t group = static_cast<size_t>(unit - units.begin()) % count;
    sorted.values.push_back(samples.values[i]);
    sorted.groups.push_back(static_cast<uint32_t>(group));
    sorted.sums[group] += samples.values[i];
    ++seen[group];
  }
  sorted.before.push_back(seen);
  return sorted;
}

template <typename T>
T weighted(const std::vector<int64_t>& times, const std::vector<T>& of) {
  T total = 0;
  for (size_t g = 0; g < of.size(); ++g) total += static_cast<T>(times[g]) * of[g];
  return total;
}

// The rank-th sample, from 1, of `sorted` with each group as often as `times` says.
double value_at(const SortedSamples& sorted, const std::vector<int64_t>& times, int64_t rank) {
  size_t block = 0, end = sorted.num_blocks();  // it is in [block, end)
  int64_t passed = 0;                           // before `block`
  while (end - block > 1) {
    const size_t middle = (block + end) / 2;
    const int64_t before = weighted(times, sorted.before[middle]);
    if (before >= rank) {
      end = middle;
    } else {
      block = middle;
      passed = before;
    }
  }
  size_t i = block * sorted.block;
  for (;; ++i) {
    passed += times[sorted.groups[i]];
    if (passed >= rank) return sorted.values[i];
  }
}

// `sorted` with each group as often as `times` says; nothing where no sample is left.
std::optional<Statistics> statistics(const SortedSamples& sorted,
                                     const std::vector<int64_t>& times) {
  const int64_t count = weighted(times, sorted.before.back());
  if (count == 0) return std::nullopt;
  const auto percentile = [&](int64_t per_mille) {
    return value_at(sorted, times, nearest_rank(count, per_mille));
  };
  return Statistics{.mean = weighted(times, sorted.sums) / static_cast<double>(count),
                    .p50 = percentile(500),
                    .p90 = percentile(900),
                    .p99 = percentile(990),
                    .p999 = percentile(999)};
}

void add_units(const Samples& samples, std::vector<int64_t>& units) {
  units.insert(units.end(), samples.units.begin(), samples.units.end());
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
}

// The intervals of what `measure` makes of draws of `count` groups. A draw of which it makes
// nothing is made again.
template <typename Measure>
std::optional<Intervals> bootstrap(size_t count, uint64_t seed, Measure measure) {
  if (count < kLeastUnits) return std::nullopt;
  std::mt19937_64 random = make_generator(seed, RandomPurpose::resampling);
  std::vector<int64_t> times(count);
  std::vector<Statistics> resamples;
  while (resamples.size() < kResamples) {
    std::fill(times.begin(), times.end(), 0);
    for (size_t i = 0; i < count; ++i) ++times[below(random, count)];
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
  return {*statistics(sorted, std::vector<int64_t>(num_groups(units), 1)),
          static_cast<int64_t>(sorted.values.size()), sorted.values.back(),
          bootstrap(num_groups(units), seed,
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
  return Ratios{*measure(std::vector<int64_t>(num_groups(units), 1)),
                bootstrap(num_groups(units), seed, measure)};
}

}  // namespace outrider
