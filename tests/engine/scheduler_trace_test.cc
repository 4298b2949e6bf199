// Random traces of requests, from arrival to end, against a plain model of what the ranks would do
// with each plan: which pages a slot holds, what stands in every position of them, who writes
// where. OUTRIDER_SCHEDULER_TRACES sets how many traces are run, OUTRIDER_SCHEDULER_SEED the first.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>

#include "core/digest.h"
#include "engine/cache_model.h"
#include "engine/scheduler.h"

namespace outrider {
namespace {

struct Answer {
  SequenceSpec spec;
  std::vector<int32_t> tokens;
  std::vector<uint64_t> content;  // [tokens]: stands for the KV of each position
  int32_t slot = -1;
  bool admitted_once = false, over = false;
  bool is_stale = false;      // the place of the last token but one holds another draft
  int64_t prompt_logits = 0;  // rows had
  int64_t usable_lookahead() const {
    const auto length = static_cast<int64_t>(tokens.size());
    if (spec.drafter == DrafterKind::none) return 0;
    const int64_t most = std::min(spec.max_length - length - 1, spec.max_draft_positions - length);
    return std::max<int64_t>(std::min<int64_t>(spec.lookahead, most), 0);
  }
};

struct Coverage {
  int64_t steps = 0, preemptions = 0, reclaims = 0, prefix_hits = 0, waits = 0, cuts = 0;
  int64_t draft_catch_ups = 0, shared_pages = 0, sequences = 0, refed = 0;
};

// Chooses anything that it may.
class AnyLookahead final : public LookaheadChooser {
 public:
  explicit AnyLookahead(uint64_t seed) : random_(seed) {}

  double choose(std::span<DecodeChoice> step, const StepRoom& room) override {
    REQUIRE(0 <= room.prompts.plain &&
            room.prompts.plain <= std::min(room.prompts.waiting, room.prompts.most));
    chosen.clear();
    for (DecodeChoice& choice : step) {
      if (choice.exact) continue;
      choice.num_draft_tokens = static_cast<int32_t>(random_() % (choice.num_draft_tokens + 1));
      choice.num_alternatives = static_cast<int32_t>(random_() % (choice.num_alternatives + 1));
      chosen[choice.id] = {choice.num_draft_tokens, choice.num_alternatives};
    }
    owed_ms = random_() % 3 == 0 ? static_cast<double>(random_() % 10) : 0;
    return prompt_ms = random_() % 3 == 0 ? static_cast<double>(random_() % 20) : 0;
  }
  bool may_catch_up(const CatchUp& catch_up) override {
    REQUIRE(catch_up.rows > kMaxDraftTokens && catch_up.tokens_left > 0);
    const bool may = random_() % 2 == 0;
    if (!may) refused.insert(catch_up.id);
    return may;
  }
  double slowness(int64_t) const override { return 1; }
  double owed_to_prompts_ms() const override { return owed_ms; }

  std::map<int64_t, std::pair<int64_t, int64_t>> chosen;  // of the last step: K, alternatives
  std::set<int64_t> refused;                              // likewise
  double prompt_ms = 0;                                   // likewise, that prompts may take
  double owed_ms = 0;  // likewise, beyond what they may without drafts

 private:
  std::mt19937_64 random_;
};

class Trace {
 public:
  explicit Trace(uint64_t seed)
      : random_(seed),
        limits_(random_limits()),
        scheduler_(limits_),
        target_(limits_.num_slots, limits_.num_pages),
        draft_(limits_.num_slots, limits_.num_draft_pages),
        at_(limits_.num_slots, -1) {
    if (below(2) == 0) chooser_.emplace(random_());
  }

