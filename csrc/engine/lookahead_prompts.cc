// LookaheadPlanner beside prompts: what their steps draft, and the time that prompts get for it.
#include <algorithm>
#include <limits>
#include <utility>

#include "engine/lookahead_planner.h"

namespace outrider {

namespace {

// K at most, and how much faster prompts have to get on.
constexpr int kMostBesidePrompts = 4;
constexpr double kLeastGain = 1.05;

}  // namespace

// Whoever waits for a first token gains nothing by drafts, but the time that they save. So they are
// drafted for all or for none, and as many as let prompts get on fastest. None where a sequence
// cannot be helped: it would wait.
double LookaheadPlanner::choose_beside_prompts(std::span<DecodeChoice> step, const StepRoom& room) {
  const PromptRows& prompts = room.prompts;
  candidates_.clear();
  bool all_may = !step.empty();
  for (DecodeChoice& choice : step) {
    Sequence& sequence = sequences_.at(choice.id);
    all_may = all_may && !choice.exact && choice.num_draft_tokens > 0 &&
              !drafts_by_copying(sequence.drafter) && sequence.terms.max_step_ms == 0;
    if (choice.exact) continue;
    choice.num_alternatives = 0;
    candidates_.push_back({.drafter = static_cast<int>(sequence.drafter),
                           .max_tokens = std::exchange(choice.num_draft_tokens, 0),
                           .hazard = hazard_of_sequence(sequence),
                           .trust = 1 + std::min(sequence.spare, 0.0) / kMostOwed});
  }
  // Prompts that are done with this step would only be delayed.
  if (!all_may || prompts.plain == std::min(prompts.waiting, prompts.most)) return 0;
  BesidePrompts best{.gain = kLeastGain};
  int best_k = 0;
  for (int k = 1; k <= kMostBesidePrompts; ++k) {
    const BesidePrompts found = beside_prompts(step, room, k);
    if (found.gain <= best.gain) continue;
    best = found;
    best_k = k;
  }
  if (best_k == 0) return 0;
  for (size_t i = 0; i < step.size(); ++i) {
    step[i].num_draft_tokens = std::min(candidates_[i].max_tokens, best_k);
    sequences_.at(step[i].id).waits = true;
  }
  for (int d = 0; d < kNumDrafterKinds; ++d) drafters_[d].planned_ms += best.added_ms[d];
  unstretched_ms_ = best.plain_ms;
  return best.prompt_ms;
}

// If all draft k, or as many as they may. The step may take as many times as long as without drafts
// as the sequence that is helped least gets tokens.
LookaheadPlanner::BesidePrompts LookaheadPlanner::beside_prompts(std::span<const DecodeChoice> step,
                                                                 const StepRoom& room,
                                                                 int k) const {
  const PromptRows& prompts = room.prompts;
  DecodeShape plain{.prompt_rows = prompts.plain}, all = plain;
  double tokens = std::numeric_limits<double>::infinity();  // of the sequence with the fewest
  for (size_t i = 0; i < step.size(); ++i) {
    const LookaheadSequence& candidate = candidates_[i];
    const int drafted = std::min(candidate.max_tokens, k);
    tokens = std::min(tokens, 1 + candidate.trust * expected_accepted(candidate.hazard, drafted));
    const auto position = static_cast<int64_t>(step[i].tokens.size());
    const auto kind = static_cast<DrafterKind>(candidate.drafter);
    const Drawing drawing = sequences_.at(step[i].id).terms.drawing;
    const int64_t refed = step[i].num_refed;
    plain.add(pricing_.target(), position, kind, drawing, {.num_refed = refed});
    all.add(pricing_.target(), position, kind, drawing,
            {.num_drafted = drafted, .num_refed = refed});
  }
  if (all.drafted_rows - plain.drafted_rows > room.drafted_rows) return {};
  BesidePrompts found{.plain_ms = pricing_.step_ms(plain)};
  const double rows_ms = pricing_.step_ms(all) - found.plain_ms;
  for (int d = 0; d < kNumDrafterKinds; ++d) {
    int64_t rows = 0;
    for (const int drafting : all.drafting[d]) rows += drafting;
    if (rows == 0) continue;
    found.added_ms[d] = pricing_.draft_ms(all, static_cast<DrafterKind>(d)) +
                        rows_ms * static_cast<double>(rows) / static_cast<double>(all.drafted_rows);
    if (found.added_ms[d] > drafters_[d].left_ms()) return {};
  }
  all.prompt_rows = 0;
  const double drafting_ms = pricing_.step_ms(all) + pricing_.draft_ms(all);
  const double factor = pricing_.fit(plain.sequences).plain_factor();
  found.prompt_ms = (tokens * found.plain_ms - drafting_ms) / factor;
  if (found.prompt_ms <= 0) return {};
  const StepCosts& costs = pricing_.target();
  const int64_t others = all.sequences + all.drafted_rows;
  const int64_t rows =
      costs.rows_within(found.prompt_ms, others, 0,
                        std::clamp<int64_t>(prompts.most - all.drafted_rows, 0, prompts.waiting));
  const double ms = drafting_ms + factor * costs.added_ms(others, rows, 0);
  found.gain = static_cast<double>(rows) / ms * found.plain_ms / static_cast<double>(prompts.plain);
  return found;
}

}  // namespace outrider
