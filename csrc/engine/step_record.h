// StepRecord: a step that has been carried out, for those who observe it.
#pragma once

#include <chrono>
#include <cstdint>

#include "spec/speculative_step.h"

namespace outrider {

struct StepRecord {
  using Clock = std::chrono::steady_clock;

  uint64_t step = 0;
  Clock::time_point begin, executed, end;  // executed: when its plan was made and sent
  StepPhases times;
  int64_t num_prompt_rows = 0;   // the target's
  int64_t num_decoding = 0;      // sequences that decoded …
  int64_t num_drafted = 0;       // … after so many drafted tokens …
  int64_t num_alternatives = 0;  // … of which so many stood beside first ones …
  int64_t num_accepted = 0;      // … and so many are part of answers …
  int64_t num_tokens = 0;        // … and got so many
  int64_t num_refed = 0;         // positions that they fed again
};

}  // namespace outrider
