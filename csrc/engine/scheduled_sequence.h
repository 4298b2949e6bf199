// ScheduledSequence: where the scheduler keeps one answer in the making: its tokens, its pages, and
// its part in the step that is planned or under way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "engine/scheduler.h"

namespace outrider {

// What a sequence has in one of the two caches.
struct CacheShare {
  PageTable table;
  int64_t num_cached =
      0;  // positions of known tokens, those that the step under way feeds included
  int64_t num_granted = 0;  // pages, from the front, that the ranks know of
  bool restarted = false;   // what the ranks know of is not so any more

  // Feeds positions up to `end`. A page that may be shared is never written.
  void feed(int64_t end) {
    CHECK(table.num_published * kPageTokens <= num_cached && end <= table.capacity());
    num_cached = end;
  }

  void truncate(PagePool& pool, int64_t length) {
    pool.truncate(table, length);
    num_granted = std::min(num_granted, static_cast<int64_t>(table.pages.size()));
  }

  // Tells the ranks of the pages that they do not know of.
  void grant(int32_t slot, std::vector<PageGrant>& grants) {
    const auto num_pages = static_cast<int64_t>(table.pages.size());
    if (num_granted == num_pages && !restarted) return;
    grants.push_back({.slot = slot,
                      .first = static_cast<int32_t>(num_granted),
                      .pages = {table.pages.begin() + num_granted, table.pages.end()}});
    num_granted = num_pages;
    restarted = false;
  }
};

struct ScheduledSequence {
  static constexpr int32_t kNoSlot = -1;

  explicit ScheduledSequence(SequenceSpec given)
      : spec(std::move(given)),
        tokens(std::move(spec.prompt)),
        num_prompt_logits(spec.prompt_logits && spec.choice == 0 ? length() - 1 : 0) {}

  SequenceSpec spec;                // without its prompt
  std::vector<int32_t> tokens;      // prompt and emitted
  int64_t num_prompt_logits;        // rows, from the front, whose logits are wanted …
  int64_t prompt_logits_done = 0;   // … and are had, or come with the step under way
  int64_t found_at_admission = -1;  // positions, at the first; -1: never admitted

  int32_t slot = kNoSlot;    // kNoSlot: waits
  uint64_t last_served = 0;  // the step in which it last decoded, or was admitted
  CacheShare target, draft;
  // The target's places of known tokens behind those cached hold a draft that was refused: the step
  // that decodes next feeds them again.
  bool is_stale = false;
  PlannedWork work;                            // decode stays set until the step is committed
  bool in_step = false;                        // whether there is any work
  bool considered = false;                     // when the decodes of the step were planned
  int64_t least_rows = 0;                      // that it was owed then
  int64_t chosen_lookahead = kMaxDraftTokens;  // K at most, of the step that is planned
  int64_t chosen_alternatives = 0;             // to its first token, likewise
  int64_t num_refed = 0;                       // positions that its step feeds again

  bool exact() const { return spec.lookahead_is_exact; }
  int64_t length() const { return static_cast<int64_t>(tokens.size()); }

  void begin_step() {
    work = {.slot = slot};
    in_step = considered = false;
    num_refed = 0;
  }

  // K of which all drafts can be used: within max_tokens and the drafter's context.
  int64_t usable_lookahead() const {
    if (spec.drafter == DrafterKind::none) return 0;
    const int64_t most =
        std::min(spec.max_length - length() - 1, spec.max_draft_positions - length());
    return std::clamp<int64_t>(spec.lookahead, 0, std::max<int64_t>(most, 0));
  }
  int64_t usable_alternatives() const { return usable_lookahead() > 0 ? spec.alternatives : 0; }
  bool needs_draft_cache() const {
    return spec.drafter == DrafterKind::model && usable_lookahead() > 0;
  }
  // Positions before the last token that its drafter's cache lacks.
  int64_t num_missed() const { return needs_draft_cache() ? length() - 1 - draft.num_cached : 0; }
  // The drafter feeds a few positions itself when it drafts.
  bool draft_caught_up() const { return num_missed() <= kMaxDraftTokens; }
  int64_t lookahead_now() const {
    if (!draft_caught_up()) return 0;
    return exact() ? usable_lookahead() : std::min(usable_lookahead(), chosen_lookahead);
  }
  int64_t num_stale() const { return is_stale ? length() - 1 - target.num_cached : 0; }
  bool ready_to_decode() const {
    return target.num_cached + num_stale() == length() - 1 && (!exact() || draft_caught_up());
  }
  // Of the target's, in the step that is planned.
  int64_t decode_rows() const {
    return 1 + num_refed + work.num_draft_tokens + work.num_alternatives;
  }
  // Tokens whose pages may be shared at an admission: prompt rows whose logits are still wanted
  // have to be computed.
  std::span<const int32_t> shareable() const {
    if (prompt_logits_done == num_prompt_logits) return tokens;
    return std::span(tokens).first(prompt_logits_done + 1);
  }

  // What a cache must hold for a step with K = num_draft_tokens; the drafter never sees its last
  // draft.
  int64_t target_positions(int64_t num_draft_tokens) const { return length() + num_draft_tokens; }
  int64_t draft_positions(int64_t num_draft_tokens) const {
    return length() + num_draft_tokens - 1;
  }
};

}  // namespace outrider
