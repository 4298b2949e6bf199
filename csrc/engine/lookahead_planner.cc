#include "engine/lookahead_planner.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace outrider {

namespace {

// Observations of a position that count in full: of a server's drafter, and of one sequence.
constexpr double kServerWindow = 1024, kSequenceWindow = 32;
// A base step is taken after so many others, so that what one costs stays known, and first of all.
constexpr int64_t kBaseEvery = 128;
constexpr int64_t kBaseFirst = 3;
constexpr int kBasePatience = 4;  // prompts may stand in the way
// A drafter that is not worth its time is tried again after so many steps.
constexpr int64_t kTryEvery = 64;
// So many steps, where an objective stands in the way: prices may be too high.
constexpr int64_t kTryPastObjective = 1024;
// By its tokens: what a budget is counted in, and what it costs at least, of a plain step.
constexpr int kBudgetTokens = 4;
constexpr double kLeastCost = 0.02;

}  // namespace

LookaheadPlanner::LookaheadPlanner(LookaheadPolicy policy, LookaheadTables tables)
    : policy_(std::move(policy)), pricing_(std::move(tables)) {
  CHECK(policy_.kind != LookaheadPolicy::Kind::adaptive || pricing_.known());
  for (Drafter& drafter : drafters_) {
    drafter.classes.assign(kClasses, {.counts = AcceptanceCounts(kServerWindow)});
  }
  costs_.drafters.resize(kNumDrafterKinds);
}

void LookaheadPlanner::add(int64_t id, const DraftingTerms& terms) {
  sequences_.emplace(id,
                     Sequence{.terms = terms,
                              .counts = std::vector(kMatches, AcceptanceCounts(kSequenceWindow)),
                              .spare = kFirstSpare,
                              .drafter = terms.drafter});
}

void LookaheadPlanner::forget_removed() {
  for (const int64_t id : removed_) {
    for (Drafter& drafter : drafters_) {
      if (drafter.catching_up == id) drafter.catching_up = -1;
    }
    sequences_.erase(id);
  }
  removed_.clear();
}

double LookaheadPlanner::choose(std::span<DecodeChoice> step, const StepRoom& room) {
  forget_removed();
  for (const DecodeChoice& choice : step) {
    Sequence& sequence = sequences_.at(choice.id);
    sequence.drafter = sequence.terms.drafter;
    sequence.matched = 0;
    sequence.tries_copy = false;
    sequence.waits = sequence.judged = false;
    sequence.passed_over.reset();
    sequence.proposed.clear();
  }
  unstretched_ms_ = 0;
  for (Drafter& drafter : drafters_) drafter.tried = -1;
  if (policy_.kind == LookaheadPolicy::Kind::adaptive) {
    const bool beside_prompts = room.prompts.waiting > 0;
    base_alone_ = !beside_prompts && wants_base_step(step);
    const bool base_alone = beside_prompts || base_alone_;
    if (!beside_prompts) choose_drafters(step, base_alone);
    find_base(step);
    count_sequences(step);
    set_budgets(base_);
    if (beside_prompts) return choose_beside_prompts(step, room);
    choose_adaptively(step, base_alone, room.drafted_rows);
    return 0;
  }
  if (policy_.kind == LookaheadPolicy::Kind::fixed) return 0;
  const int32_t k = policy_.from_table(static_cast<int>(step.size()));
  for (DecodeChoice& choice : step) {
    if (!choice.exact) choice.num_draft_tokens = std::min(choice.num_draft_tokens, k);
  }
  return 0;
}

// What the step comes to where those whose K is to be chosen draft nothing.
void LookaheadPlanner::find_base(std::span<const DecodeChoice> step) {
  base_ = {};
  base_tokens_ = 0;
  for (const DecodeChoice& choice : step) {
    Sequence& sequence = sequences_.at(choice.id);
    const auto position = static_cast<int64_t>(choice.tokens.size());
    int k = choice.exact ? choice.num_draft_tokens : 0;
    if (k > 0 && drafts_by_copying(sequence.drafter)) {
      find_proposal(sequence, choice);
      k = static_cast<int>(sequence.proposed.size());
    }
    const int alternatives = choice.exact && k > 0 ? choice.num_alternatives : 0;
    base_.add(pricing_.target(), position, sequence.drafter, sequence.terms.drawing,
              {.num_drafted = k, .num_alternatives = alternatives, .num_refed = choice.num_refed});
    base_tokens_ += 1;
    if (k == 0) continue;
    base_tokens_ += expected_accepted(hazard_of_sequence(sequence), k);
    const auto accepted = alternatives_of(sequence);
    base_tokens_ += std::accumulate(accepted.begin(), accepted.begin() + alternatives, 0.0);
  }
}

