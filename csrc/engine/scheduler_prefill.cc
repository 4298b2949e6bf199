// The other half of Scheduler: how many rows of prompts a step has, and whose.
#include <algorithm>

#include "engine/scheduled_sequence.h"
#include "engine/scheduler.h"

namespace outrider {

// Of prompts that run, or that wait and have room. One whose prompt is in the prefix cache only
// decodes.
PromptRows Scheduler::prompt_rows_beside(std::span<ScheduledSequence* const> ready) const {
  if (ready.empty()) return {};
  auto decode_rows = static_cast<int64_t>(ready.size());
  for (const ScheduledSequence* s : ready) decode_rows += s->num_stale();
  PromptRows rows{.most = std::min(limits_.prefill_chunk, limits_.max_rows - decode_rows)};
  for (const ScheduledSequence* s : running_) {
    rows.waiting += s->length() - 1 - s->num_stale() - s->target.num_cached;
  }
  size_t slots = free_slots_.size();
  for (const ScheduledSequence* s : waiting_) {
    if (rows.waiting > rows.most || slots-- == 0 || !has_room(*s)) break;
    const int64_t found = target_pool_.find_prefix(s->shareable(), salt_of(*s)).pages;
    rows.waiting += std::max<int64_t>(0, s->length() - 1 - found * kPageTokens);
  }
  rows.plain = std::min(rows.waiting, rows.most);
  if (limits_.prefill_beside > 0) {
    rows.plain = rows.most = std::min(rows.plain, limits_.prefill_beside);
  } else if (limits_.costs.known() && rows.plain > 0) {
    double decode_ms = limits_.costs.decode_ms(decode_rows);
    for (const ScheduledSequence* s : ready) {
      decode_ms += limits_.costs.context_ms(1, s->target.num_cached);
    }
    const double ms = (limits_.prefill_slowdown - 1) * decode_ms;
    rows.plain = std::max<int64_t>(
        1, limits_.costs.rows_within(std::max(ms, limits_.prefill_ms), decode_rows, 0, rows.plain));
  }
  return rows;
}

// What prompts may take of a step whose decode rows are planned: in the milliseconds of the costs.
void Scheduler::limit_prefill() {
  const int64_t decode_rows = limits_.max_rows - rows_.all;
  rows_.prefill = std::min(rows_.all, limits_.prefill_chunk);
  if (decode_rows == 0) return;
  if (limits_.prefill_beside > 0) {
    rows_.prefill = std::min(rows_.prefill, limits_.prefill_beside);
    return;
  }
  rows_.by_costs = limits_.costs.known();
  if (!rows_.by_costs) return;
  double ms = limits_.costs.decode_ms(decode_rows);
  int64_t sequences = 0;
  int32_t alternatives = 0;
  for (const ScheduledSequence* s : running_) {
    if (!s->work.decode) continue;
    ++sequences;
    alternatives = std::max(alternatives, s->work.num_alternatives);
    ms += limits_.costs.context_ms(s->decode_rows(), s->target.num_cached) +
          limits_.costs.segment_context_ms(s->work.num_alternatives, s->target.num_cached);
  }
  ms += limits_.costs.alternatives_ms(alternatives);
  const double slowness = chooser_ != nullptr ? chooser_->slowness(sequences) : 1;
  rows_.prefill_ms = std::max((limits_.prefill_slowdown - 1) * ms, rows_.prefill_ms_by_drafts);
  const double least_ms = kPrefillShare * rows_.prefill_ms;
  if (chooser_ != nullptr) rows_.prefill_ms += chooser_->owed_to_prompts_ms();
  for (const ScheduledSequence* s : running_) {
    const double most_ms = s->spec.max_step_ms / slowness;
    if (!s->work.decode || most_ms < ms) continue;  // none, or missed already
    if (most_ms - ms >= rows_.prefill_ms) continue;
    rows_.prefill_ms = most_ms - ms;
    rows_.by_objective = true;
  }
  rows_.prefill_ms = std::max({rows_.prefill_ms, least_ms, limits_.prefill_ms});
}

// What is not counted of rows of a prompt from `position` on. The first that asks gets one row at
// least; far behind, where reading the context takes long by itself, that is paid whatever else
// goes, and a share of what there is goes to more rows: one by one, it would take longest.
double Scheduler::prefill_ms_not_counted(int64_t position) const {
  if (rows_.any_prefill) return 0;
  const double one = limits_.costs.added_ms(limits_.max_rows - rows_.all, 1, position);
  if (rows_.by_objective && one <= rows_.prefill_ms) return 0;  // it can be kept
  return std::max(0.0, one - (1 - kPrefillShare) * rows_.prefill_ms);
}

// Rows that a prompt may take from `position` on.
int64_t Scheduler::prefill_room(int64_t position) const {
  if (!rows_.by_costs) return rows_.prefill;
  return limits_.costs.rows_within(rows_.prefill_ms + prefill_ms_not_counted(position),
                                   limits_.max_rows - rows_.all, position, rows_.prefill);
}

void Scheduler::take_prefill_rows(int64_t rows, int64_t position) {
  const int64_t others = limits_.max_rows - rows_.all;
  if (rows_.by_costs) {
    rows_.prefill_ms +=
        prefill_ms_not_counted(position) - limits_.costs.added_ms(others, rows, position);
  }
  rows_.all -= rows;
  rows_.prefill -= rows;
  rows_.any_prefill = true;
  if (!rows_.by_costs) return;
  if (limits_.costs.rows_within(rows_.prefill_ms, others + rows, 0, 1) == 0) rows_.prefill = 0;
}

void Scheduler::plan_prefill(ScheduledSequence& s) {
  const int64_t last = s.length() - 1;  // the last token is a decode row
  const auto feed = [&](CacheShare& share, int64_t end, int64_t& taken) {
    const int64_t begin = share.num_cached;
    if (end == begin) return;
    share.feed(end);
    take_prefill_rows(end - begin, begin);
    taken += end - begin;
    s.in_step = true;
  };

  const int64_t room = prefill_room(s.target.num_cached);
  int64_t end = std::min(last, s.target.num_cached + room);
  if (s.target.num_cached < s.prompt_logits_done) {
    end = std::min(end, s.prompt_logits_done);
  } else if (s.target.num_cached < s.num_prompt_logits) {
    end = std::min({end, s.num_prompt_logits, s.target.num_cached + rows_.prompt_logits});
    rows_.prompt_logits -= end - s.target.num_cached;
    s.work.prompt_logits = end > s.target.num_cached;
    s.prompt_logits_done = end;
  }
  feed(s.target, end, rows_.taken.target);
  const int64_t begin = s.draft.num_cached;
  const int64_t draft_room = s.draft_caught_up() ? 0 : prefill_room(begin);
  const int64_t positions = s.draft_positions(s.usable_lookahead());
  if (draft_room > 0 && has_draft_room(s, positions) && may_catch_up(s)) {
    CHECK(draft_pool_.reserve(s.draft.table, positions));
    feed(s.draft, std::min(last, begin + draft_room), rows_.taken.draft);
    if (!s.exact()) rows_.taken.adaptive_draft += s.draft.num_cached - begin;
  }

  // Nobody is preempted for a sequence that has just got so far: it has its room, or waits.
  if (s.considered || !s.ready_to_decode()) return;
  if (chooser_ != nullptr) s.chosen_lookahead = 0;
  int64_t k = s.lookahead_now();
  if (!s.exact()) k = std::clamp<int64_t>(rows_.all - 1, 0, k);
  if (k > 0 && s.needs_draft_cache() && !draft_pool_.reserve(s.draft.table, s.draft_positions(k))) {
    if (s.exact()) return;
    k = 0;
  }
  if (1 + k <= rows_.all && target_pool_.reserve(s.target.table, s.target_positions(k))) {
    decode(s, k, k == 0 ? 0 : std::min(s.usable_alternatives(), rows_.all - 1 - k));
  }
}

}  // namespace outrider