  // Returns a digest of every plan.
  uint64_t run(Coverage& coverage) {
    int64_t to_come = 1 + below(8), busy_steps = 0;
    const int64_t pause = 1 + below(8);  // between arrivals, in steps
    while (to_come > 0 || num_open_ > 0) {
      for (; to_come > 0 && (num_open_ == 0 || below(pause) == 0); --to_come) submit();
      if (below(40) == 0) cancel_one();
      step(coverage);
      // Somebody always gets on: a prompt may be computed again, but a token is a token.
      REQUIRE(++busy_steps <= 60 + 2 * work_);
    }
    step(coverage);
    const SchedulerStats stats = scheduler_.stats();
    REQUIRE(stats.pages_used == 0 && stats.draft_pages_used == 0);
    REQUIRE(stats.num_running == 0 && stats.num_waiting == 0);
    REQUIRE(stats.prefix_hits <= stats.prefix_queries);
    coverage.preemptions += stats.num_preemptions;
    coverage.prefix_hits += stats.prefix_hits;
    return digest_;
  }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  // A third of the traces is narrow: short prompts, long answers, and pages for few of them.
  SchedulerLimits random_limits() {
    narrow_ = below(3) == 0;
    SchedulerLimits limits{.num_slots = 1 + below(6),
                           .num_pages = 4 + below(narrow_ ? 6 : 40),
                           .num_draft_pages = below(4) == 0 ? 0 : 4 + below(below(3) ? 8 : 60),
                           .max_rows = kMaxDraftTokens + 2 + below(narrow_ ? 6 : 60),
                           .prefix_cache = below(5) > 0};
    limits.prefill_chunk = 1 + below(below(2) == 0 ? 100 : 12);
    if (below(3) == 0) limits.prefill_beside = 1 + below(limits.prefill_chunk);
    if (below(2) == 0) {
      const auto ms = [this](double most) { return most * static_cast<double>(below(100)) / 100; };
      limits.costs = {.steps = {{1, 10}, {4, 10 + ms(5)}, {4 + 1 + below(40), 15 + ms(50)}},
                      .ms_per_position = ms(0.05),
                      .ms_per_row_position = ms(0.05)};
      limits.prefill_slowdown = 1 + ms(1.5);
      limits.prefill_ms = ms(3);
    }
    return limits;
  }

  // A request of 1 … 3 choices, where it fits.
  void submit() {
    static constexpr int32_t kLookaheads[] = {0, 1, 2, 3, 4, 5, 8, 15};
    SequenceSpec spec{.request = next_request_++,
                      .order = static_cast<double>(clock_) - static_cast<double>(below(3) * 20),
                      .seed = random_(),
                      .lookahead = kLookaheads[below(8)],
                      .lookahead_is_exact = below(3) == 0,
                      .max_draft_positions = below(4) == 0 ? 10 + below(60) : 1000,
                      .prompt_logits = below(8) == 0,
                      .salt = static_cast<uint64_t>(below(2))};
    spec.drafter = static_cast<DrafterKind>(below(4));
    if (below(2) == 0) spec.drafter = DrafterKind::model;
    if (spec.lookahead > 0 && spec.drafter != DrafterKind::prompt_lookup && below(2) == 0) {
      spec.alternatives = std::min(static_cast<int32_t>(below(kMaxAlternatives + 1)),
                                   kMaxDraftTokens - spec.lookahead);
    }
    if (limits_.num_draft_pages == 0 && spec.drafter == DrafterKind::model) {
      spec.drafter = DrafterKind::random;
    }
    const int64_t shared = below(narrow_ ? 10 : 70);
    for (int64_t i = 0; i < shared; ++i) spec.prompt.push_back(static_cast<int32_t>(i));
    for (int64_t n = 1 + below(12); n > 0; --n) {
      spec.prompt.push_back(static_cast<int32_t>(below(2)));
    }
    const auto length = static_cast<int64_t>(spec.prompt.size());
    spec.max_length = length + 1 + below(40);
    // Only the exact ones have to fit into the drafter's cache.
    const int64_t draft_positions = spec.drafter == DrafterKind::model && spec.lookahead_is_exact
                                        ? spec.max_draft_positions
                                        : 0;
    const auto n = static_cast<int32_t>(below(3) == 0 ? 1 + below(3) : 1);
    if (narrow_) {  // as long as can be
      const int64_t most = limits_.num_pages * kPageTokens - kMaxDraftTokens - 1;
      spec.max_length = std::max(spec.max_length, std::min<int64_t>(most, length + below(120)));
    }
    // What runs alone has room; choices need not fit together.
    const int64_t positions = spec.max_length + kMaxDraftTokens + 1;
    if (pages_for(positions) > limits_.num_pages) return;
    if (pages_for(std::min(positions, draft_positions)) > limits_.num_draft_pages) return;
    for (spec.choice = 0; spec.choice < n; ++spec.choice) {
      spec.id = next_id_++;
      Answer& answer = answers_[spec.id];
      answer.spec = spec;
      extend(answer, spec.prompt);
      scheduler_.add(spec);
      ++num_open_;
      work_ += spec.max_length;
    }
  }

