// StepPlan: all that a rank needs to carry out one step. Flat plain data, published by rank 0 once
// a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"
#include "kernels/verify_types.h"
#include "spec/logit_editor.h"

namespace outrider {

// A sequence takes a slot; whatever the slot held before is over.
struct Admission {
  int32_t slot = 0;
  int32_t choice = 0;
  std::vector<int32_t> tokens;  // prompt, and what was emitted before a preemption
  int64_t num_prompt_tokens = 0;
  LogitRules rules;
  Processors processors;
  uint64_t seed = 0;
  DrafterKind drafter = DrafterKind::none;
  int64_t num_cached = 0;           // positions whose target KV stands in the granted pages
  int64_t num_draft_cached = 0;     // the same for the drafter's
  int32_t top_logprobs = -1;        // of each emitted token: the best so many; -1: none wanted
  int32_t top_prompt_logprobs = 0;  // of each prompt token whose logits are wanted
};

// Pages [first, first + pages.size()) of a slot's page table, from this step on; what stood there
// and behind is over. What the slot had cached in those pages is over too, but for what an
// admission of this step says: a drafter's cache that is taken away shows as `first` 0, with or
// without pages.
struct PageGrant {
  int32_t slot = 0;
  int32_t first = 0;
  std::vector<int32_t> pages;
};

// What a step does for a slot: prompt tokens up to prefill_end, then, where `decode` is set, the
// last token and the drafts.
struct PlannedWork {
  int32_t slot = 0;
  int32_t decode = 0;
  int64_t prefill_end = 0;        // target's positions [num_cached, prefill_end) are fed
  int64_t draft_prefill_end = 0;  // the same for the drafter's, before anything is drafted
  int32_t num_draft_tokens = 0;
  int32_t num_alternatives = 0;  // to the first of them, of the sequence's logit drafter
  int32_t prompt_logits = 0;     // 1: logits of the prompt's rows are wanted
  std::vector<int32_t>
      proposed;  // copied, num_draft_tokens of them; empty: the sequence's logit drafter draws
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<Admission> admitted;
  std::vector<PageGrant> target_pages, draft_pages;  // behind the admissions
  std::vector<PlannedWork> work;

  std::vector<uint8_t> serialise() const;
  // Throws Error where the bytes are not a plan of this version.
  static StepPlan parse(std::span<const uint8_t> bytes);
};

}  // namespace outrider
