#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/digest.h"
#include "core/error.h"
#include "engine/scheduled_sequence.h"

namespace outrider {

namespace {

constexpr uint64_t kPrivateSalt = 0x70726976;  // sets salts of requests apart from tenants'

// Whether `length` positions fit where `spare` pages are to be left. Pages in use that would be
// shared cost nothing.
bool fits(const PagePool& pool, std::span<const int32_t> known, uint64_t salt, int64_t length,
          int64_t spare) {
  return PagePool::pages_for(length) - pool.find_prefix(known, salt).in_use + spare <=
         pool.num_available();
}

bool holds_draft_pages(const ScheduledSequence* s) { return !s->draft.table.pages.empty(); }

}  // namespace

bool Scheduler::InOrder::operator()(const ScheduledSequence* a, const ScheduledSequence* b) const {
  return std::tie(a->spec.order, a->spec.id) < std::tie(b->spec.order, b->spec.id);
}

Scheduler::Scheduler(SchedulerLimits limits)
    : limits_(std::move(limits)),
      target_pool_(limits_.num_pages),
      draft_pool_(limits_.num_draft_pages),
      slots_(limits_.num_slots, nullptr) {
  CHECK(limits_.num_slots > 0 && limits_.num_pages > 0);
  CHECK(limits_.max_rows >= kMaxDraftTokens + 2);
  CHECK(limits_.prefill_chunk > 0 && limits_.prefill_beside >= 0);
  for (auto slot = static_cast<int32_t>(limits_.num_slots) - 1; slot >= 0; --slot) {
    free_slots_.push_back(slot);
  }
}

Scheduler::~Scheduler() = default;

void Scheduler::add(SequenceSpec spec) {
  CHECK(!spec.prompt.empty() && static_cast<int64_t>(spec.prompt.size()) < spec.max_length);
  CHECK(spec.lookahead >= 0 && spec.lookahead <= kMaxDraftTokens && !std::isnan(spec.order));
  CHECK(spec.alternatives >= 0 && spec.alternatives <= kMaxAlternatives);
  CHECK(spec.drafter != DrafterKind::model || limits_.num_draft_pages > 0);
  const int64_t most = spec.max_length + kMaxDraftTokens + 1;
  CHECK(PagePool::pages_for(most) <= limits_.num_pages);
  if (spec.drafter == DrafterKind::model && spec.lookahead_is_exact) {
    const int64_t most_drafted = std::min(most, spec.max_draft_positions);
    CHECK(PagePool::pages_for(most_drafted) <= limits_.num_draft_pages);
  }
  const auto [at, is_new] = sequences_.try_emplace(spec.id);
  CHECK(is_new);
  at->second = std::make_unique<ScheduledSequence>(std::move(spec));
  ScheduledSequence& s = *at->second;
  if (s.spec.choice == 0) siblings_.try_emplace(s.spec.request);
  const auto leader = siblings_.find(s.spec.request);
  if (s.spec.choice > 0 && leader != siblings_.end()) {
    leader->second.push_back(&s);
  } else {
    waiting_.insert(&s);
  }
}

void Scheduler::remove(int64_t id, bool spoilt) {
  ScheduledSequence& s = find(id);
  if (s.slot != ScheduledSequence::kNoSlot) {
    if (spoilt) {
      target_pool_.forget(s.target.table);
    } else if (!s.work.decode) {
      publish(s);
    }
    leave_slot(s);
  } else if (waiting_.erase(&s) == 0) {
    std::erase(siblings_.at(s.spec.request), &s);
  }
  if (s.spec.choice == 0) free_siblings(s);
  sequences_.erase(id);
}

StepPlan Scheduler::plan(LookaheadChooser* chooser) {
  chooser_ = chooser;
  for (ScheduledSequence* s : running_) {
    CHECK(!s->work.decode && s->length() < s->spec.max_length);
    publish(*s);
    s->begin_step();
  }
  StepPlan plan{.step = step_};
  rows_ = {.all = limits_.max_rows};
  plan_decodes();
  limit_prefill();
  rows_.prompt_logits = kMaxPromptLogitRows;
  for (ScheduledSequence* s : running_) plan_prefill(*s);
  while (rows_.prefill > 0 && !free_slots_.empty() && !waiting_.empty()) {
    ScheduledSequence& s = **waiting_.begin();
    if (!admit(s, plan)) break;
    plan_prefill(s);
  }
  for (ScheduledSequence* s : running_) emit(*s, plan);
  CHECK(running_.empty() || !plan.work.empty());
  if (!plan.work.empty()) ++step_;
  return plan;
}

// What the last step has fed can be found from now on.
void Scheduler::publish(ScheduledSequence& s) {
  target_pool_.publish(s.target.table, s.tokens, s.target.num_cached);
  draft_pool_.publish(s.draft.table, s.tokens, s.draft.num_cached);
  if (s.spec.choice == 0 && s.ready_to_decode()) free_siblings(s);
}

// Those that waited longest first. Whoever need not draft exactly K leaves a row for each behind;
// their drafts leave prompts the rows that they would have without, or a quarter of the step.
void Scheduler::plan_decodes() {
  std::vector<ScheduledSequence*> ready;
  int64_t owed = 0;  // rows that the sequences to come take at least
  const auto least = [](const ScheduledSequence& s) {
    return 1 + s.num_stale() + (s.exact() ? s.usable_lookahead() + s.usable_alternatives() : 0);
  };
  int64_t missed = 0;  // that drafters' caches lack of sequences which wait for that
  for (ScheduledSequence* s : running_) {
    s->chosen_lookahead = kMaxDraftTokens;
    s->chosen_alternatives = s->usable_alternatives();
    if (s->exact() && !s->draft_caught_up()) missed += s->num_missed();
    if (!s->ready_to_decode()) continue;
    ready.push_back(s);
    s->considered = true;
    owed += s->least_rows = least(*s);
  }
  const PromptRows prompts = prompt_rows_beside(ready);
  const bool others_wait =
      ready.size() < running_.size() || (!waiting_.empty() && !free_slots_.empty());
  const int64_t most_kept =
      std::max<int64_t>(1, std::min(limits_.max_rows / 4, limits_.max_rows - owed));
  const int64_t kept = others_wait ? std::clamp<int64_t>(prompts.plain + missed, 1, most_kept) : 0;
  rows_.all -= kept;
  if (chooser_ != nullptr) {
    choose_lookahead(ready, {prompts, std::max<int64_t>(rows_.all - owed, 0)});
  }
  std::stable_sort(ready.begin(), ready.end(),
                   [](const auto* a, const auto* b) { return a->last_served < b->last_served; });
  for (ScheduledSequence* s : ready) {
    owed -= s->least_rows;
    if (s->slot == ScheduledSequence::kNoSlot) continue;  // preempted for one before it
    const int64_t needed = 1 + s->num_stale();
    int64_t k = s->lookahead_now();
    if (!s->exact()) k = std::clamp<int64_t>(rows_.all - owed - needed, 0, k);
    if (needed + k > rows_.all) continue;
    k = make_target_room(*s, make_draft_room(*s, k));
    if (s->slot == ScheduledSequence::kNoSlot) continue;
    if (!s->exact() && k < s->lookahead_now()) rows_.prefill_ms_by_drafts = 0;
    const int64_t room = std::max<int64_t>(rows_.all - owed - needed - k, 0);
    decode(*s, k, k == 0 ? 0 : std::min(s->chosen_alternatives, room));
  }
  rows_.all += kept;
}

void Scheduler::choose_lookahead(std::span<ScheduledSequence* const> ready, const StepRoom& room) {
  choices_.clear();
  for (const ScheduledSequence* s : ready) {
    choices_.push_back({.id = s->spec.id,
                        .exact = s->exact(),
                        .tokens = s->tokens,
                        .num_draft_tokens = static_cast<int32_t>(s->lookahead_now()),
                        .num_alternatives = static_cast<int32_t>(s->usable_alternatives()),
                        .num_refed = s->num_stale()});
  }
  rows_.prefill_ms_by_drafts = chooser_->choose(choices_, room);
  for (size_t i = 0; i < ready.size(); ++i) {
    const int32_t k = choices_[i].num_draft_tokens;
    CHECK(ready[i]->exact() || (k >= 0 && k <= ready[i]->lookahead_now() &&
                                k + choices_[i].num_alternatives <= kMaxDraftTokens));
    ready[i]->chosen_lookahead = k;
    if (!ready[i]->exact()) ready[i]->chosen_alternatives = choices_[i].num_alternatives;
  }
}

bool Scheduler::may_catch_up(const ScheduledSequence& s) const {
  if (chooser_ == nullptr || s.exact()) return true;
  return chooser_->may_catch_up({.id = s.spec.id,
                                 .rows = s.num_missed(),
                                 .tokens_left = s.spec.max_length - s.length(),
                                 .most_drafted = s.usable_lookahead()});
}

void Scheduler::decode(ScheduledSequence& s, int64_t num_draft_tokens, int64_t num_alternatives) {
  CHECK(num_draft_tokens + num_alternatives <= kMaxDraftTokens);
  s.num_refed = s.num_stale();
  s.target.feed(s.length() - 1);
  s.work.decode = 1;
  s.work.num_draft_tokens = static_cast<int32_t>(num_draft_tokens);
  s.work.num_alternatives = static_cast<int32_t>(num_alternatives);
  s.last_served = step_;
  s.in_step = true;
  rows_.all -= s.decode_rows();
  rows_.prefill = std::min(rows_.prefill, rows_.all);
}

// Returns how many tokens it can draft. It may have lost its slot.
int64_t Scheduler::make_draft_room(ScheduledSequence& s, int64_t k) {
  if (!s.needs_draft_cache()) return k;
  while (k > 0 && !draft_pool_.reserve(s.draft.table, s.draft_positions(k))) {
    if (reclaim_draft(s)) continue;
    if (!s.exact()) return 0;
    preempt(**std::find_if(running_.rbegin(), running_.rend(), holds_draft_pages));
    if (s.slot == ScheduledSequence::kNoSlot) return 0;
  }
  return k;
}

// The same for the target, where the last token's row is needed too.
int64_t Scheduler::make_target_room(ScheduledSequence& s, int64_t k) {
  while (s.slot != ScheduledSequence::kNoSlot &&
         !target_pool_.reserve(s.target.table, s.target_positions(k))) {
    const int64_t room = s.target.table.capacity() - s.length();
    if (!s.exact() && room >= 0) return room;  // fewer drafts rather than a preemption
    preempt(*running_.back());
  }
  return k;
}

// From the last in order that can do without; one that can do without itself takes from none that
// goes before it.
bool Scheduler::reclaim_draft(const ScheduledSequence& for_whom) {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    ScheduledSequence& s = **it;
    if (&s == &for_whom && !s.exact()) return false;
    if (s.exact() || !holds_draft_pages(&s)) continue;
    take_drafts(s);
    if (s.ready_to_decode()) rows_.prefill_ms_by_drafts = 0;  // it would wait without drafts
    drop_draft(s);
    return true;
  }
  return false;
}

