// Scheduler: decides what the next step does for whom. No clock, no I/O, no threads: the same calls
// give the same plans.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/page_pool.h"
#include "engine/step_costs.h"
#include "engine/step_plan.h"

namespace outrider {

struct ScheduledSequence;

constexpr int64_t kMaxPromptLogitRows = 64;  // rows of a step whose prompt logits are wanted
constexpr double kPrefillShare = 0.25;       // of what prefill may add: so much it always may

struct SchedulerLimits {
  int64_t num_slots = 1;        // sequences that run at once
  int64_t num_pages = 0;        // of the target's KV cache
  int64_t num_draft_pages = 0;  // of the drafter's; 0: no drafter has a cache
  int64_t max_rows = 0;         // of a step, draft prefill rows included; ≥ kMaxDraftTokens + 2
  int64_t prefill_chunk = 1;    // most prefill rows of a step
  int64_t prefill_beside = 0;   // the same while somebody decodes; 0: as many as the costs allow
  // A step with prefill rows beside decode rows takes at most prefill_slowdown of what it would
  // without them, or prefill_ms more, so that the streams that run stay smooth (or as long as its
  // drafts make up for, as LookaheadChooser::choose says, and what prompts waited for those of the
  // step before); but one row always finds its place, and where its context is long, as many more
  // as kPrefillShare of that has room for. Where those that decode have objectives that the
  // target's pass would meet without prefill, prefill adds no more than keeps them, or
  // kPrefillShare of what it could add else: who waits for a first token may not wait for ever.
  StepCosts costs;  // unknown: no such limit
  double prefill_slowdown = 1, prefill_ms = 0;
  bool prefix_cache = true;
};

// One answer that is to be made: a request, or one of its n choices.
struct SequenceSpec {
  int64_t id = 0;       // the caller's, never used twice
  int64_t request = 0;  // choices of one request share it, and their prompt's pages
  int32_t choice = 0;   // 0 is added first: the others wait for its pages
  // Order of admission: smaller first. Arrival in seconds, less priority times the ageing period:
  // so a high priority goes first, and nobody waits for ever.
  double order = 0;
  std::vector<int32_t> prompt;    // with emitted tokens that the client already has
  int64_t num_prompt_tokens = 0;  // of them, without those
  int64_t max_length = 0;         // prompt and max_tokens: length stays ≤ this
  LogitRules rules;
  Processors processors;
  uint64_t seed = 0;
  DrafterKind drafter = DrafterKind::none;
  int32_t lookahead = 0;            // K
  bool lookahead_is_exact = false;  // K is the request's own: never less because of budget or pages
  // To the first of K tokens; kMaxDraftTokens with them, at most, unless both are chosen.
  int32_t alternatives = 0;
  int64_t max_draft_positions = 0;  // the drafter's longest context
  double max_step_ms = 0;           // the objective; 0: none
  // Logits of the prompt's rows are wanted: the prefix cache of others is not used. Given to all
  // choices of a request; choice 0 computes the rows, the others share its pages.
  bool prompt_logits = false;
  uint64_t salt = 0;  // of the prefix cache
};

// A sequence that can decode in the step that is planned.
struct DecodeChoice {
  int64_t id = 0;
  bool exact = false;               // its K is not to be chosen
  std::span<const int32_t> tokens;  // prompt and emitted
  int32_t num_draft_tokens = 0;     // K at most; chosen: 0 … that
  int32_t num_alternatives = 0;     // to the first drafted token, likewise
  int64_t num_refed = 0;            // positions that its step feeds again
};

// A sequence whose drafter has not seen the last `rows` positions.
struct CatchUp {
  int64_t id = 0;
  int64_t rows = 0;
  int64_t tokens_left = 0;                 // that the sequence may yet emit
  int64_t most_drafted = kMaxDraftTokens;  // K at most
};

// Rows of prompts of a step that is to decode too.
struct PromptRows {
  int64_t waiting = 0;  // that there are to compute
  int64_t plain = 0;    // of them, that the step has if nothing is drafted, and nothing is owed
  int64_t most = 0;     // that it may have whatever time they take
};

// What a step that is to decode has room for beside the tokens that it cannot do without.
struct StepRoom {
  PromptRows prompts;
  int64_t drafted_rows = INT64_MAX;  // of sequences whose K is chosen
};

// Who decides what the sequences draft whose K is not exact.
class LookaheadChooser {
 public:
  virtual ~LookaheadChooser() = default;
  // Once for all that are ready when a step's decodes are planned. What comes later to a step
  // drafts nothing. Pages may leave them less, and rows whoever
  // does not look at `room`. Returns how long prompts may take beside what is
  // drafted, in milliseconds of SchedulerLimits::costs; 0: as long as without.
  virtual double choose(std::span<DecodeChoice> step, const StepRoom& room) = 0;
  // Whether a drafter's cache is worth its rows now.
  virtual bool may_catch_up(const CatchUp& catch_up) = 0;
  // How many times as long steps of so many sequences take as SchedulerLimits::costs say.
  virtual double slowness(int64_t sequences) const = 0;
  // How much longer the last step took for what choose() let it draft, in milliseconds of the same
  // costs: so much more may prompts take that came meanwhile.
  virtual double owed_to_prompts_ms() const = 0;
};

// Rows of a step that are no decode rows.
struct PrefillRows {
  int64_t target = 0, draft = 0;
  int64_t adaptive_draft = 0;  // of `draft`, for sequences whose K is chosen
};

struct SchedulerStats {
  int64_t num_running = 0, num_waiting = 0;
  int64_t pages_used = 0, num_pages = 0;
  int64_t draft_pages_used = 0, num_draft_pages = 0;
  int64_t prefix_queries = 0, prefix_hits = 0;  // tokens asked for and found, at first admissions
  int64_t num_preemptions = 0;
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerLimits limits);
  ~Scheduler();

