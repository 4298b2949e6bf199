// Whether counts are those of a distribution.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace outrider {

// The chi-square quantile at 1e-6 for some degrees of freedom (Wilson and Hilferty 1931).
inline double chi_square_quantile(int degrees) {
  const double a = 2.0 / (9.0 * degrees);
  return degrees * std::pow(1.0 - a + 4.753424 * std::sqrt(a), 3.0);
}

struct GTest {
  double g = 0;
  double limit = 0;  // at 1e-6
  size_t cells = 0;

  bool fits() const { return g < limit; }
};

// Of counts against probabilities. Neighbouring cells are merged until ten are expected in each, so
// that pairs or triples in order are merged within what they begin with. Infinite where something
// was counted that cannot be.
inline GTest g_test(const std::vector<double>& expected, const std::vector<int64_t>& counts) {
  struct Cell {
    double mean = 0, count = 0;
  };
  double total = 0;
  for (const int64_t count : counts) total += static_cast<double>(count);
  GTest test;
  std::vector<Cell> cells(1);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (expected[i] == 0) {
      if (counts[i] != 0) test.g = INFINITY;
      continue;
    }
    if (cells.back().mean >= 10) cells.emplace_back();
    cells.back().mean += expected[i] * total;
    cells.back().count += static_cast<double>(counts[i]);
  }
  if (cells.back().mean < 10 && cells.size() > 1) {
    const Cell rest = cells.back();
    cells.pop_back();
    cells.back().mean += rest.mean;
    cells.back().count += rest.count;
  }
  for (const Cell& cell : cells) {
    if (cell.count > 0) test.g += 2 * cell.count * std::log(cell.count / cell.mean);
  }
  test.cells = cells.size();
  test.limit = chi_square_quantile(static_cast<int>(cells.size()) - 1);
  return test;
}

inline void expect_distribution(const std::vector<double>& expected,
                                const std::vector<int64_t>& counts, const std::string& what) {
  ASSERT_EQ(expected.size(), counts.size()) << what;
  const GTest test = g_test(expected, counts);
  ASSERT_GE(test.cells, 2u) << what << ": too few counts";
  EXPECT_LT(test.g, test.limit) << what << ", " << test.cells << " cells";
}

}  // namespace outrider
