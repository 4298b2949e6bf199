// LookaheadPlanner: rank 0's side of Lookahead: who may draft how much, from what steps took and
// what was accepted. Told of times, it reads no clock.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/step_pricing.h"
#include "spec/acceptance.h"
#include "spec/copy_drafters.h"
#include "spec/logit_editor.h"
#include "spec/lookahead.h"
#include "spec/loss_budget.h"
#include "spec/speedup.h"

namespace outrider {

// What a step did for a sequence that decoded in it.
struct LookaheadOutcome {
  int64_t id = 0;
  int64_t position = 0;  // its length before
  // Before its last token, that its drafter had not seen until it drafted.
  int64_t num_missed = 0;
  int64_t num_refed = 0;  // positions that the step fed again
  VerifiedDrafts drafts;
  int num_emitted = 0;  // with the extra token, up to the answer's end
};

struct StepDurations {
  double ms = 0;        // of the whole step
  double draft_ms = 0;  // of them, by drafters on the device
  // Some pass of it was recorded, to be replayed: they say nothing of steps like it.
  bool recorded = false;
};

// How a sequence drafts.
struct DraftingTerms {
  DrafterKind drafter = DrafterKind::none;
  Drawing drawing = Drawing::greedy;
  // A step may take what prompt_lookup has instead, where it is likelier. Not with a drafter that
  // has a cache, which a copied step would leave behind.
  bool may_copy = false;
  bool exact = false;      // K is not the planner's to choose
  double max_step_ms = 0;  // the objective; 0: none
  // Which tokens may come behind so many of a prompt: others are not copied.
  LogitRules rules;
  int64_t num_prompt_tokens = 0;
};

class LookaheadPlanner final : public LookaheadChooser {
 public:
  LookaheadPlanner(LookaheadPolicy policy, LookaheadTables tables);

  void add(int64_t id, const DraftingTerms& terms);
  // Still known to the next observe().
  void remove(int64_t id) { removed_.push_back(id); }

  double choose(std::span<DecodeChoice> step, const StepRoom& room) override;
  bool may_catch_up(const CatchUp& catch_up) override;
  double slowness(int64_t sequences) const override {
    return pricing_.fit(sequences).plain_factor();
  }
  double owed_to_prompts_ms() const override { return owed_to_prompts_ms_; }

  // What the sequence drafts with in the step that is planned.
  DrafterKind drafter_now(int64_t id) const { return sequences_.at(id).drafter; }
  // What a token costs with it, in plain steps of one sequence; unset: not measured.
  std::optional<double> draft_cost_now(int64_t id) const {
    const Sequence& sequence = sequences_.at(id);
    return draft_cost(sequence.drafter, sequence.terms.drawing);
  }
  // At most k tokens that its copy drafter has for the sequence and that may come: what k was
  // chosen by, where it was.
  std::vector<int32_t> propose(int64_t id, std::span<const int32_t> tokens, int k);

  // The planned step was carried out. Returns what it took, for each of its sequences, where that
  // says anything of steps like it.
  TimedStep observe(std::span<const LookaheadOutcome> outcomes, const PrefillRows& prefill,
                    const StepDurations& durations);

  std::array<DrafterReport, kNumDrafterKinds> reports() const;

 private:
  // Copied drafts are judged by how many tokens matched, 1 … kMatches - 1, others alike: 0; and
  // both by how their texts are drawn.
  static constexpr int kMatches = 5, kClasses = kNumDrawings * kMatches;
  // Plain steps that a sequence has to spare for the drafts of others: at first, by each step that
  // it shares, and at most. Who owes the last of these waits for none.
  static constexpr double kFirstSpare = 0.5, kSpareShare = 0.0025, kMostSpare = 8, kMostOwed = 3;

  // Drafts that fare alike.
  struct DraftKind {
    DrafterKind drafter;
    int draft_class;
  };
  struct Sequence {
    DraftingTerms terms;
    std::vector<AcceptanceCounts> counts;  // [kMatches]
    AcceptanceOffset drawn, copied;        // of matched 0, and of the others
    TokenIndex index;                      // where it copies: of its tokens
    double spare;  // plain steps that it may yet wait for the drafts of others; below 0: owed
    // For the step that is planned:
    DrafterKind drafter;
    int matched = 0;          // what is copied
    bool tries_copy = false;  // though less likely than what it would draw
    bool waits = false;       // for the drafts of others
    bool judged = false;      // by what is known of its drafts, which may have spoken against them
    std::optional<DraftKind> passed_over;  // what it might have drafted by copying, or instead
    std::vector<int32_t> proposed;