// What it was to draft leaves its rows to others.
void Scheduler::take_drafts(ScheduledSequence& s) {
  rows_.all += s.work.num_draft_tokens + s.work.num_alternatives;
  s.work.num_draft_tokens = s.work.num_alternatives = 0;
}

void Scheduler::drop_draft(ScheduledSequence& s) {
  draft_pool_.release(s.draft.table);
  s.draft = {.restarted = true};
  draft_pool_.take_prefix(s.draft.table, {}, salt_of(s));
}

int64_t Scheduler::num_draft_users() const {
  return std::count_if(running_.begin(), running_.end(), holds_draft_pages);
}

// Room for the drafter to catch up, where nobody has to give pages for it, nor to wait for them.
bool Scheduler::has_draft_room(const ScheduledSequence& s, int64_t positions) const {
  const PageTable& table = s.draft.table;
  if (positions <= table.capacity()) return true;
  const auto has_to_draft = [](const ScheduledSequence* other) {
    return other->exact() && other->needs_draft_cache();
  };
  if (!s.exact() && !waiting_.empty() && has_to_draft(*waiting_.begin())) return false;
  return fits(draft_pool_, {}, 0, positions - table.capacity(), num_draft_users());
}

// Pages for the whole prompt and one step, and one for each that runs. What runs alone has them:
// add() checks it. What can do without drafts waits for no page of the drafter's.
bool Scheduler::has_room(const ScheduledSequence& s) const {
  if (running_.empty()) return true;
  const int64_t k = s.usable_lookahead();
  const uint64_t salt = salt_of(s);
  const auto known = s.shareable();
  const auto spare = static_cast<int64_t>(running_.size());
  return fits(target_pool_, known, salt, s.target_positions(k), spare) &&
         (!s.exact() || !s.needs_draft_cache() ||
          fits(draft_pool_, known, salt, s.draft_positions(k), num_draft_users()));
}