  // What a position holds depends on all tokens up to it, and, in the model's world, on who may
  // share it.
  void extend(Answer& answer, std::span<const int32_t> tokens) {
    const bool is_private = answer.spec.prompt_logits || !limits_.prefix_cache;
    for (const int32_t token : tokens) {
      const uint64_t before = !answer.content.empty() ? answer.content.back()
                              : is_private            ? 1000 + answer.spec.request
                                                      : answer.spec.salt;
      answer.tokens.push_back(token);
      answer.content.push_back(digest(&token, sizeof token, before));
    }
  }

  void cancel_one() {
    std::vector<int64_t> open;
    for (const auto& [id, answer] : answers_) {
      if (!answer.over) open.push_back(id);
    }
    if (!open.empty()) end(open[below(static_cast<int64_t>(open.size()))]);
  }

  void end(int64_t id) {
    Answer& answer = answers_[id];
    scheduler_.remove(id);
    leave(answer);
    answer.over = true;
    --num_open_;
  }

  void leave(Answer& answer) {
    answer.is_stale = false;
    if (answer.slot < 0) return;
    target_.admit(answer.slot, 0);
    draft_.admit(answer.slot, 0);
    at_[answer.slot] = -1;
    answer.slot = -1;
  }

  void step(Coverage& coverage) {
    ++clock_;
    const int64_t preemptions = scheduler_.stats().num_preemptions;
    if (chooser_) chooser_->refused.clear();
    const auto bytes = scheduler_.plan(chooser_ ? &*chooser_ : nullptr).serialise();
    digest_ = digest(bytes.data(), bytes.size(), digest_);
    const StepPlan plan = StepPlan::parse(bytes);
    // Who was preempted? Perhaps to be admitted again at once, where it now shares another's pages.
    std::vector<bool> admitted(at_.size(), false);
    for (const Admission& admission : plan.admitted) admitted[admission.slot] = true;
    int64_t preempted = 0;
    for (size_t slot = 0; slot < at_.size(); ++slot) {
      if (at_[slot] < 0) continue;
      if (admitted[slot] || scheduler_.sequence_at(static_cast<int32_t>(slot)) != at_[slot]) {
        leave(answers_[at_[slot]]);
        ++preempted;
      }
    }
    REQUIRE(scheduler_.stats().num_preemptions == preemptions + preempted);
    for (const Admission& admission : plan.admitted) admit(admission);
    for (size_t slot = 0; slot < at_.size(); ++slot) {
      REQUIRE(scheduler_.sequence_at(static_cast<int32_t>(slot)) == at_[slot]);
    }
    for (const PageGrant& grant : plan.target_pages) target_.grant(grant, admitted[grant.slot]);
    for (const PageGrant& grant : plan.draft_pages) {
      if (!admitted[grant.slot] && grant.first == 0 && draft_.cached[grant.slot] > 0) {
        ++coverage.reclaims;
      }
      draft_.grant(grant, admitted[grant.slot]);
    }
    const auto target_users = target_.users(), draft_users = draft_.users();
    const SchedulerStats stats = scheduler_.stats();
    REQUIRE(stats.pages_used == static_cast<int64_t>(target_users.size()));
    REQUIRE(stats.draft_pages_used == static_cast<int64_t>(draft_users.size()));
    REQUIRE(stats.num_running + stats.num_waiting == num_open_);
    REQUIRE(stats.num_running == 0 || !plan.work.empty());
    for (const auto& [page, users] : target_users) coverage.shared_pages += users > 1;

    int64_t rows = 0, prefill_rows = 0, prompt_logits = 0;
    StepCost cost;
    std::vector<bool> seen(at_.size(), false);
    for (const PlannedWork& w : plan.work) {
      REQUIRE(at_[w.slot] >= 0 && !seen[w.slot]);
      seen[w.slot] = true;
      Answer& answer = answers_[at_[w.slot]];
      const auto length = static_cast<int64_t>(answer.tokens.size());
      const int64_t target_from = target_.cached[w.slot], draft_from = draft_.cached[w.slot];
      REQUIRE(target_from <= w.prefill_end && w.prefill_end <= length - 1);
      REQUIRE(draft_from <= w.draft_prefill_end && w.draft_prefill_end <= length - 1);
      // What is fed again is a decode row, not a prompt's.
      const int64_t refed = answer.is_stale && w.decode ? length - 1 - target_from : 0;
      REQUIRE(refed <= 1);
      coverage.refed += refed;
      const int64_t fed = w.prefill_end - target_from - refed + w.draft_prefill_end - draft_from;
      REQUIRE(fed > 0 || w.decode);
      coverage.draft_catch_ups += w.draft_prefill_end > draft_from;
      prefill_rows += fed;
      rows += fed;
      for (const auto& [begin, end] : {std::pair(target_from + refed, w.prefill_end),
                                       std::pair(draft_from, w.draft_prefill_end)}) {
        if (end == begin) continue;
        cost.prefill_context_ms += limits_.costs.context_ms(end - begin, begin);
        cost.longest_context_ms =
            std::max(cost.longest_context_ms, limits_.costs.context_ms(1, begin));
      }
      if (w.prompt_logits) {
        REQUIRE(answer.spec.prompt_logits && answer.spec.choice == 0);
        REQUIRE(target_from == answer.prompt_logits && w.prefill_end > target_from);
        REQUIRE(w.prefill_end < static_cast<int64_t>(answer.spec.prompt.size()));
        answer.prompt_logits = w.prefill_end;
        prompt_logits += w.prefill_end - target_from;
      }
      if (chooser_ && chooser_->refused.count(at_[w.slot]) > 0) {
        REQUIRE(w.draft_prefill_end <= draft_from);
      }
      target_.feed(w.slot, w.prefill_end, answer.content, target_users);
      draft_.feed(w.slot, w.draft_prefill_end, answer.content, draft_users);
      if (!w.decode) {
        REQUIRE(w.num_draft_tokens == 0 && w.num_alternatives == 0);
        continue;
      }
      const int64_t k = w.num_draft_tokens, alternatives = w.num_alternatives;
      const int64_t decode_rows = 1 + refed + k + alternatives;
      REQUIRE(k > 0 || alternatives == 0);
      rows += decode_rows;
      if (fed == 0 && !admitted[w.slot]) {
        cost.streams = true;
        cost.decode_rows += decode_rows;
        cost.decode_context_ms += limits_.costs.context_ms(decode_rows, length - 1);
      } else {
        cost.uncertain = true;  // it is a stream, or becomes one in this very step
      }
      REQUIRE(w.prefill_end == length - 1 && length < answer.spec.max_length);
      REQUIRE(answer.spec.lookahead_is_exact ? k == answer.usable_lookahead()
                                             : k <= answer.usable_lookahead());
      if (chooser_ && !answer.spec.lookahead_is_exact) {
        const auto chosen = chooser_->chosen.find(at_[w.slot]);
        const bool asked = chosen != chooser_->chosen.end();
        REQUIRE(k <= (asked ? chosen->second.first : 0));
        REQUIRE(alternatives <= (asked ? chosen->second.second : 0));
      } else {
        REQUIRE(alternatives <= answer.spec.alternatives);
      }
      coverage.cuts += k < answer.usable_lookahead();
      if (answer.spec.prompt_logits && answer.spec.choice == 0) {
        REQUIRE(answer.prompt_logits == static_cast<int64_t>(answer.spec.prompt.size()) - 1);
      }
      auto content = answer.content;  // of this step's hypothesis
      for (int64_t i = 0; i < k; ++i) content.push_back(random_());
      target_.feed(w.slot, length + k, content, target_users);
      if (k > 0 && answer.spec.drafter == DrafterKind::model) {
        REQUIRE(length - w.draft_prefill_end <= kMaxDraftTokens + 1);
        draft_.feed(w.slot, length + k - 1, content, draft_users);
      }
    }
    coverage.waits += std::count(seen.begin(), seen.end(), false) -
                      std::count(at_.begin(), at_.end(), int64_t{-1});
    REQUIRE(rows <= limits_.max_rows && prompt_logits <= kMaxPromptLogitRows);
    REQUIRE(prefill_rows <= limits_.prefill_chunk);
    const PrefillRows told = scheduler_.prefill_rows();
    REQUIRE(told.target + told.draft == prefill_rows);
    check_prefill(cost, prefill_rows);
    ++coverage.steps;
    for (const PlannedWork& w : plan.work) {
      if (w.decode) finish(w);
    }
  }