void LookaheadPlanner::choose_adaptively(std::span<DecodeChoice> step, bool base_alone,
                                         int64_t drafted_rows) {
  if (step.empty()) return;
  const DecodeShape& base = base_;
  costs_.tokens = base_tokens_;
  costs_.max_ms = std::numeric_limits<double>::infinity();
  // An objective that is missed without drafts already hides none that can be met.
  const double base_ms = pricing_.step_ms(base) + pricing_.draft_ms(base);
  for (const DecodeChoice& choice : step) {
    const double objective_ms = sequences_.at(choice.id).terms.max_step_ms;
    if (objective_ms >= base_ms) costs_.max_ms = std::min(costs_.max_ms, objective_ms);
  }

  candidates_.clear();
  int64_t most_drafted = 0;
  for (DecodeChoice& choice : step) {
    Sequence& sequence = sequences_.at(choice.id);
    LookaheadSequence& candidate = candidates_.emplace_back();
    candidate.drafter = static_cast<int>(sequence.drafter);
    if (choice.exact) continue;
    sequence.waits = step.size() > 1;
    if (sequence.waits) {
      candidate.spare = std::max(sequence.spare, 0.0);
      candidate.trust = 1 + std::min(sequence.spare, 0.0) / kMostOwed;
    }
    int most = std::exchange(choice.num_draft_tokens, 0);
    const int alternatives = std::exchange(choice.num_alternatives, 0);
    // A drafter whose budget is spent is not even asked.
    if (most == 0 || base_alone || of(sequence.drafter).budget.left_ms() == 0) continue;
    if (drafts_by_copying(sequence.drafter)) {
      choice.num_draft_tokens = most;
      if (sequence.proposed.empty() && !find_proposal(sequence, choice)) most = 0;
      most = std::min(most, static_cast<int>(sequence.proposed.size()));
      choice.num_draft_tokens = 0;
      if (most == 0) continue;
    }
    candidate.max_tokens = most;
    if (!drafts_by_copying(sequence.drafter)) {
      const double context_ms =
          pricing_.segment_context_ms(base.sequences, static_cast<int64_t>(choice.tokens.size()));
      candidate.max_alternatives = alternatives;
      candidate.alternative_ms = pricing_.again_ms(sequence.drafter) + context_ms;
      candidate.first_alternative_ms = context_ms;  // of the drafts' own segment
    }
    candidate.row_ms =
        pricing_.row_context_ms(base.sequences, static_cast<int64_t>(choice.tokens.size())) +
        pricing_.drawing_ms(sequence.drafter, sequence.terms.drawing);
    candidate.hazard = hazard_of_sequence(sequence);
    candidate.alternatives = alternatives_of(sequence);
    sequence.judged = true;
    most_drafted += most + candidate.max_alternatives;
  }
  most_drafted = std::min(most_drafted, drafted_rows);
  if (most_drafted == 0) {  // which, for want of rows, says nothing of the drafts
    for (const DecodeChoice& choice : step) sequences_.at(choice.id).judged = false;
    return;
  }
  fill_costs(base, most_drafted);
  chosen_.assign(step.size(), 0);
  const LookaheadChoice& choice = search_.choose(candidates_, costs_, chosen_);
  int64_t num_drafted = 0;
  for (size_t i = 0; i < step.size(); ++i) {
    if (step[i].exact) continue;
    step[i].num_draft_tokens = chosen_[i];
    step[i].num_alternatives = choice.num_alternatives[i];
    num_drafted += chosen_[i] + choice.num_alternatives[i];
  }
  for (int d = 0; d < kNumDrafterKinds; ++d) drafters_[d].planned_ms += choice.added_ms[d];
  try_others(step, num_drafted, choice);
  if (!choice.held_back) return;
  // That nothing is drafted says nothing of the drafts.
  for (const DecodeChoice& held : step) sequences_.at(held.id).judged = false;
}