// The pages are taken at once, so that a prefill never stops half-way.
bool Scheduler::admit(ScheduledSequence& s, StepPlan& plan) {
  if (!has_room(s)) return false;
  const int64_t k = s.usable_lookahead();
  const uint64_t salt = salt_of(s);
  const auto known = s.shareable();
  s.target.num_cached = target_pool_.take_prefix(s.target.table, known, salt);
  CHECK(target_pool_.reserve(s.target.table, s.target_positions(k)));
  if (s.needs_draft_cache()) {
    s.draft.num_cached = draft_pool_.take_prefix(s.draft.table, known, salt);
    // Others have theirs once their drafter catches up.
    if (s.exact()) CHECK(draft_pool_.reserve(s.draft.table, s.draft_positions(k)));
  }
  if (s.found_at_admission < 0) {
    s.found_at_admission = s.target.num_cached;
    if (uses_prefix_cache(s)) {
      counts_.prefix_queries += s.length();
      counts_.prefix_hits += s.target.num_cached;
    }
  }
  s.slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[s.slot] = &s;
  s.last_served = step_;
  s.begin_step();
  waiting_.erase(&s);
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &s, InOrder()), &s);
  plan.admitted.push_back({.slot = s.slot,
                           .choice = s.spec.choice,
                           .tokens = s.tokens,
                           .num_prompt_tokens = s.spec.num_prompt_tokens,
                           .rules = s.spec.rules,
                           .processors = s.spec.processors,
                           .seed = s.spec.seed,
                           .drafter = s.spec.drafter,
                           .num_cached = s.target.num_cached,
                           .num_draft_cached = s.draft.num_cached});
  return true;
}