  // What a step took, as far as the limits on prefill look at it.
  struct StepCost {
    int64_t decode_rows = 0;
    double decode_context_ms = 0, prefill_context_ms = 0;
    double longest_context_ms = 0;  // of one prefill row
    bool streams = false;           // somebody decodes who did before
    bool uncertain = false;         // perhaps somebody else does too
  };

  void check_prefill(const StepCost& cost, int64_t prefill_rows) {
    if (!cost.streams) return;
    if (limits_.prefill_beside > 0) {
      REQUIRE(prefill_rows <= limits_.prefill_beside);
    } else if (limits_.costs.known() && !cost.uncertain && prefill_rows > 1) {
      const double before = limits_.costs.rows_ms(cost.decode_rows);
      const double added = limits_.costs.rows_ms(cost.decode_rows + prefill_rows) - before;
      const double most = (limits_.prefill_slowdown - 1) * (before + cost.decode_context_ms) + 1e-9;
      const double bought = chooser_ ? chooser_->prompt_ms : 0;
      const double owed = chooser_ ? chooser_->owed_ms : 0;
      const double may = std::max(std::max(most, bought) + owed, limits_.prefill_ms);
      // The first may have been one whose first row takes most of that by itself.
      const double one =
          limits_.costs.rows_ms(cost.decode_rows + 1) - before + cost.longest_context_ms;
      REQUIRE(added + cost.prefill_context_ms <=
              may + std::max(0.0, one - (1 - kPrefillShare) * may) + 1e-9);
    }
  }