// What a step takes without what is chosen is known from such steps alone.
bool LookaheadPlanner::wants_base_step(std::span<const DecodeChoice> step) {
  const bool might_draft = std::ranges::any_of(step, [](const DecodeChoice& choice) {
    return !choice.exact && choice.num_draft_tokens > 0;
  });
  if (!might_draft) return false;
  BaseSteps& base = base_steps_[StepPricing::size_of(static_cast<int64_t>(step.size()))];
  if (base.since < kBaseEvery && base.count >= kBaseFirst) return false;
  if (++base.asked > kBaseEvery) base.asked = 0;
  return base.asked <= kBasePatience;
}

// Who may copy or draw is one of both drafters, whatever it does now: or a budget would be that of
// how many drafted last.
void LookaheadPlanner::count_sequences(std::span<const DecodeChoice> step) {
  for (Drafter& drafter : drafters_) {
    drafter.num_sequences = 0;
    drafter.drawing_ms = 0;
  }
  const auto count = [&](DrafterKind kind, Drawing drawing) {
    ++of(kind).num_sequences;
    of(kind).drawing_ms += pricing_.drawing_ms(kind, drawing);
  };
  for (const DecodeChoice& choice : step) {
    if (choice.exact) continue;
    const DraftingTerms& terms = sequences_.at(choice.id).terms;
    count(terms.drafter, terms.drawing);
    if (terms.may_copy) count(DrafterKind::prompt_lookup, terms.drawing);
  }
}

void LookaheadPlanner::set_budgets(const DecodeShape& base) {
  const double plain_ms = pricing_.step_ms(base);
  for (int d = 0; d < kNumDrafterKinds; ++d) {
    const int n = drafters_[d].num_sequences;
    if (n == 0) continue;
    DecodeShape drafting = base;
    drafting.drafted_rows += kBudgetTokens * n;
    const double added = pricing_.step_ms(drafting) - plain_ms +
                         kBudgetTokens * (pricing_.round_ms(static_cast<DrafterKind>(d), n) +
                                          drafters_[d].drawing_ms);
    drafters_[d].budget.set_cost(std::max(added, kLeastCost * plain_ms));
  }
}

bool LookaheadPlanner::find_proposal(Sequence& sequence, const DecodeChoice& choice) {
  sequence.index.extend(choice.tokens);
  CopiedDraft draft =
      copied_draft(sequence.drafter, choice.tokens, sequence.index, choice.num_draft_tokens);
  sequence.proposed = std::move(draft.tokens);
  sequence.proposed.resize(sequence.terms.rules.count_allowed(
      sequence.proposed,
      static_cast<int64_t>(choice.tokens.size()) - sequence.terms.num_prompt_tokens));
  const bool found = !sequence.proposed.empty();
  sequence.matched = found ? std::clamp(draft.matched, 1, kMatches - 1) : 0;
  return found;
}

// Copies where that is at least as likely to be right as what would be drawn. Texts change: one
// copy that this refuses is tried every so often, in a step that may draft.
void LookaheadPlanner::choose_drafters(std::span<const DecodeChoice> step, bool base_alone) {
  if (step.empty()) return;
  ++steps_since_copy_tried_;
  // Who is tried first changes with each try.
  const size_t first = static_cast<size_t>(num_copies_tried_) % step.size();
  for (size_t i = 0; i < step.size(); ++i) {
    const DecodeChoice& choice = step[(first + i) % step.size()];
    Sequence& sequence = sequences_.at(choice.id);
    if (sequence.terms.may_copy) choose_drafter(sequence, choice, base_alone);
  }
}

