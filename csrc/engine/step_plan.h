// StepPlan: all that a rank needs to carry out one step. Flat plain data, published by rank 0 once
// a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"
#include "kernels/verify_types.h"

namespace outrider {

// A request takes a slot.
struct Admission {
  int32_t slot = 0;
  std::vector<int32_t> prompt;
  Processors processors;
  uint64_t seed = 0;
  DrafterKind drafter = DrafterKind::none;
};

// What a step does for a slot: prompt tokens up to prefill_end, then, where `decode` is set, the
// last token and the drafts.
struct PlannedWork {
  int32_t slot = 0;
  int32_t decode = 0;
  int64_t prefill_end = 0;
  int32_t num_draft_tokens = 0;
  std::vector<int32_t>
      proposed;  // by a copy drafter, num_draft_tokens of them; empty for logit drafters
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<int32_t> released;  // slots given back, before the admissions
  std::vector<Admission> admitted;
  std::vector<PlannedWork> work;

  std::vector<uint8_t> serialise() const;
  // Throws Error where the bytes are not a plan of this version.
  static StepPlan parse(std::span<const uint8_t> bytes);
};

}  // namespace outrider
