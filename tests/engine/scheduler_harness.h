// What the scheduler's tests share: sequences to be scheduled, and what a plan has for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/scheduler.h"

namespace outrider {

inline constexpr int64_t kP = kPageTokens;

inline SchedulerLimits roomy() {
  return {.num_slots = 8,
          .num_pages = 1000,
          .num_draft_pages = 1000,
          .max_rows = 256,
          .prefill_chunk = 128};
}

// A prompt that nobody shares, and up to 100 tokens behind it.
inline SequenceSpec spec(int64_t id, int64_t prompt_length, int32_t lookahead = 0,
                         DrafterKind drafter = DrafterKind::model) {
  SequenceSpec spec{.id = id,
                    .request = id,
                    .order = static_cast<double>(id),
                    .max_length = prompt_length + 100,
                    .drafter = drafter,
                    .lookahead = lookahead,
                    .max_draft_positions = 100000};
  spec.prompt.resize(prompt_length);
  std::iota(spec.prompt.begin(), spec.prompt.end(), static_cast<int32_t>(100000 * id));
  return spec;
}

inline SequenceSpec up_to(int64_t max_length, SequenceSpec spec) {
  spec.max_length = max_length;
  return spec;
}

inline SequenceSpec exactly(SequenceSpec spec) {
  spec.lookahead_is_exact = true;
  return spec;
}

inline SequenceSpec with_salt(SequenceSpec spec, uint64_t salt) {
  spec.salt = salt;
  return spec;
}

// The work of a sequence in a plan; null: none.
inline const PlannedWork* work_of(const Scheduler& scheduler, const StepPlan& plan, int64_t id) {
  for (const PlannedWork& w : plan.work) {
    if (scheduler.sequence_at(w.slot) == id) return &w;
  }
  return nullptr;
}

// K of a sequence that decodes in the plan; -1: it does not.
inline int64_t drafts_of(const Scheduler& scheduler, const StepPlan& plan, int64_t id) {
  const PlannedWork* w = work_of(scheduler, plan, id);
  return w != nullptr && w->decode ? w->num_draft_tokens : -1;
}

// Commits every decoding sequence with as many of its drafts as accepted, at most. Returns the ids.
inline std::vector<int64_t> commit_all(Scheduler& scheduler, const StepPlan& plan,
                                       int accepted = 0) {
  std::vector<int64_t> ids;
  for (const PlannedWork& w : plan.work) {
    if (!w.decode) continue;
    ids.push_back(scheduler.sequence_at(w.slot));
    const std::vector<int32_t> tokens(std::min(accepted, w.num_draft_tokens) + 1, 7);
    scheduler.commit(ids.back(), tokens);
  }
  return ids;
}

inline StepPlan step(Scheduler& scheduler, int accepted = 0) {
  StepPlan plan = scheduler.plan();
  commit_all(scheduler, plan, accepted);
  return plan;
}

}  // namespace outrider
