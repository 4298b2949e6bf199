#include "engine/step_costs.h"

#include <algorithm>

namespace outrider {

void StepCosts::keep_rising() {
  for (size_t i = steps.size() - 1; i-- > 0;) steps[i].ms = std::min(steps[i].ms, steps[i + 1].ms);
}

void StepCosts::set_context(const Point& one, const Point& several, int64_t position) {
  const auto added = [&](const Point& point) {
    return std::max(0.0, point.ms - rows_ms(point.rows)) / static_cast<double>(position);
  };
  const double of_one = added(one), of_several = std::max(of_one, added(several));
  ms_per_row_position = (of_several - of_one) / static_cast<double>(several.rows - one.rows);
  ms_per_position = std::max(0.0, of_one - ms_per_row_position);
}

void StepCosts::set_alternatives(const Point& few_more, const Point& more) {
  ms_of_first_alternative = std::max(0.0, few_more.ms);
  ms_per_alternative = std::max(0.0, more.ms - ms_of_first_alternative) /
                       static_cast<double>(std::max<int64_t>(more.rows - few_more.rows, 1));
}

void StepCosts::set_segment_context(const Point& near, const Point& far, int64_t position) {
  const double added = far.ms - near.ms - context_ms(far.rows, position);
  ms_per_segment_position = std::max(0.0, added) / static_cast<double>((far.rows - 1) * position);
}

double StepCosts::rows_ms(int64_t rows) const {
  size_t i = 1;
  while (i + 1 < steps.size() && steps[i].rows < rows) ++i;
  const Point& a = steps[i - 1];
  const Point& b = steps[i];
  const double slope = (b.ms - a.ms) / static_cast<double>(b.rows - a.rows);
  return std::max(0.0, a.ms + slope * static_cast<double>(rows - a.rows));
}

double StepCosts::context_ms(int64_t rows, int64_t position) const {
  if (rows == 0) return 0;
  return static_cast<double>(position) *
         (ms_per_position + ms_per_row_position * static_cast<double>(rows));
}

double StepCosts::added_ms(int64_t others, int64_t rows, int64_t position) const {
  return rows_ms(others + rows) - rows_ms(others) + context_ms(rows, position);
}

int64_t StepCosts::rows_within(double ms, int64_t others, int64_t position, int64_t most) const {
  int64_t fits = 0, too_many = most + 1;  // costs rise with rows
  while (fits + 1 < too_many) {
    const int64_t middle = (fits + too_many) / 2;
    (added_ms(others, middle, position) <= ms ? fits : too_many) = middle;
  }
  return fits;
}

}  // namespace outrider
