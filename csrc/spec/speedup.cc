#include "spec/speedup.h"

#include <algorithm>

#include "spec/theory.h"

namespace outrider {

void SpeedupRecord::add(int num_drafted, int num_emitted, const TimedStep& step,
                        bool by_alternative) {
  if (step.plain_ms <= 0) return;
  ++steps[num_drafted];
  tokens += num_emitted;
  alternatives += by_alternative && num_emitted > 1;
  sum.plain_ms += step.plain_ms;
  sum.expected_ms += step.expected_ms;
  sum.ms += step.ms;
}

std::optional<double> SpeedupRecord::predicted(double alpha) const {
  alpha = std::clamp(alpha, 0.0, 1.0);  // a measured one may be a rounding beyond
  auto expected = static_cast<double>(alternatives);
  double count = 0;
  for (int k = 0; k <= kMaxDraftTokens; ++k) {
    expected += static_cast<double>(steps[k]) * expected_tokens(alpha, k);
    count += static_cast<double>(steps[k]);
  }
  if (count == 0) return std::nullopt;
  return expected / count * sum.plain_ms / sum.expected_ms;
}

std::optional<double> SpeedupRecord::measured() const {
  double count = 0;
  for (const int64_t n : steps) count += static_cast<double>(n);
  if (count == 0) return std::nullopt;
  return static_cast<double>(tokens) / count * sum.plain_ms / sum.ms;
}

}  // namespace outrider
