// LookaheadPlanner once a step was carried out: what it says of costs, acceptance and budgets.
#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "engine/lookahead_planner.h"

namespace outrider {

namespace {

// A step that took more than so many times what drafting adds to it was held up by something else.
constexpr double kMostOverrun = 4;

}  // namespace

LookaheadPlanner::Account LookaheadPlanner::account_of(std::span<const LookaheadOutcome> outcomes,
                                                       int64_t prompt_rows) const {
  Account account;
  for (DecodeShape* shape : {&account.all, &account.base, &account.plain}) {
    shape->prompt_rows = prompt_rows;
  }
  const StepCosts& target = pricing_.target();
  int64_t num_alternatives = 0;
  for (const LookaheadOutcome& outcome : outcomes) {
    const Sequence& sequence = sequences_.at(outcome.id);
    const auto d = static_cast<int>(sequence.drafter);
    const auto add_to = [&](DecodeShape& shape, const DraftedRows& rows) {
      shape.add(target, outcome.position, sequence.drafter, sequence.terms.drawing, rows);
    };
    const DraftedRows rows{.num_drafted = outcome.drafts.num_drafted,
                           .num_alternatives = outcome.drafts.num_alternatives,
                           .num_refed = outcome.num_refed,
                           .num_missed = outcome.num_missed};
    add_to(account.all, rows);
    add_to(account.plain, {});
    add_to(account.base, sequence.terms.exact ? rows : DraftedRows{});
    const int accepted = outcome.num_emitted - 1;
    if (sequence.terms.exact) {
      account.accepted_exact += accepted;
      continue;
    }
    ++account.sequences[d];
    account.may_copy[d] += sequence.terms.may_copy && sequence.drafter == sequence.terms.drafter;
    account.rows[d] += rows.num_drafted + rows.num_alternatives;
    // By an alternative of whoever draws for it.
    account.rows[static_cast<int>(sequence.terms.drafter)] += static_cast<int>(rows.num_refed);
    account.alternatives[d] += rows.num_alternatives;
    account.drafted[d] = account.drafted[d] || rows.num_drafted > 0;
    num_alternatives += rows.num_alternatives;
    account.accepted[d] += accepted;
    account.adaptive_rows += static_cast<int>(rows.target_rows());
  }
  if (account.adaptive_rows == 0) return account;
  const auto alternatives_ms = [&](const DecodeShape& shape) {
    return pricing_.alternatives_ms(shape.sequences, shape.most_alternatives);
  };
  const double beside_ms = alternatives_ms(account.all) - alternatives_ms(account.base);
  std::array<double, kNumDrafterKinds> context_ms{};
  for (int d = 0; d < kNumDrafterKinds; ++d) {
    const auto kind = static_cast<DrafterKind>(d);
    context_ms[d] = pricing_.segment_context_ms(account.all, kind) -
                    pricing_.segment_context_ms(account.base, kind);
  }
  const double rows_ms =
      std::max(0.0, pricing_.step_ms(account.all) - pricing_.step_ms(account.base) - beside_ms -
                        std::accumulate(context_ms.begin(), context_ms.end(), 0.0));
  for (int d = 0; d < kNumDrafterKinds; ++d) {
    const auto kind = static_cast<DrafterKind>(d);
    const double share = static_cast<double>(account.rows[d]) / account.adaptive_rows;
    account.added_ms[d] = share * rows_ms + pricing_.draft_ms(account.all, kind) -
                          pricing_.draft_ms(account.base, kind);
    if (account.alternatives[d] > 0) {
      account.added_ms[d] += context_ms[d] + beside_ms * account.alternatives[d] / num_alternatives;
    }
  }
  return account;
}

TimedStep LookaheadPlanner::observe(std::span<const LookaheadOutcome> outcomes,
                                    const PrefillRows& prefill, const StepDurations& durations) {
  TimedStep timed;
  owed_to_prompts_ms_ = 0;
  if (pricing_.known()) {
    const Account account = account_of(outcomes, prefill.target);
    if (prefill.target == 0 && !outcomes.empty()) {
      double added_ms = 0;
      for (const double ms : account.added_ms) added_ms += ms;
      owed_to_prompts_ms_ = added_ms / slowness(account.all.sequences);
    }
    if (policy_.kind == LookaheadPolicy::Kind::adaptive) {
      settle(account, prefill, durations);
      settle_waiting(outcomes, account);
    }
    if (!outcomes.empty() && prefill.target == 0 && prefill.draft == 0 && !durations.recorded) {
      // What was expected before the step told.
      timed = {.plain_ms = pricing_.step_ms(account.plain),
               .expected_ms = pricing_.step_ms(account.all) + pricing_.draft_ms(account.all),
               .ms = durations.ms};
      pricing_.observe(account.all, durations.ms, durations.draft_ms);
      BaseSteps& base = base_steps_[StepPricing::size_of(account.all.sequences)];
      ++base.since;
      if (account.all.drafted_rows == 0 || (base_alone_ && account.adaptive_rows == 0)) {
        base = {.count = base.count + 1};
      }
    }
  }
  learn(outcomes);
  for (Drafter& drafter : drafters_) drafter.planned_ms = 0;
  for (const LookaheadOutcome& outcome : outcomes) {
    Sequence& sequence = sequences_.at(outcome.id);
    of(sequence.drafter)
        .speedup.add(outcome.drafts.num_drafted, outcome.num_emitted, timed,
                     outcome.drafts.alternative >= 0);
    sequence.proposed.clear();
  }
  forget_removed();
  return timed;
}

// Budgets gain by what plain steps take, and pay what drafting costs beyond its tokens' worth: by
// prices, which follow what steps take. One step's time says little of its drafts, on a machine
// that others use, or beside prompts. But no step tells what feeding a cache costs: there it is the
// time.
void LookaheadPlanner::settle(const Account& account, const PrefillRows& prefill,
                              const StepDurations& durations) {
  const double plain_ms = pricing_.step_ms(account.plain);
  const double base_ms = pricing_.step_ms(account.base) + pricing_.draft_ms(account.base);
  std::array<double, kNumDrafterKinds> added = account.added_ms;
  added[static_cast<int>(DrafterKind::model)] += pricing_.feed_ms(prefill.adaptive_draft);
  if (prefill.target == 0 && prefill.adaptive_draft > 0 &&
      prefill.draft == prefill.adaptive_draft && !durations.recorded) {
    double& fed = added[static_cast<int>(DrafterKind::model)];
    double expected = 0;
    for (const double ms : added) expected += ms;
    const double others = expected - fed;
    fed = std::max(0.0, std::min(durations.ms - base_ms, kMostOverrun * expected) - others);
  }
  DecodeShape decoded = account.base;
  decoded.prompt_rows = 0;
  const double token_ms = decoded.sequences == 0
                              ? 0
                              : (pricing_.step_ms(decoded) + pricing_.draft_ms(decoded)) /
                                    static_cast<double>(decoded.sequences + account.accepted_exact);
  // Who may copy and cannot, since copying has nothing left, earns half of the time for it.
  std::array<double, kNumDrafterKinds> earning;  // sequences
  std::copy(account.sequences.begin(), account.sequences.end(), earning.begin());
  if (of(DrafterKind::prompt_lookup).budget.is_spent()) {
    for (int d = 0; d < kNumDrafterKinds; ++d) {
      const double half = 0.5 * account.may_copy[d];
      earning[d] -= half;
      earning[static_cast<int>(DrafterKind::prompt_lookup)] += half;
    }
  }
  for (int d = 0; d < kNumDrafterKinds; ++d) {
    Drafter& drafter = drafters_[d];
    if (!drafter.budget.has_started()) continue;
    if (earning[d] > 0) {
      drafter.budget.earn(plain_ms * earning[d] / static_cast<double>(account.plain.sequences));
    }
    if (account.sequences[d] > 0) {
      drafter.idle_steps = account.drafted[d] ? 0 : drafter.idle_steps + 1;
      if (account.drafted[d] || prefill.adaptive_draft == 0) drafter.catching_up = -1;
    }
    if (added[d] > 0 || account.rows[d] > 0) {
      drafter.budget.charge(added[d] - account.accepted[d] * token_ms);
    }
  }
}

// Where a step is shared, a sequence gains by its own tokens and loses by what all drafts make the
// step longer.
void LookaheadPlanner::settle_waiting(std::span<const LookaheadOutcome> outcomes,
                                      const Account& account) {
  double base_ms = pricing_.step_ms(account.base) + pricing_.draft_ms(account.base);
  if (unstretched_ms_ > 0) base_ms = std::min(base_ms, unstretched_ms_);
  const double ms = pricing_.step_ms(account.all) + pricing_.draft_ms(account.all);
  for (const LookaheadOutcome& outcome : outcomes) {
    Sequence& sequence = sequences_.at(outcome.id);
    if (!std::exchange(sequence.waits, false)) continue;
    sequence.spare = std::clamp(sequence.spare + outcome.num_emitted + kSpareShare - ms / base_ms,
                                -kMostOwed, kMostSpare);
  }
}

void LookaheadPlanner::learn(std::span<const LookaheadOutcome> outcomes) {
  // How far what was chosen went, and whether more would have been looked at.
  struct Furthest {
    int length = 0;
    bool passed = false;
    void add(int of_length, bool all_passed) {
      if (of_length > length) *this = {.length = of_length};
      if (of_length == length) passed |= all_passed;
    }
  };
  struct Learnt {
    // Whether a sequence had drafts, and whether one whose K is chosen had none.
    bool drafted = false, undrafted = false;
    Furthest accepted, wrong;  // drafted tokens; and alternatives
  };
  std::array<std::array<Learnt, kClasses>, kNumDrafterKinds> learnt;
  for (const LookaheadOutcome& outcome : outcomes) {
    Sequence& sequence = sequences_.at(outcome.id);
    const bool judged = std::exchange(sequence.judged, false);
    if (const auto& other = sequence.passed_over) {
      learnt[static_cast<int>(other->drafter)][other->draft_class].undrafted = true;
    }
    Drafter& drafter = of(sequence.drafter);
    const int i = sequence.draft_class();
    DraftClass& all_alike = drafter.classes[i];
    Learnt& of_class = learnt[static_cast<int>(sequence.drafter)][i];
    AcceptanceCounts& counts = sequence.counts[sequence.matched];
    if (outcome.drafts.num_drafted == 0) {
      if (judged) {
        counts.age();
        sequence.offset().age();
      }
      of_class.undrafted |= !sequence.terms.exact;
      continue;
    }
    const VerifiedDrafts used = outcome.drafts.within(outcome.num_emitted);
    counts.observe(used.num_drafted, used.num_accepted);
    sequence.offset().observe(all_alike.hazard, used.num_drafted, used.num_accepted);
    all_alike.counts.observe(used.num_drafted, used.num_accepted);
    of_class.drafted = true;
    if (used.num_alternatives > 0) {
      const bool all_wrong = used.num_accepted == 0 && used.alternative < 0;
      of_class.wrong.add(used.num_alternatives, all_wrong);
      if (used.num_accepted == 0) {
        all_alike.wrong.observe(used.num_alternatives,
                                all_wrong ? used.num_alternatives : used.alternative);
      }
    }
    if (!sequence.terms.exact) {
      const int k = outcome.drafts.num_drafted;
      const bool all = used.num_accepted == k;
      if (all) counts.age_behind(k);
      of_class.accepted.add(k, all);
    }
    drafter.alpha_sum += used.alpha_sum;
    drafter.alpha_rows += used.alpha_rows;
    ++drafter.totals.num_drafts;
    drafter.totals.num_draft_tokens += used.num_verified();
    drafter.totals.num_accepted_draft_tokens += used.num_kept();
    drafter.totals.num_alternative_draft_tokens += used.num_alternatives;
    drafter.totals.num_accepted_alternatives += used.alternative >= 0;
    if (drafter.tried == outcome.id) drafter.try_again = used.num_accepted > 0;
  }
  for (int d = 0; d < kNumDrafterKinds; ++d) {
    for (int i = 0; i < kClasses; ++i) {
      const Learnt& of_class = learnt[d][i];
      if (!of_class.drafted && !of_class.undrafted) continue;
      DraftClass& all_alike = drafters_[d].classes[i];
      if (!of_class.drafted) all_alike.counts.age_of_server();
      const Furthest &accepted = of_class.accepted, &wrong = of_class.wrong;
      if (accepted.passed) all_alike.counts.age_behind(accepted.length);
      if (wrong.length == 0) all_alike.wrong.age_of_server();
      if (wrong.passed) all_alike.wrong.age_behind(wrong.length);
      all_alike.hazard = hazard_of(all_alike.counts);
      all_alike.wrong_hazard = hazard_of(all_alike.wrong);
    }
  }
}

std::optional<double> LookaheadPlanner::draft_cost(DrafterKind kind, Drawing drawing) const {
  if (!pricing_.known()) return std::nullopt;
  DecodeShape plain;
  plain.add(pricing_.target(), 0, kind, drawing, {});
  const double ms = pricing_.round_ms(kind, 1) + pricing_.drawing_ms(kind, drawing);
  return ms / pricing_.step_ms(plain);
}

std::array<DrafterReport, kNumDrafterKinds> LookaheadPlanner::reports() const {
  std::array<DrafterReport, kNumDrafterKinds> reports;
  for (int d = 0; d < kNumDrafterKinds; ++d) {
    const Drafter& drafter = drafters_[d];
    DrafterReport& report = reports[d] = drafter.totals;
    if (drafter.alpha_rows > 0) {
      report.alpha = drafter.alpha_sum / static_cast<double>(drafter.alpha_rows);
    }
    report.draft_cost = draft_cost(static_cast<DrafterKind>(d), Drawing::greedy);
    report.predicted_speedup = drafter.speedup.predicted(report.alpha);
    report.measured_speedup = drafter.speedup.measured();
    report.budget_ms = drafter.budget.left_ms();
  }
  return reports;
}

}  // namespace outrider
