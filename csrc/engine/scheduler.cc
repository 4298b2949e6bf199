#include "engine/scheduler.h"

#include <algorithm>

#include "core/error.h"

namespace outrider {

PlannedWork plan_work(const ScheduledSequence& sequence, int64_t prefill_chunk) {
  CHECK(sequence.num_cached < sequence.length && sequence.length < sequence.max_length);
  const int64_t last = sequence.length - 1;  // the last token is a decode row
  const int64_t prefill_end = std::min(last, sequence.num_cached + prefill_chunk);
  if (prefill_end < last) return {.slot = sequence.slot, .prefill_end = prefill_end};
  const int64_t most = std::min(sequence.max_length - sequence.length - 1,
                                sequence.max_draft_positions - sequence.length);
  return {.slot = sequence.slot,
          .decode = 1,
          .prefill_end = prefill_end,
          .num_draft_tokens = static_cast<int32_t>(
              std::clamp<int64_t>(sequence.lookahead, 0, std::max<int64_t>(most, 0)))};
}

}  // namespace outrider