void LookaheadPlanner::choose_drafter(Sequence& sequence, const DecodeChoice& choice,
                                      bool base_alone) {
  if (choice.num_draft_tokens == 0 || of(DrafterKind::prompt_lookup).budget.is_spent()) return;
  const double drawn = hazard_of_sequence(sequence)[0];
  const DraftKind drawing{sequence.drafter, sequence.draft_class()};
  sequence.drafter = DrafterKind::prompt_lookup;
  const bool finds = find_proposal(sequence, choice);
  if (finds && hazard_of_sequence(sequence)[0] >= drawn) {
    sequence.passed_over = drawing;
    sequence.drawn.age();
    return;
  }
  if (finds && !base_alone && steps_since_copy_tried_ >= kTryEvery) {
    steps_since_copy_tried_ = 0;
    ++num_copies_tried_;
    sequence.tries_copy = true;
    return;
  }
  if (finds) {
    sequence.passed_over = {sequence.drafter, sequence.draft_class()};
    sequence.offset().age();
  }
  sequence.drafter = sequence.terms.drafter;
  sequence.matched = 0;
  sequence.proposed.clear();
}

Hazard LookaheadPlanner::hazard_of_sequence(const Sequence& sequence) const {
  return hazard_of(sequence.counts[sequence.matched], sequence.offset(),
                   of(sequence.drafter).classes[sequence.draft_class()].hazard);
}

std::array<double, kMaxAlternatives> LookaheadPlanner::alternatives_of(
    const Sequence& sequence) const {
  return accepted_alternatives(hazard_of_sequence(sequence),
                               of(sequence.drafter).classes[sequence.draft_class()].wrong_hazard);
}

void LookaheadPlanner::fill_costs(const DecodeShape& base, int64_t most_drafted) {
  costs_.step_ms.clear();
  costs_.alternatives_ms.clear();
  for (int n = 0; n <= kMaxAlternatives; ++n) {
    costs_.alternatives_ms.push_back(pricing_.alternatives_ms(base.sequences, n));
  }
  costs_.most_alternatives = static_cast<int>(base.most_alternatives);
  DecodeShape shape = base;
  const double draft_ms = pricing_.draft_ms(base);
  double ms = 0;
  for (int64_t r = 0; r <= most_drafted; ++r, ++shape.drafted_rows) {
    ms = std::max(ms, pricing_.step_ms(shape) + draft_ms);
    costs_.step_ms.push_back(ms);
  }
  for (int d = 0; d < kNumDrafterKinds; ++d) {
    LookaheadCosts::Drafter& costs = costs_.drafters[d];
    const auto kind = static_cast<DrafterKind>(d);
    costs.round_ms.clear();
    costs.drafting = base.drafting[d];
    costs.max_added_ms = drafters_[d].left_ms();
    if (pricing_.drafts_free(kind)) continue;
    const int most = drafters_[d].num_sequences + costs.drafting[0];
    for (int n = 0; n <= most; ++n) costs.round_ms.push_back(pricing_.round_ms(kind, n));
  }
}

// One token each of a copy that is to be tried, and of a sequence of a drafter that has been idle:
// texts change. Of the likeliest one, if none owes.
void LookaheadPlanner::try_others(std::span<DecodeChoice> step, int64_t num_drafted,
                                  const LookaheadChoice& choice) {
  double ms = choice.ms;
  // idle_steps: if they are due, whatever sequences have to spare, or what is put aside under load
  // would stay so.
  const auto try_one = [&](size_t i, int64_t idle_steps) {
    if (num_drafted + 1 >= static_cast<int64_t>(costs_.step_ms.size())) return false;
    const auto kind = static_cast<DrafterKind>(candidates_[i].drafter);
    const double added = costs_.step_ms[num_drafted + 1] - costs_.step_ms[num_drafted] +
                         candidates_[i].row_ms + pricing_.round_ms(kind, 1);
    if (added > of(kind).left_ms()) return false;
    const bool meets_objective = costs_.step_ms[0] > costs_.max_ms || ms + added <= costs_.max_ms;
    if (!meets_objective && idle_steps < kTryPastObjective) return false;
    if (idle_steps < kTryEvery && ms + added > choice.limit_ms) return false;
    step[i].num_draft_tokens = chosen_[i] = 1;
    ++num_drafted;
    ms += added;
    of(kind).planned_ms += added;
    return true;
  };
  for (size_t i = 0; i < step.size(); ++i) {
    if (candidates_[i].max_tokens == 0 || chosen_[i] > 0) continue;
    if (sequences_.at(step[i].id).tries_copy) try_one(i, kTryEvery);
  }
  for (int d = 0; d < kNumDrafterKinds; ++d) {
    Drafter& drafter = drafters_[d];
    if (!drafter.try_again && drafter.idle_steps < kTryEvery) continue;
    size_t best = step.size();
    bool drafts = false;
    // Who owes holds all others back, until its own drafts are found to be good.
    const auto comes_first = [&](const LookaheadSequence& a, const LookaheadSequence& b) {
      return a.trust != b.trust ? a.trust < b.trust : a.hazard[0] > b.hazard[0];
    };
    for (size_t i = 0; i < step.size(); ++i) {
      if (candidates_[i].drafter != d || candidates_[i].max_tokens == 0) continue;
      drafts |= chosen_[i] > 0;
      if (best == step.size() || comes_first(candidates_[i], candidates_[best])) best = i;
    }
    if (drafts || best == step.size()) continue;
    if (!try_one(best, drafter.idle_steps)) continue;
    drafter.tried = step[best].id;
    drafter.try_again = false;
  }
}

