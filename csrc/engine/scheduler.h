// Scheduler: a pure function from where a sequence stands to what the next step does for it.
#pragma once

#include <cstdint>

#include "engine/step_plan.h"

namespace outrider {

// One running sequence as the scheduler sees it; lengths in tokens.
struct ScheduledSequence {
  int32_t slot = 0;
  int64_t length = 0;               // prompt and emitted
  int64_t num_cached = 0;           // positions in the target's cache, < length
  int64_t max_length = 0;           // prompt and max_tokens: length stays ≤ this
  int64_t max_draft_positions = 0;  // the drafter's longest context
  int lookahead = 0;                // K as the request or the server's policy has it
};

// Prompt tokens in chunks of at most prefill_chunk; the last chunk and the first decode rows share
// a step. K is cut to what max_tokens and the drafter's context can use.
PlannedWork plan_work(const ScheduledSequence& sequence, int64_t prefill_chunk);

}  // namespace outrider