    int draft_class() const { return static_cast<int>(terms.drawing) * kMatches + matched; }
    AcceptanceOffset& offset() { return matched == 0 ? drawn : copied; }
    const AcceptanceOffset& offset() const { return matched == 0 ? drawn : copied; }
  };
  struct DraftClass {
    AcceptanceCounts counts;
    // Of alternatives: reached where all before were wrong, "accepted" where it was wrong itself.
    AcceptanceCounts wrong = counts;
    Hazard hazard = hazard_of(counts), wrong_hazard = hazard_of(wrong);  // as of the last step
  };
  struct Drafter {
    std::vector<DraftClass> classes;  // [kClasses]
    LossBudget budget;
    int num_sequences = 0;     // of the step that is planned, which it may draft for
    double drawing_ms = 0;     // of a row of each of them
    int64_t idle_steps = 0;    // in which it had sequences and drafted nothing
    bool try_again = false;    // the last try was accepted
    int64_t tried = -1;        // the sequence that the step tries it with
    int64_t catching_up = -1;  // the one whose cache is fed for a try
    double planned_ms = 0;     // that the step that is planned may lose by it
    double alpha_sum = 0;
    int64_t alpha_rows = 0;
    SpeedupRecord speedup;
    DrafterReport totals;

    double left_ms() const { return std::max(0.0, budget.left_ms() - planned_ms); }
  };
  // What a step comes to whose adaptive sequences draft nothing, and what drafting adds to it.
  struct Account {
    DecodeShape all, base, plain;
    std::array<double, kNumDrafterKinds> added_ms{};   // by adaptive drafting
    std::array<int, kNumDrafterKinds> sequences{};     // adaptive ones
    std::array<int, kNumDrafterKinds> rows{};          // that they drafted, or fed again
    std::array<int, kNumDrafterKinds> alternatives{};  // of the drafted ones
    std::array<bool, kNumDrafterKinds> drafted{};
    std::array<int, kNumDrafterKinds> accepted{};  // … and emitted
    std::array<int, kNumDrafterKinds> may_copy{};  // adaptive ones that might have copied instead
    int accepted_exact = 0;
    int adaptive_rows = 0;  // of all drafters
  };
  // Steps without drafted rows, or with those alone of requests that name their K, though others
  // might have drafted.
  struct BaseSteps {
    int64_t count = 0;
    int64_t since = 0;  // other steps since the last
    int asked = 0;      // for one, since then
  };

  Drafter& of(DrafterKind kind) { return drafters_[static_cast<int>(kind)]; }
  const Drafter& of(DrafterKind kind) const { return drafters_[static_cast<int>(kind)]; }
  void forget_removed();
  std::optional<double> draft_cost(DrafterKind kind, Drawing drawing) const;

  void find_base(std::span<const DecodeChoice> step);
  void choose_adaptively(std::span<DecodeChoice> step, bool base_alone, int64_t drafted_rows);
  struct BesidePrompts {
    double gain = 0;       // how many times as fast as without drafts prompts get on
    double prompt_ms = 0;  // as choose() returns it
    double plain_ms = 0;   // of the step without drafts
    std::array<double, kNumDrafterKinds> added_ms{};  // to that, by drafts alone
  };
  double choose_beside_prompts(std::span<DecodeChoice> step, const StepRoom& room);
  BesidePrompts beside_prompts(std::span<const DecodeChoice> step, const StepRoom& room,
                               int k) const;
  bool wants_base_step(std::span<const DecodeChoice> step);
  void count_sequences(std::span<const DecodeChoice> step);
  void fill_costs(const DecodeShape& base, int64_t most_drafted);
  void set_budgets(const DecodeShape& base);
  bool find_proposal(Sequence& sequence, const DecodeChoice& choice);
  void choose_drafters(std::span<const DecodeChoice> step, bool base_alone);
  void choose_drafter(Sequence& sequence, const DecodeChoice& choice, bool base_alone);
  Hazard hazard_of_sequence(const Sequence& sequence) const;
  std::array<double, kMaxAlternatives> alternatives_of(const Sequence& sequence) const;
  void try_others(std::span<DecodeChoice> step, int64_t num_drafted, const LookaheadChoice& choice);

  Account account_of(std::span<const LookaheadOutcome> outcomes, int64_t prompt_rows) const;
  void settle_waiting(std::span<const LookaheadOutcome> outcomes, const Account& account);
  void learn(std::span<const LookaheadOutcome> outcomes);
  void settle(const Account& account, const PrefillRows& prefill, const StepDurations& durations);

  LookaheadPolicy policy_;
  StepPricing pricing_;
  std::array<Drafter, kNumDrafterKinds> drafters_;  // by DrafterKind
  std::unordered_map<int64_t, Sequence> sequences_;
  std::vector<int64_t> removed_;
  std::array<BaseSteps, StepPricing::kSizes> base_steps_{};
  int64_t steps_since_copy_tried_ = 0, num_copies_tried_ = 0;
  bool base_alone_ = false;  // of the step that is planned: it shall tell what it takes …
  DecodeShape base_;         // … without what is chosen
  double base_tokens_ = 0;   // that it is expected to emit
  double owed_to_prompts_ms_ = 0;
  double unstretched_ms_ = 0;  // of the step that is planned, where drafts buy prompts time

  LookaheadSearch search_;
  LookaheadCosts costs_;
  std::vector<LookaheadSequence> candidates_;  // [sequences of the step]
  std::vector<int> chosen_;                    // [candidates]
};

}  // namespace outrider