void Scheduler::emit(ScheduledSequence& s, StepPlan& plan) {
  s.target.grant(s.slot, plan.target_pages);
  s.draft.grant(s.slot, plan.draft_pages);
  if (!s.in_step) return;
  s.work.prefill_end = s.target.num_cached;
  s.work.draft_prefill_end = s.draft.num_cached;
  plan.work.push_back(s.work);
}

void Scheduler::commit(int64_t id, std::span<const int32_t> tokens, bool in_cache) {
  ScheduledSequence& s = find(id);
  const int64_t length = s.length();
  const int64_t k = s.work.num_draft_tokens;
  CHECK(s.work.decode && !tokens.empty() && static_cast<int64_t>(tokens.size()) <= k + 1);
  const int64_t seen = k > 0 ? s.draft_positions(k) : s.draft.num_cached;
  const bool drafted_from_cache = s.needs_draft_cache();
  s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
  CHECK(s.length() <= s.spec.max_length);
  s.work.decode = 0;
  const int64_t verified = in_cache ? s.length() - 1 : length;
  s.target.num_cached = verified;
  s.is_stale = !in_cache;
  s.target.truncate(target_pool_, verified);
  if (drafted_from_cache) {
    s.draft.num_cached = std::min(seen, verified);
    s.draft.truncate(draft_pool_, verified);
  }
  publish(s);
  if (drafted_from_cache && !s.needs_draft_cache()) drop_draft(s);  // it cannot draft any more
}

// It gives up its slot and pages, and waits to be computed anew.
void Scheduler::preempt(ScheduledSequence& s) {
  CHECK(running_.size() > 1);  // what runs alone has room: add() checks it
  if (s.work.decode) rows_.all += s.decode_rows();
  leave_slot(s);
  waiting_.insert(&s);
  ++counts_.num_preemptions;
}

void Scheduler::leave_slot(ScheduledSequence& s) {
  target_pool_.release(s.target.table);
  draft_pool_.release(s.draft.table);
  s.target = {};
  s.draft = {};
  s.is_stale = false;
  s.work = {};
  running_.erase(std::lower_bound(running_.begin(), running_.end(), &s, InOrder()));
  slots_[s.slot] = nullptr;
  free_slots_.push_back(s.slot);
  s.slot = ScheduledSequence::kNoSlot;
}

// Choice 0 has its prompt's pages published, the drafter's too where it has to draft, or is gone.
void Scheduler::free_siblings(ScheduledSequence& s) {
  const auto siblings = siblings_.find(s.spec.request);
  if (siblings == siblings_.end()) return;
  waiting_.insert(siblings->second.begin(), siblings->second.end());
  siblings_.erase(siblings);
}

bool Scheduler::uses_prefix_cache(const ScheduledSequence& s) const {
  return limits_.prefix_cache && !s.spec.prompt_logits;
}

// Tenants share nothing with each other; without the prefix cache, requests neither.
uint64_t Scheduler::salt_of(const ScheduledSequence& s) const {
  if (uses_prefix_cache(s)) return s.spec.salt;
  return digest(&s.spec.request, sizeof s.spec.request, kPrivateSalt);
}

int64_t Scheduler::sequence_at(int32_t slot) const {
  const ScheduledSequence* s = slots_.at(slot);
  return s == nullptr ? -1 : s->spec.id;
}

std::span<const int32_t> Scheduler::tokens(int64_t id) const { return find(id).tokens; }

int64_t Scheduler::num_missed(int64_t id) const { return find(id).num_missed(); }

int64_t Scheduler::num_refed(int64_t id) const { return find(id).num_refed; }

int64_t Scheduler::num_cached_at_admission(int64_t id) const {
  return std::max<int64_t>(find(id).found_at_admission, 0);
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = counts_;
  stats.num_running = static_cast<int64_t>(running_.size());
  stats.num_waiting = static_cast<int64_t>(sequences_.size() - running_.size());
  stats.pages_used = target_pool_.num_used();
  stats.num_pages = target_pool_.num_pages();
  stats.draft_pages_used = draft_pool_.num_used();
  stats.num_draft_pages = draft_pool_.num_pages();
  return stats;
}

ScheduledSequence& Scheduler::find(int64_t id) const {
  const auto at = sequences_.find(id);
  CHECK(at != sequences_.end());
  return *at->second;
}

}  // namespace outrider
