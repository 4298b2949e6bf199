// The other half of SpeculativeStep: what is drafted.
#include <algorithm>

#include "core/digest.h"
#include "spec/speculative_step.h"

namespace outrider {

// Calls act(drafter) for each logit drafter that `takes_part` names for some work, once.
template <typename TakesPart, typename Act>
static void for_each_drafter(std::span<SequenceState> slots, std::span<const SlotWork> work,
                             const TakesPart& takes_part, const Act& act) {
  for (size_t i = 0; i < work.size(); ++i) {
    LogitDrafter* const drafter = slots[work[i].slot].drafter;
    if (drafter == nullptr || !takes_part(work[i])) continue;
    const bool seen = std::any_of(work.begin(), work.begin() + i, [&](const SlotWork& other) {
      return slots[other.slot].drafter == drafter && takes_part(other);
    });
    if (!seen) act(drafter);
  }
}

void SpeculativeStep::prefill_drafts(std::span<SequenceState> slots, std::span<const SlotWork> work,
                                     Stream& stream) {
  const auto prefills = [&](const SlotWork& w) {
    return w.draft_prefill_end > slots[w.slot].drafter->num_seen(w.slot);
  };
  for_each_drafter(
      slots, work, [](const SlotWork&) { return true; },
      [](LogitDrafter* drafter) { drafter->begin_step(); });
  for_each_drafter(slots, work, prefills, [&](LogitDrafter* drafter) {
    contexts_.clear();
    for (const SlotWork& w : work) {
      const SequenceState& state = slots[w.slot];
      if (state.drafter != drafter || !prefills(w)) continue;
      contexts_.push_back(
          {.slot = w.slot, .tokens = std::span(state.tokens).first(w.draft_prefill_end)});
    }
    drafter->prefill(contexts_, stream);
  });
}

// Every work's drafted tokens come to their places on the backend, and what is kept of q.
void SpeculativeStep::draft(std::span<SequenceState> slots, std::span<const SlotWork> work,
                            Stream& stream) {
  draft_rows_used_ = 0;
  propose(work, stream);
  for_each_drafter(
      slots, work, [](const SlotWork& w) { return w.draws(); },
      [&](LogitDrafter* drafter) { draft_with(drafter, slots, work, stream); });
}

// What copy drafters found on rank 0's host.
void SpeculativeStep::propose(std::span<const SlotWork> work, Stream& stream) {
  int64_t count = 0;
  for (size_t i = 0; i < work.size(); ++i) {
    for (size_t j = 0; j < work[i].proposed.size(); ++j) {
      proposed_.host()[count] = work[i].proposed[j];
      proposals_.host()[count] = {
          proposed_.device() + count,
          verifier_.drafted() + place(static_cast<int64_t>(i)) + static_cast<int64_t>(j)};
      ++count;
    }
  }
  if (count == 0) return;
  proposed_.upload(0, count, stream);
  proposals_.upload(0, count, stream);
  backend_.copy_tokens(proposals_.device(), count, stream);
}

// Behind the rows of a first round: the draws of each one's alternatives, from the same logits.
// Returns how many there are of each row; whoever has fewer draws for nobody.
int SpeculativeStep::add_alternative_draws(std::span<const SlotWork> work, int64_t padded) {
  int most = 0;
  for (const int64_t i : drafting_) most = std::max(most, work[i].num_alternatives);
  CHECK(most <= kMaxAlternatives);
  CHECK(draft_rows_used_ + (1 + most) * padded <= max_draft_rows_);
  DraftRow* const first = draft_rows_.host() + draft_rows_used_;
  for (int n = 0; n < most; ++n) {
    DraftRow* const rows = first + (1 + n) * padded;
    std::fill(rows, rows + padded, DraftRow{.drafted = static_cast<int32_t>(nobody_)});
    for (size_t j = 0; j < drafting_.size(); ++j) {
      const SlotWork& w = work[drafting_[j]];
      if (n >= w.num_alternatives) continue;
      rows[j] = first[n * padded + static_cast<int64_t>(j)];
      if (rows[j].processors.mode == VerifyMode::rejection) rows[j].foretells_extra = 1;
      rows[j].processors = of_alternative(rows[j].processors);
      rows[j].masked = rows[j].drafted;
      rows[j].drafted = static_cast<int32_t>(place(drafting_[j]) + w.num_draft_tokens + n);
    }
  }
  return most;
}

// Round i extends every sequence that drafts more than i tokens, in one pass. They stand in order
// of falling K, so that a round's sequences are the first ones of the round before it. Rounds of as
// many rows are one and the same to whoever replays them: what varies is uploaded between them, and
// the logits that verification needs are kept where the token's place says.
void SpeculativeStep::draft_with(LogitDrafter* drafter, std::span<SequenceState> slots,
                                 std::span<const SlotWork> work, Stream& stream) {
  const int64_t vocab = target_.config().vocab_size;
  drafting_.clear();
  for (size_t i = 0; i < work.size(); ++i) {
    if (slots[work[i].slot].drafter == drafter && work[i].draws()) {
      drafting_.push_back(static_cast<int64_t>(i));
    }
  }
  std::stable_sort(drafting_.begin(), drafting_.end(), [&](int64_t a, int64_t b) {
    return work[a].num_draft_tokens > work[b].num_draft_tokens;
  });
  const int rounds = work[drafting_.front()].num_draft_tokens;
  for (int round = 0; round < rounds; ++round) {
    while (work[drafting_.back()].num_draft_tokens <= round) drafting_.pop_back();
    const auto count = static_cast<int64_t>(drafting_.size());
    const int64_t padded = backend_.padded_rows(count);
    CHECK(draft_rows_used_ + padded <= max_draft_rows_);
    DraftRow* const rows = draft_rows_.host() + draft_rows_used_;
    const TensorView logits = draft_logits_.view(DType::f32, {padded, vocab});
    contexts_.clear();
    bool all_greedy = true;
    for (int64_t j = 0; j < count; ++j) {
      const int64_t i = drafting_[j];
      const SequenceState& state = slots[work[i].slot];
      const int32_t* const drafted = verifier_.drafted() + place(i);
      contexts_.push_back(
          {.slot = work[i].slot, .tokens = state.tokens, .drafted = drafted, .num_drafted = round});
      rows[j] = {.processors = state.processors,
                 .key = {state.seed, state.choice, static_cast<uint32_t>(state.tokens.size())},
                 .offset = static_cast<int32_t>(round),
                 .drafted = static_cast<int32_t>(place(i) + round)};
      all_greedy = all_greedy && state.processors.mode == VerifyMode::greedy;
      if (!editor_.edits(work[i].slot)) continue;
      float* const row = logits.rows(j, j + 1).data<float>();
      editor_.add(work[i].slot, drafted, round, row, row, 0, vocab);
    }
    std::fill(rows + count, rows + padded, DraftRow{.drafted = static_cast<int32_t>(nobody_)});
    const int num_draws = 1 + (round == 0 ? add_alternative_draws(work, padded) : 0);
    draft_rows_.upload_to_front(draft_rows_used_, num_draws * padded, stream);
    draft_rows_used_ += num_draws * padded;
    const uint64_t key = drafter->prepare(contexts_, logits, stream);
    const LogitEditor::Batch edited = editor_.upload(padded, stream);
    const uint64_t whose[] = {reinterpret_cast<uintptr_t>(drafter), key,
                              static_cast<uint64_t>(num_draws), all_greedy};
    const uint64_t own_key = digest(whose, sizeof whose);
    // Each rank drafts by itself: a head is split among near ranks alone, which no devices are.
    const auto enqueue = [&] {
      drafter->enqueue(stream);
      editor_.enqueue(edited, stream);
      for (int i = 0; i < num_draws; ++i) {
        backend_.sample_drafts(logits, draft_rows_.device() + i * padded, padded, all_greedy,
                               verifier_.drafted(), q(0), q_logits(0), stream);
      }
    };
    times_.recorded |= backend_.replay(key_of(Pass::draft, padded, edited, own_key), stream,
                                       /*collective=*/false, enqueue);
  }
}

}  // namespace outrider
