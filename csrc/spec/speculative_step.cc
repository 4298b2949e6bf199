#include "spec/speculative_step.h"

#include <algorithm>

#include "core/digest.h"
#include "spec/step_marks.h"

namespace outrider {

namespace {

enum class Pass : uint64_t { target, draft, measured };

// Of a pass to be replayed, which edits these rows of its logits.
uint64_t key_of(Pass pass, int64_t rows, const LogitEditor::Batch& edited, uint64_t parts) {
  const uint64_t key[] = {static_cast<uint64_t>(pass), static_cast<uint64_t>(rows),
                          static_cast<uint64_t>(edited.count), parts};
  return digest(key, sizeof key);
}

// Rows are padded for each drafter, to less than twice as many (Backend::padded_rows).
constexpr int64_t kPadding = 2;

// Its tokens are to be drawn from the sequence's drafter.
bool draws(const SlotWork& work) { return work.num_draft_tokens > 0 && work.proposed.empty(); }

}  // namespace

SpeculativeStep::SpeculativeStep(Backend& backend, Communicator& communicator, Transformer& target,
                                 KvCache& cache, int64_t num_slots, int64_t max_rows)
    : backend_(backend),
      target_(target),
      cache_(cache),
      verifier_(backend, communicator, target.config().vocab_size, target.shard().vocab.begin,
                target.shard().vocab.size(), max_rows, num_slots),
      several_ranks_(communicator.size() > 1),
      max_rows_(max_rows),
      nobody_(num_slots * kMaxDraftTokens),
      max_round_rows_(backend.padded_rows(num_slots)),
      max_draft_rows_(kPadding * num_slots * kMaxDraftTokens),
      rows_(backend, max_rows),
      editor_(backend, target.config().vocab_size, num_slots,
              max_listed_tokens(target.config().eos_token_ids.size()),
              std::max(max_rows, max_round_rows_), max_draft_rows_ + max_rows),
      draft_logits_(backend.allocate(sizeof(float) * max_round_rows_ * target.config().vocab_size)),
      target_logits_(backend.allocate(sizeof(float) * 2 * max_rows * target.shard().vocab.size())),
      q_(backend.allocate(sizeof(RowDistribution) * (nobody_ + 1))),
      q_logits_(backend.allocate(sizeof(float) * nobody_ * target.config().vocab_size)),
      draft_rows_(backend, max_round_rows_, max_draft_rows_),
      proposed_(backend, num_slots * kMaxDraftTokens),
      proposals_(backend, num_slots * kMaxDraftTokens) {
  backend.reserve_verification(max_round_rows_, target.config().vocab_size);
  drafting_.reserve(num_slots);
  contexts_.reserve(num_slots);
  to_verify_.reserve(num_slots);
  raw_rows_.reserve(num_slots);
  queries_.reserve(max_rows);
  outcomes_.reserve(num_slots);
}

std::span<const SlotOutcome> SpeculativeStep::run(std::span<SequenceState> slots,
                                                  std::span<const SlotWork> work, uint64_t agreed,
                                                  Stream& stream) {
  backend_.mark(kStepBegin, stream);
  rows_.begin_step();
  editor_.begin_step(stream);
  edited_rows_ = 0;
  prefill_drafts(slots, work, stream);
  draft(slots, work, stream);
  backend_.mark(kDrafted, stream);

  // One ragged pass: prompt rows, then for each decoding sequence its last token and the drafted
  // ones.
  to_verify_.clear();
  raw_rows_.clear();
  queries_.clear();
  outcomes_.clear();
  for (size_t i = 0; i < work.size(); ++i) add_rows(slots, work, static_cast<int64_t>(i));
  // Steps without prompts are many and alike: they are replayed.
  const bool replayed =
      rows_.num_rows() == rows_.num_logit_rows() && queries_.empty() && rows_.pad();
  const TensorView all_logits = target_logits_.view(
      DType::f32, {edited_rows_ > 0 ? max_rows_ + edited_rows_ : rows_.num_logit_rows(),
                   target_.shard().vocab.size()});
  const TensorView logits = all_logits.rows(0, rows_.num_logit_rows());
  rows_.upload(stream);
  const LogitEditor::Batch edited = editor_.upload(rows_.num_logit_rows(), stream);
  const uint64_t verify_key =
      verifier_.prepare(to_verify_, queries_, all_logits, replayed, agreed, stream);
  backend_.mark(kTargetBegin, stream);
  const auto enqueue = [&] {
    target_.forward(rows_.batch(stream), cache_, logits, stream);
    backend_.mark(kTargetEnd, stream);
    editor_.enqueue(edited, stream);
    verifier_.enqueue(stream);
  };
  if (replayed) {
    backend_.replay(key_of(Pass::target, rows_.num_rows(), edited, verify_key), stream,
                    several_ranks_, enqueue);
  } else {
    enqueue();
  }
  const auto verdicts = verifier_.finish(stream);
  times_.draft = backend_.seconds_between(kStepBegin, kDrafted);
  times_.target = backend_.seconds_between(kTargetBegin, kTargetEnd);
  times_.exchange = verifier_.exchange_seconds();
  times_.verify = backend_.seconds_between(kTargetEnd, kVerified) - times_.exchange;

  const TensorView states = target_.states(rows_.num_rows(), rows_.num_logit_rows());
  size_t verdict = 0, query = 0;
  for (size_t i = 0; i < work.size(); ++i) {
    SlotOutcome& outcome = outcomes_[i];
    const auto next_queries = [&](size_t count) {
      query += count;
      return verifier_.logprobs().subspan(query - count, count);
    };
    outcome.prompt_logprobs = next_queries(outcome.prompt_logprobs.size());
    if (!outcome.decoded) continue;
    outcome.logprobs = next_queries(outcome.logprobs.size());
    outcome.verdict = verdicts[verdict];
    SequenceState& state = slots[work[i].slot];
    commit(state, work[i], verifier_.host_drafted() + place(static_cast<int64_t>(i)),
           outcome.verdict);
    if (state.drafter != nullptr && !outcome.verdict.non_finite) {
      const int64_t row = raw_rows_[verdict] + outcome.verdict.num_accepted;
      state.drafter->take_state(work[i].slot, static_cast<int64_t>(state.tokens.size()),
                                states.rows(row, row + 1), stream);
    }
    ++verdict;
  }
  return outcomes_;
}

double SpeculativeStep::measure_target(int64_t rows, int64_t num_logits, int64_t position,
                                       bool replayed, Stream& stream) {
  rows_.begin_step();
  for (int64_t i = 0; i < rows; ++i) rows_.add(0, 0, position + i, i < num_logits);
  rows_.pad();
  rows_.upload(stream);
  const int64_t padded_logits = rows_.num_logit_rows();
  const TensorView logits =
      target_logits_.view(DType::f32, {padded_logits, target_.shard().vocab.size()});
  const auto pass = [&] {
    target_.forward(rows_.batch(stream), cache_, logits, stream);
    backend_.mark(kTargetEnd, stream);
  };
  backend_.mark(kTargetBegin, stream);
  if (replayed) {
    backend_.replay(key_of(Pass::measured, rows_.num_rows(), {}, padded_logits), stream,
                    several_ranks_, pass);
  } else {
    pass();
  }
  backend_.synchronize(stream);
  return backend_.seconds_between(kTargetBegin, kTargetEnd);
}

double SpeculativeStep::measure_draft(LogitDrafter& drafter, int64_t sequences, int64_t length,
                                      const Processors& processors, Stream& stream) {
  std::vector<SequenceState> slots(sequences);
  std::vector<SlotWork> work(sequences);
  for (int64_t i = 0; i < sequences; ++i) {
    slots[i] = {
        .tokens = std::vector<int32_t>(length), .processors = processors, .drafter = &drafter};
    work[i] = {.slot = i, .decode = true, .num_draft_tokens = 1};
    drafter.truncate(i, 0);
    drafter.take_state(i, 1, target_.states(1, 1), stream);
  }
  drafter.begin_step();
  draft_rows_used_ = 0;
  backend_.mark(kStepBegin, stream);
  draft_with(&drafter, slots, work, stream);
  backend_.mark(kDrafted, stream);
  backend_.synchronize(stream);
  for (int64_t i = 0; i < sequences; ++i) drafter.truncate(i, 0);
  return backend_.seconds_between(kStepBegin, kDrafted);
}

double SpeculativeStep::measure_feed(LogitDrafter& drafter, int64_t length, Stream& stream) {
  const std::vector<int32_t> tokens(length);
  const DraftContext context{.slot = 0, .tokens = tokens};
  drafter.truncate(0, 0);
  drafter.begin_step();
  backend_.mark(kStepBegin, stream);
  drafter.prefill({&context, 1}, stream);
  backend_.mark(kDrafted, stream);
  backend_.synchronize(stream);
  drafter.truncate(0, 0);
  return backend_.seconds_between(kStepBegin, kDrafted);
}

// Rows, verification and queries of one slot, and its outcome with the sizes of what will come.
void SpeculativeStep::add_rows(std::span<SequenceState> slots, std::span<const SlotWork> work,
                               int64_t index) {
  const SlotWork& w = work[index];
  SequenceState& state = slots[w.slot];
  const int32_t* const drafted = verifier_.drafted() + place(index);
  const auto length = static_cast<int64_t>(state.tokens.size());
  CHECK((w.decode ? length + w.num_draft_tokens : w.prefill_end) <= cache_.capacity(w.slot));
  SlotOutcome outcome{.slot = w.slot,
                      .decoded = w.decode,
                      .num_drafted = w.num_draft_tokens,
                      .first_prompt_row = state.num_cached};
  // Places of the queries' results, which are not there yet: their number is what counts.
  static constexpr LogprobRow* kLater = nullptr;

  const bool wants_prompt = w.prompt_logits;
  for (int64_t i = state.num_cached; i < w.prefill_end; ++i) {
    if (wants_prompt) {
      queries_.push_back({.row = rows_.num_logit_rows(),
                          .token = state.tokens[i + 1],
                          .top_n = state.top_prompt_logprobs});
    }
    rows_.add(w.slot, state.tokens[i], i, wants_prompt);
  }
  if (wants_prompt) {
    outcome.prompt_logprobs = {kLater, static_cast<size_t>(w.prefill_end - state.num_cached)};
  }
  state.num_cached = w.prefill_end;
  if (w.decode) {
    CHECK(w.prefill_end == length - 1);
    const int k = w.num_draft_tokens;
    const int64_t raw_row = rows_.num_logit_rows();
    const bool edits = editor_.edits(w.slot);
    raw_rows_.push_back(raw_row);
    to_verify_.push_back({.first_row = edits ? max_rows_ + edited_rows_ : raw_row,
                          .num_drafted = k,
                          .drafted = drafted,
                          .draft_logits = draws(w) ? q_logits(index) : nullptr,
                          .draft_rows = q(index),
                          .processors = state.processors,
                          .key = {state.seed, state.choice, static_cast<uint32_t>(length)},
                          .raw_row = edits && state.top_logprobs >= 0 ? raw_row : -1});
    for (int i = 0; edits && i <= k; ++i) edit_target_row(w.slot, raw_row + i, drafted, i);
    for (int i = 0; i <= k; ++i) {
      if (state.top_logprobs >= 0) {
        queries_.push_back({.row = rows_.num_logit_rows(),
                            .drafted = i < k ? drafted + i : nullptr,
                            .top_n = state.top_logprobs});
      }
      if (i == 0) {
        rows_.add(w.slot, state.tokens.back(), length - 1, true);
      } else {
        rows_.add(w.slot, drafted + i - 1, length - 1 + i, true);
      }
    }
    if (state.top_logprobs >= 0) outcome.logprobs = {kLater, static_cast<size_t>(k) + 1};
  }
  outcomes_.push_back(outcome);
}

// The row behind drafted[0 … i) goes to the next place for edited ones.
void SpeculativeStep::edit_target_row(int64_t slot, int64_t row, const int32_t* drafted, int i) {
  const Range vocab = target_.shard().vocab;
  float* const logits = static_cast<float*>(target_logits_.data());
  editor_.add(slot, drafted, i, logits + row * vocab.size(),
              logits + (max_rows_ + edited_rows_++) * vocab.size(), vocab.begin, vocab.size());
}

// The accepted prefix and the extra token; rejected positions leave no trace.
void SpeculativeStep::commit(SequenceState& state, const SlotWork& w, const int32_t* drafted,
                             const Verdict& verdict) {
  const auto length = static_cast<int64_t>(state.tokens.size());
  const int64_t verified = verdict.non_finite ? length - 1 : length + verdict.num_accepted;
  if (!verdict.non_finite) {
    state.tokens.insert(state.tokens.end(), drafted, drafted + verdict.num_accepted);
    state.tokens.push_back(verdict.extra_token);
    editor_.commit(w.slot, std::span(state.tokens).subspan(length));
  }
  state.num_cached = verified;
  if (state.drafter != nullptr) state.drafter->truncate(w.slot, verified);
}

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
  for_each_drafter(slots, work, draws,
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

// Round i extends every sequence that drafts more than i tokens, in one pass. They stand in order
// of falling K, so that a round's sequences are the first ones of the round before it. Rounds of as
// many rows are one and the same to whoever replays them: what varies is uploaded between them, and
// the logits that verification needs are kept where the token's place says.
void SpeculativeStep::draft_with(LogitDrafter* drafter, std::span<SequenceState> slots,
                                 std::span<const SlotWork> work, Stream& stream) {
  const int64_t vocab = target_.config().vocab_size;
  drafting_.clear();
  for (size_t i = 0; i < work.size(); ++i) {
    if (slots[work[i].slot].drafter == drafter && draws(work[i])) {
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
      if (!editor_.edits(work[i].slot)) continue;
      float* const row = logits.rows(j, j + 1).data<float>();
      editor_.add(work[i].slot, drafted, round, row, row, 0, vocab);
    }
    std::fill(rows + count, rows + padded, DraftRow{.drafted = static_cast<int32_t>(nobody_)});
    draft_rows_.upload_to_front(draft_rows_used_, padded, stream);
    draft_rows_used_ += padded;
    const uint64_t key = drafter->prepare(contexts_, logits, stream);
    const LogitEditor::Batch edited = editor_.upload(padded, stream);
    const uint64_t whose[] = {reinterpret_cast<uintptr_t>(drafter), key};
    const uint64_t own_key = digest(whose, sizeof whose);
    // Each rank drafts by itself: a head is split among near ranks alone, which no devices are.
    const auto enqueue = [&] {
      drafter->enqueue(stream);
      editor_.enqueue(edited, stream);
      backend_.sample_drafts(logits, draft_rows_.device(), padded, verifier_.drafted(), q(0),
                             q_logits(0), stream);
    };
    backend_.replay(key_of(Pass::draft, padded, edited, own_key), stream, /*collective=*/false,
                    enqueue);
  }
}

}  // namespace outrider
