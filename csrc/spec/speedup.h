// SpeedupRecord: how much faster speculation made steps, predicted beside measured.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "kernels/verify_types.h"

namespace outrider {

// One sequence's part in a step that decoded and did nothing else.
struct TimedStep {
  double plain_ms = 0;     // of a step like it without drafts; 0: it was not timed
  double expected_ms = 0;  // of the step itself, by what its parts are known to cost
  double ms = 0;           // measured
};

// Sums over steps and sequences.
struct SpeedupRecord {
  std::array<int64_t, kMaxDraftTokens + 1> steps{};  // [K]: that drafted K tokens
  int64_t tokens = 0;                                // emitted
  int64_t alternatives = 0;  // … of them, accepted in place of a first drafted one
  TimedStep sum;

  // A step that was not timed is left out.
  void add(int num_drafted, int num_emitted, const TimedStep& step, bool by_alternative = false);

  // Tokens of a step by the theory for this alpha, and the alternatives that were accepted beside,
  // over what steps should cost; and as it was. Unset where nothing was timed.
  std::optional<double> predicted(double alpha) const;
  std::optional<double> measured() const;
};

}  // namespace outrider