  // The pools have room for the sequence where it runs alone, to its max_length and a step's rows
  // behind that; so does the drafter's where lookahead_is_exact.
  void add(SequenceSpec sequence);
  // The sequence is over, wherever it stands (finished, cancelled, failed). Frees slot and pages.
  // What a decoding step left that was not committed is not kept for the prefix cache. spoilt:
  // nothing is that it holds of the target's cache, since that may be wrong.
  void remove(int64_t id, bool spoilt = false);

  // The next step; empty work where there is nothing to do. `proposed` of copy drafters is left to
  // the caller, who may also lower their num_draft_tokens. After it, commit() is called for each
  // sequence of the plan that decodes, or remove().
  // chooser: null: every sequence drafts its `lookahead` where it can.
  StepPlan plan(LookaheadChooser* chooser = nullptr);
  // Of the last plan.
  PrefillRows prefill_rows() const { return rows_.taken; }

  // `tokens` were emitted for a decoding sequence: accepted drafts and the extra one. in_cache:
  // whether the target's cache has the drafts among them; where not, they are fed again with the
  // next token.
  void commit(int64_t id, std::span<const int32_t> tokens, bool in_cache = true);

  // The running sequence of a slot, as the plan names it; -1 where the slot is free.
  int64_t sequence_at(int32_t slot) const;
  std::span<const int32_t> tokens(int64_t id) const;
  // Positions before the last token that its drafter, if it has a cache, has not seen.
  int64_t num_missed(int64_t id) const;
  // Positions before the last token that its step feeds again.
  int64_t num_refed(int64_t id) const;
  // Positions found in the prefix cache at the first admission; 0 before it.
  int64_t num_cached_at_admission(int64_t id) const;
  SchedulerStats stats() const;

 private:
  struct InOrder {
    bool operator()(const ScheduledSequence* a, const ScheduledSequence* b) const;
  };
  struct RowsLeft {
    int64_t all = 0;      // of the step
    int64_t prefill = 0;  // of those, for prompts of target and drafter
    int64_t prompt_logits = 0;
    // What the prefill rows may yet add to a step in which somebody decodes.
    double prefill_ms = 0;
    double prefill_ms_by_drafts = 0;  // as LookaheadChooser::choose gives it
    bool by_costs = false;            // whether that is a limit
    bool by_objective = false;        // whether it is what an objective leaves
    bool any_prefill = false;
    PrefillRows taken;
  };

  ScheduledSequence& find(int64_t id) const;
  bool uses_prefix_cache(const ScheduledSequence& s) const;
  uint64_t salt_of(const ScheduledSequence& s) const;

  // The parts of plan(), in this order.
  void publish(ScheduledSequence& s);
  void plan_decodes();
  PromptRows prompt_rows_beside(std::span<ScheduledSequence* const> ready) const;
  void choose_lookahead(std::span<ScheduledSequence* const> ready, const StepRoom& room);
  bool may_catch_up(const ScheduledSequence& s) const;
  void limit_prefill();
  double prefill_ms_not_counted(int64_t position) const;
  int64_t prefill_room(int64_t position) const;
  void take_prefill_rows(int64_t rows, int64_t position);
  void plan_prefill(ScheduledSequence& s);
  bool has_room(const ScheduledSequence& s) const;
  bool admit(ScheduledSequence& s, StepPlan& plan);
  void emit(ScheduledSequence& s, StepPlan& plan);

  void decode(ScheduledSequence& s, int64_t num_draft_tokens, int64_t num_alternatives);
  void take_drafts(ScheduledSequence& s);
  int64_t make_draft_room(ScheduledSequence& s, int64_t num_draft_tokens);
  int64_t make_target_room(ScheduledSequence& s, int64_t num_draft_tokens);
  bool reclaim_draft(const ScheduledSequence& for_whom);
  void drop_draft(ScheduledSequence& s);
  bool has_draft_room(const ScheduledSequence& s, int64_t positions) const;
  int64_t num_draft_users() const;
  void preempt(ScheduledSequence& s);
  void leave_slot(ScheduledSequence& s);
  void free_siblings(ScheduledSequence& s);

  SchedulerLimits limits_;
  PagePool target_pool_, draft_pool_;
  std::unordered_map<int64_t, std::unique_ptr<ScheduledSequence>> sequences_;  // by id
  std::vector<ScheduledSequence*> running_;                                    // in order
  std::set<ScheduledSequence*, InOrder> waiting_;
  // Requests whose choice 0 has not finished its prompt, or its drafter has not where it has to
  // draft, and the choices that wait for that.
  std::unordered_map<int64_t, std::vector<ScheduledSequence*>> siblings_;
  std::vector<ScheduledSequence*> slots_;  // null: free
  std::vector<int32_t> free_slots_;        // a stack
  RowsLeft rows_;                          // of the step that is planned
  LookaheadChooser* chooser_ = nullptr;    // likewise
  std::vector<DecodeChoice> choices_;      // likewise
  uint64_t step_ = 0;
  SchedulerStats counts_;  // prefix_* and num_preemptions
};

}  // namespace outrider
