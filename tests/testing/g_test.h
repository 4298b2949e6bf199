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

// G-test at 1e-6 of counts against probabilities. Neighbouring cells are merged until ten are
// expected in each, so that pairs or triples in order are merged within what they begin with.
inline void expect_distribution(const std::vector<double>& expected,
                                const std::vector<int64_t>& counts, const std::string& what) {
  ASSERT_EQ(expected.size(), counts.size()) << what;
  struct Cell {
    double mean = 0, count = 0;
  };
  double total = 0;
  for (const int64_t count : counts) total += static_cast<double>(count);
  std::vector<Cell> cells(1);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(counts[i], 0) << what << ": cell " << i << " cannot be";
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
  ASSERT_GE(cells.size(), 2u) << what << ": too few counts";
  double g = 0;
  for (const Cell& cell : cells) {
    if (cell.count > 0) g += 2 * cell.count * std::log(cell.count / cell.mean);
  }
  EXPECT_LT(g, chi_square_quantile(static_cast<int>(cells.size()) - 1))
      << what << ", " << cells.size() << " cells";
}

}  // namespace outrider
