#include "engine/prefill_limit.h"

#include <algorithm>

namespace outrider {

namespace {

// A step with prompt rows may take so much longer than one without, so that the streams that run
// stay smooth.
constexpr double kPrefillSlowdown = 1.5;

// Milliseconds of a step of `rows` rows, between the measured points and beyond them.
double cost_of(const Executor::RowCosts& costs, double rows) {
  const auto& steps = costs.steps;
  size_t i = 1;
  while (i + 1 < steps.size() && static_cast<double>(steps[i].rows) < rows) ++i;
  const auto& a = steps[i - 1];
  const auto& b = steps[i];
  const double slope = (b.ms - a.ms) / static_cast<double>(b.rows - a.rows);
  return std::max(a.ms, a.ms + slope * (rows - static_cast<double>(a.rows)));
}

}  // namespace

void limit_prefill(const EngineOptions& options, const Executor::RowCosts& costs,
                   SchedulerLimits& limits) {
  const auto chunk = static_cast<int32_t>(options.prefill_chunk);
  limits.prefill_rows_beside = {chunk};
  if (options.prefill_beside > 0 || costs.steps.size() < 2) {
    const auto beside = static_cast<int32_t>(options.prefill_beside);
    limits.prefill_rows_beside.push_back(beside > 0 ? std::min(beside, chunk) : chunk);
    return;
  }
  for (int64_t decode = 1; decode <= options.max_rows; ++decode) {
    const double most = kPrefillSlowdown * cost_of(costs, static_cast<double>(decode));
    int32_t rows = 1, too_many = chunk + 1;  // costs rise with rows
    while (rows + 1 < too_many) {
      const int32_t middle = (rows + too_many) / 2;
      const bool fits = cost_of(costs, static_cast<double>(decode + middle)) <= most;
      (fits ? rows : too_many) = middle;
    }
    limits.prefill_rows_beside.push_back(rows);
  }
  // In rows of a short context: what one more of them costs beside few.
  const int64_t more = costs.steps.back().rows - 1;
  const double row_ms =
      (costs.steps.back().ms - costs.steps.front().ms) / static_cast<double>(more);
  if (row_ms > 0) limits.rows_per_position = costs.ms_per_row_position / row_ms;
}

}  // namespace outrider