  void admit(const Admission& admission) {
    REQUIRE(at_[admission.slot] < 0);
    const int64_t id = scheduler_.sequence_at(admission.slot);
    Answer& answer = answers_.at(id);
    REQUIRE(!answer.over && answer.slot < 0 && admission.tokens == answer.tokens);
    REQUIRE(admission.seed == answer.spec.seed && admission.choice == answer.spec.choice);
    for (const auto& [other_id, other] : answers_) {  // nobody before it waits
      if (other.over || other.slot >= 0 || other_id == id) continue;
      const bool sibling = other.spec.choice > 0;
      const bool later = std::pair(other.spec.order, other_id) > std::pair(answer.spec.order, id);
      const bool same_plan = scheduler_has(other_id);
      REQUIRE(sibling || later || same_plan);
    }
    if (!answer.admitted_once) {
      REQUIRE(scheduler_.num_cached_at_admission(id) == admission.num_cached);
    }
    answer.admitted_once = true;
    answer.slot = admission.slot;
    at_[admission.slot] = id;
    target_.admit(admission.slot, admission.num_cached);
    draft_.admit(admission.slot, admission.num_draft_cached);
  }

  bool scheduler_has(int64_t id) const {
    for (size_t slot = 0; slot < at_.size(); ++slot) {
      if (scheduler_.sequence_at(static_cast<int32_t>(slot)) == id) return true;
    }
    return false;
  }

