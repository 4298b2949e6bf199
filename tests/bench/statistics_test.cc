// What a load test makes of its samples: against NumPy and SciPy (tools/loadtest_golden.py), and
// against the definitions.
#include "bench/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <random>
#include <vector>

namespace outrider {
namespace {

// Each measured on its own.
Samples samples_of(const std::vector<double>& values) {
  Samples samples{values, std::vector<int64_t>(values.size())};
  std::iota(samples.units.begin(), samples.units.end(), int64_t{0});
  return samples;
}

Summary summary_of(const std::vector<double>& values) { return summarise(samples_of(values), 0); }

std::vector<double> down_from(int count) {
  std::vector<double> values;
  for (int i = count; i >= 1; --i) values.push_back(i);
  return values;
}

nlohmann::json golden() {
  return nlohmann::json::parse(
      std::ifstream(OUTRIDER_SOURCE_DIR "/tests/bench/testdata/loadtest_statistics.json"));
}

void expect_statistics(const Statistics& found, const nlohmann::json& expected) {
  for (const auto& [name, member] : kStatistics) {
    const double value = expected.at(name);
    EXPECT_NEAR(found.*member, value, 1e-12 * value) << name;  // means: the order of the sum
  }
}

// The ends lie where those of a thousand resamples may (the script says how wide that is; values
// are sums in another order).
void expect_intervals(const std::optional<Intervals>& found, const nlohmann::json& expected) {
  ASSERT_TRUE(found);
  for (const NamedStatistic& statistic : kStatistics) {
    const Interval interval = found->of(statistic);
    for (const auto& [end, value] : {std::pair("low", interval.low), {"high", interval.high}}) {
      const nlohmann::json& range = expected.at(statistic.name).at(end);
      EXPECT_GE(value, range[0].get<double>() * (1 - 1e-12)) << statistic.name << " " << end;
      EXPECT_LE(value, range[1].get<double>() * (1 + 1e-12)) << statistic.name << " " << end;
    }
  }
}

TEST(Summarise, AgreesWithNumPyAndSciPy) {
  const nlohmann::json file = golden();
  ASSERT_GE(file["summaries"].size(), 6u);
  for (const nlohmann::json& one : file["summaries"]) {
    SCOPED_TRACE(one["name"]);
    const Summary summary = summarise(Samples{one["values"], one["units"]}, 0);
    EXPECT_EQ(summary.count, static_cast<int64_t>(one["values"].size()));
    expect_statistics(summary, one["statistics"]);
    expect_intervals(summary.ci95, one["intervals"]);
  }
}

TEST(Compare, AgreesWithNumPy) {
  const nlohmann::json file = golden()["comparison"];
  const auto ratios = compare(samples_of(file["a"]), samples_of(file["b"]), 0);
  ASSERT_TRUE(ratios);
  expect_statistics(*ratios, file["statistics"]);
  expect_intervals(ratios->ci95, file["intervals"]);
}

// What is drawn together says more than what is drawn apart: here the questions' own differences
// are far larger than what the ratio is about.
TEST(Compare, DrawsWhatIsSharedTogether) {
  const nlohmann::json file = golden()["comparison"];
  const Samples a = samples_of(file["a"]);
  Samples b = samples_of(file["b"]);
  const Intervals together = *compare(a, b, 0)->ci95;
  for (int64_t& unit : b.units) unit += 1000;
  const Intervals apart = *compare(a, b, 0)->ci95;
  EXPECT_LT(2 * (together.high.mean - together.low.mean), apart.high.mean - apart.low.mean);
}

TEST(Compare, SaysNothingOfNothing) {
  EXPECT_FALSE(compare({}, samples_of({1, 2}), 0));
  EXPECT_FALSE(compare(samples_of({1, 2}), {}, 0));
  EXPECT_FALSE(compare(samples_of({1, 2}), samples_of({0, 2}), 0));  // a ratio to 0
  const auto one = compare(samples_of({3}), samples_of({2}), 0);
  ASSERT_TRUE(one);
  EXPECT_EQ(one->p50, 1.5);
  EXPECT_FALSE(one->ci95);
}

TEST(Summarise, IsExact) {
  const Summary thousand = summary_of(down_from(1000));
  EXPECT_EQ(thousand.count, 1000);
  EXPECT_EQ(thousand.mean, 500.5);
  EXPECT_EQ(thousand.p50, 500);
  EXPECT_EQ(thousand.p90, 900);
  EXPECT_EQ(thousand.p99, 990);
  EXPECT_EQ(thousand.p999, 999);
  EXPECT_EQ(thousand.max, 1000);
  EXPECT_EQ(summary_of(down_from(1001)).p999, 1000);
  EXPECT_EQ(summary_of(down_from(100)).p999, 100);
  EXPECT_EQ(summary_of(down_from(3)).p50, 2);
}

TEST(Summarise, OneUnitHasNoInterval) {
  const Summary none = summary_of(std::vector<double>{});
  EXPECT_EQ(none.count, 0);
  EXPECT_EQ(none.mean, 0);
  EXPECT_FALSE(none.ci95);
  const Summary one = summary_of({7});
  EXPECT_EQ(one.p50, 7);
  EXPECT_EQ(one.p999, 7);
  EXPECT_FALSE(one.ci95);
  EXPECT_FALSE(summarise(Samples{{1, 2, 3}, {5, 5, 5}}, 0).ci95);
}

TEST(Summarise, FewUnitsHaveNoInterval) {
  Samples samples;
  for (size_t i = 0; i < 100; ++i) samples.add(1.0, static_cast<int64_t>(i % (kLeastUnits - 1)));
  EXPECT_FALSE(summarise(samples, 0).ci95);
  EXPECT_FALSE(compare(samples, samples, 0)->ci95);
  samples.add(1.0, kLeastUnits);
  EXPECT_TRUE(summarise(samples, 0).ci95);
  EXPECT_TRUE(compare(samples, samples, 0)->ci95);
}

// Two equal arms whose turns differ by 15 %: drawn by turn, nearly as many intervals hold the true
// ratio, 1, as they say.
TEST(Compare, IntervalsOverTurnsHoldTheTruth) {
  constexpr int kComparisons = 300, kTurns = 16, kAnswers = 24;
  std::mt19937_64 random(3);
  std::lognormal_distribution<double> turn(0, 0.15), question(0, 0.3), answer(0, 0.05);
  int mean_holds = 0, p99_holds = 0;
  for (int i = 0; i < kComparisons; ++i) {
    Samples a, b;
    for (int64_t round = 0; round < kTurns; ++round) {
      const double of_a = turn(random), of_b = turn(random);
      for (int j = 0; j < kAnswers; ++j) {
        const double asked = question(random);
        a.add(of_a * asked * answer(random), round);
        b.add(of_b * asked * answer(random), round);
      }
    }
    const Intervals found = *compare(a, b, static_cast<uint64_t>(i))->ci95;
    mean_holds += found.low.mean <= 1 && found.high.mean >= 1 ? 1 : 0;
    p99_holds += found.low.p99 <= 1 && found.high.p99 >= 1 ? 1 : 0;
  }
  EXPECT_GE(mean_holds, 0.88 * kComparisons);
  EXPECT_GE(p99_holds, 0.88 * kComparisons);
}

TEST(Summarise, TheIntervalFollowsFromItsSeed) {
  const Samples samples{golden()["summaries"][2]["values"], golden()["summaries"][2]["units"]};
  const auto mean = [&](uint64_t seed) { return summarise(samples, seed).ci95->low.mean; };
  EXPECT_EQ(mean(1), mean(1));
  EXPECT_NE(mean(1), mean(2));
}

// The definition, by counting: enough samples are at most the percentile, and not without it.
TEST(Summarise, APercentileIsTheSmallestSampleThatCoversItsShare) {
  std::mt19937 random(1);
  for (int size = 1; size < 100; ++size) {
    std::vector<double> samples;
    for (int i = 0; i < size; ++i) samples.push_back(static_cast<double>(random() % 50));
    const Summary summary = summary_of(samples);
    const std::pair<double, int> percentiles[] = {
        {summary.p50, 500}, {summary.p90, 900}, {summary.p99, 990}, {summary.p999, 999}};
    for (const auto& [value, per_mille] : percentiles) {
      const auto at_most =
          std::count_if(samples.begin(), samples.end(), [v = value](double s) { return s <= v; });
      const auto below =
          std::count_if(samples.begin(), samples.end(), [v = value](double s) { return s < v; });
      EXPECT_GE(1000 * at_most, per_mille * size);
      EXPECT_LT(1000 * below, per_mille * size);
      EXPECT_NE(std::find(samples.begin(), samples.end(), value), samples.end());
    }
  }
}

// More units than are drawn one by one, more samples than a block has.
TEST(Summarise, IsExactAndSureOfManySamples) {
  constexpr int64_t kUnits = 50'000, kEach = 6;
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal(100, 10);
  Samples samples;
  for (int64_t unit = 0; unit < kUnits; ++unit) {
    for (int64_t i = 0; i < kEach; ++i) samples.add(normal(random), 3 * unit);
  }
  const Summary summary = summarise(samples, 0);
  std::vector<double> sorted = samples.values;
  std::sort(sorted.begin(), sorted.end());
  constexpr int64_t kCount = kUnits * kEach;
  EXPECT_EQ(summary.count, kCount);
  EXPECT_EQ(summary.p50, sorted[kCount / 2 - 1]);
  EXPECT_EQ(summary.p90, sorted[kCount / 10 * 9 - 1]);
  EXPECT_EQ(summary.p99, sorted[kCount / 100 * 99 - 1]);
  EXPECT_EQ(summary.p999, sorted[kCount / 1000 * 999 - 1]);
  ASSERT_TRUE(summary.ci95);
  // 1.96 standard errors to each side: of the mean, and of the median of a normal distribution.
  const double error = 10 / std::sqrt(static_cast<double>(kCount));
  const double of_mean = summary.ci95->high.mean - summary.ci95->low.mean;
  const double of_median = summary.ci95->high.p50 - summary.ci95->low.p50;
  EXPECT_NEAR(of_mean / (2 * 1.96 * error), 1, 0.15);
  EXPECT_NEAR(of_median / (2 * 1.96 * error * std::sqrt(std::numbers::pi / 2)), 1, 0.15);
  EXPECT_LT(summary.ci95->low.p50, summary.p50);
  EXPECT_GT(summary.ci95->high.p50, summary.p50);
}

}  // namespace
}  // namespace outrider