bool LookaheadPlanner::may_catch_up(const CatchUp& catch_up) {
  if (policy_.kind != LookaheadPolicy::Kind::adaptive) return true;
  Sequence& sequence = sequences_.at(catch_up.id);
  const DrafterKind kind = sequence.terms.drafter;
  Drafter& drafter = of(kind);
  DecodeShape base = base_;
  double base_tokens = base_tokens_;
  if (base.sequences == 0) {
    base.add(pricing_.target(), 0, kind, sequence.terms.drawing, {});
    base_tokens = 1;
  }
  if (!drafter.budget.has_started()) {
    drafter.num_sequences = std::max(drafter.num_sequences, 1);
    set_budgets(base);
  }
  const double cost = pricing_.feed_ms(catch_up.rows);
  if (cost > drafter.left_ms()) return false;

  // What a step of this sequence's gains if it drafts, the others as they are.
  const int most =
      static_cast<int>(std::clamp<int64_t>(catch_up.tokens_left - 1, 0, catch_up.most_drafted));
  candidates_.assign(1, {.drafter = static_cast<int>(kind),
                         .max_tokens = most,
                         .row_ms = pricing_.drawing_ms(kind, sequence.terms.drawing),
                         .hazard = hazard_of_sequence(sequence)});
  chosen_.assign(1, 0);
  costs_.tokens = base_tokens;
  costs_.max_ms = sequence.terms.max_step_ms > 0 ? sequence.terms.max_step_ms
                                                 : std::numeric_limits<double>::infinity();
  drafter.num_sequences = std::max(drafter.num_sequences, 1);
  fill_costs(base, most);
  const LookaheadChoice& choice = search_.choose(candidates_, costs_, chosen_);
  const double plain_ms = costs_.step_ms[0] / costs_.tokens;  // of a token
  const double gained = choice.tokens * plain_ms - choice.ms;
  const double steps =
      static_cast<double>(catch_up.tokens_left) / (1 + choice.tokens - costs_.tokens);
  if (gained * steps <= cost) {
    sequence.judged = true;
    const bool meets_objective =
        most > 0 &&
        (costs_.step_ms[0] > costs_.max_ms ||
         costs_.step_ms[1] + candidates_[0].row_ms + pricing_.round_ms(kind, 1) <= costs_.max_ms);
    const bool due = drafter.idle_steps >= (meets_objective ? kTryEvery : kTryPastObjective);
    if (!due && !(meets_objective && drafter.try_again)) return false;
    if (drafter.catching_up < 0) drafter.catching_up = catch_up.id;
    if (drafter.catching_up != catch_up.id) return false;
  }
  drafter.planned_ms += cost;
  return true;
}

std::vector<int32_t> LookaheadPlanner::propose(int64_t id, std::span<const int32_t> tokens, int k) {
  Sequence& sequence = sequences_.at(id);
  if (sequence.proposed.empty()) {
    find_proposal(sequence, {.id = id, .tokens = tokens, .num_draft_tokens = k});
  }
  if (static_cast<int>(sequence.proposed.size()) > k) sequence.proposed.resize(k);
  return sequence.proposed;
}

}  // namespace outrider