  // Verification: any number of drafts is accepted; then the answer goes on, or ends.
  void finish(const PlannedWork& w) {
    const int64_t id = at_[w.slot];
    Answer& answer = answers_[id];
    if (below(60) == 0) return end(id);  // failed, or cancelled meanwhile
    const int64_t k = w.num_draft_tokens;
    const bool copied = answer.spec.drafter == DrafterKind::prompt_lookup;
    const int64_t drafted = copied ? below(k + 1) : k;  // the caller found no more to copy
    const bool by_alternative = w.num_alternatives > 0 && below(3) == 0;
    const int64_t accepted = by_alternative ? 1 : below(3) == 0 ? drafted : below(drafted + 1);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i <= accepted; ++i) tokens.push_back(static_cast<int32_t>(below(2)));
    const auto length = static_cast<int64_t>(answer.tokens.size());
    scheduler_.commit(id, tokens, !by_alternative);
    answer.is_stale = by_alternative;
    extend(answer, tokens);
    const auto known = scheduler_.tokens(id);
    REQUIRE(std::equal(known.begin(), known.end(), answer.tokens.begin(), answer.tokens.end()));
    const int64_t verified = by_alternative ? length : length + accepted;
    // What was accepted holds now; the rest is forgotten.
    for (int64_t p = length; p < verified; ++p) target_.cell(w.slot, p) = answer.content[p];
    target_.cached[w.slot] = verified;
    target_.truncate(w.slot, verified);
    if (answer.spec.drafter == DrafterKind::model) {
      const int64_t seen = std::min(draft_.cached[w.slot], verified);
      for (int64_t p = length; p < seen; ++p) draft_.cell(w.slot, p) = answer.content[p];
      draft_.cached[w.slot] = seen;
      draft_.truncate(w.slot, verified);
    }
    if (length + accepted + 1 == answer.spec.max_length || below(50) == 0) end(id);
  }

  std::mt19937_64 random_;
  bool narrow_ = false;
  SchedulerLimits limits_;
  std::optional<AnyLookahead> chooser_;
  Scheduler scheduler_;
  CacheModel target_, draft_;
  std::vector<int64_t> at_;  // [slots]: ids; -1: free
  std::map<int64_t, Answer> answers_;
  int64_t next_id_ = 0, next_request_ = 0, num_open_ = 0, clock_ = 0, work_ = 0;
  uint64_t digest_ = 0;
};

int64_t number_from(const char* name, int64_t otherwise) {
  const char* set = std::getenv(name);
  return set == nullptr ? otherwise : std::atoll(set);
}

TEST(SchedulerTraces, HoldWhatIsPromised) {
  const int64_t first = number_from("OUTRIDER_SCHEDULER_SEED", 0);
  const int64_t count = number_from("OUTRIDER_SCHEDULER_TRACES", 20000);
  Coverage coverage;
  for (int64_t seed = first; seed < first + count; ++seed) {
    try {
      const uint64_t plans = Trace(seed).run(coverage);
      if (seed % 8 == 0) {
        Coverage again;
        ASSERT_EQ(Trace(seed).run(again), plans) << "not deterministic, seed " << seed;
      }
    } catch (const std::logic_error& error) {
      FAIL() << "seed " << seed << ", line " << error.what();
    }
  }
  std::cout << "steps " << coverage.steps << ", preemptions " << coverage.preemptions
            << ", draft reclaims " << coverage.reclaims << ", draft catch-ups "
            << coverage.draft_catch_ups << ", K cut " << coverage.cuts << ", waits "
            << coverage.waits << ", prefix hits " << coverage.prefix_hits << ", shared pages "
            << coverage.shared_pages << ", positions fed again " << coverage.refed << "\n";
  if (count >= 1000) {  // the traces come to where it is narrow
    EXPECT_GT(coverage.preemptions, count / 100);
    EXPECT_GT(coverage.reclaims, count / 100);
    EXPECT_GT(coverage.draft_catch_ups, count / 100);
    EXPECT_GT(coverage.cuts, count / 100);
    EXPECT_GT(coverage.waits, count / 100);
    EXPECT_GT(coverage.prefix_hits, count / 100);
    EXPECT_GT(coverage.shared_pages, count / 100);
    EXPECT_GT(coverage.refed, count / 100);
  }
}

}  // namespace
}  // namespace outrider
