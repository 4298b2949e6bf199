#include "spec/speculative_step.h"

#include <algorithm>

#include "core/digest.h"
#include "spec/step_marks.h"

namespace outrider {

namespace {

// Rows are padded for each drafter, to less than twice as many (Backend::padded_rows).
constexpr int64_t kPadding = 2;

// Of the target's pass: an alternative is in the segment behind the one before it, and drafts that
// have alternatives in the last, so that the cache ends with theirs.
constexpr int kDraftSegment = kMaxAlternatives + 1;

// Which alternative is the extra token where the first draft was refused; -1: none. verdicts: of
// the drafts, then of each alternative. drafted: the alternatives.
int find_alternative(const int32_t* drafted, std::span<const Verdict> verdicts) {
  const Verdict& of_drafts = verdicts.front();
  if (of_drafts.non_finite != 0 || of_drafts.num_accepted > 0) return -1;
  for (size_t i = 1; i < verdicts.size(); ++i) {
    if (drafted[i - 1] != of_drafts.extra_token) continue;
    return verdicts[i].non_finite != 0 ? -1 : static_cast<int>(i) - 1;
  }
  return -1;
}

}  // namespace

// Of a pass to be replayed, which edits these rows of its logits.
uint64_t SpeculativeStep::key_of(Pass pass, int64_t rows, const LogitEditor::Batch& edited,
                                 uint64_t parts) {
  const uint64_t key[] = {static_cast<uint64_t>(pass), static_cast<uint64_t>(rows),
                          static_cast<uint64_t>(edited.count), parts};
  return digest(key, sizeof key);
}

// Of one over rows_.
uint64_t SpeculativeStep::target_key(Pass pass, const LogitEditor::Batch& edited,
                                     uint64_t parts) const {
  const uint64_t key[] = {parts, static_cast<uint64_t>(rows_.context())};
  return key_of(pass, rows_.num_rows(), edited, digest(key, sizeof key));
}

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
      max_draft_rows_(kPadding * num_slots * (kMaxDraftTokens + kMaxAlternatives)),
      rows_(backend, max_rows),
      editor_(backend, target.config().vocab_size, num_slots,
              max_listed_tokens(target.config().eos_token_ids.size()),
              std::max(max_rows, max_round_rows_),
              kPadding * num_slots * kMaxDraftTokens + max_rows),
      draft_logits_(backend.allocate(sizeof(float) * max_round_rows_ * target.config().vocab_size)),
      target_logits_(backend.allocate(sizeof(float) * 2 * max_rows * target.shard().vocab.size())),
      q_(backend.allocate(sizeof(RowDistribution) * (nobody_ + 1))),
      q_logits_(backend.allocate(sizeof(float) * nobody_ * target.config().vocab_size)),
      draft_rows_(backend, (1 + kMaxAlternatives) * max_round_rows_, max_draft_rows_),
      proposed_(backend, num_slots * kMaxDraftTokens),
      proposals_(backend, num_slots * kMaxDraftTokens) {
  backend.reserve_verification(max_round_rows_, target.config().vocab_size);
  drafting_.reserve(num_slots);
  contexts_.reserve(num_slots);
  to_verify_.reserve(max_rows);
  raw_rows_.reserve(num_slots);
  queries_.reserve(max_rows);
  outcomes_.reserve(num_slots);
}

std::span<const SlotOutcome> SpeculativeStep::run(std::span<SequenceState> slots,
                                                  std::span<const SlotWork> work, uint64_t agreed,
                                                  Stream& stream) {
  times_ = {};
  backend_.mark(kStepBegin, stream);
  rows_.begin_step();
  editor_.begin_step(stream);
  edited_rows_ = 0;
  prefill_drafts(slots, work, stream);
  draft(slots, work, stream);
  backend_.mark(kDrafted, stream);

  // One ragged pass: prompt rows, then for each decoding sequence what it feeds again, its last
  // token, the drafted ones and their alternatives.
  to_verify_.clear();
  raw_rows_.clear();
  queries_.clear();
  outcomes_.clear();
  for (size_t i = 0; i < work.size(); ++i) add_rows(slots, work, static_cast<int64_t>(i));
  // Steps without prompts are many and alike: they are replayed, but for those with segments, of
  // which hardly two are.
  const bool replayed = rows_.num_rows() == rows_.num_logit_rows() && queries_.empty() &&
                        !rows_.segmented() && rows_.pad();
  const TensorView all_logits = target_logits_.view(
      DType::f32, {edited_rows_ > 0 ? max_rows_ + edited_rows_ : rows_.num_logit_rows(),
                   target_.shard().vocab.size()});
  const TensorView logits = all_logits.rows(0, rows_.num_logit_rows());
  rows_.upload(stream);
  const LogitEditor::Batch edited = editor_.upload(rows_.num_logit_rows(), stream);
  const uint64_t verify_key = verifier_.prepare(
      to_verify_, queries_, all_logits, replayed ? rows_.num_logit_rows() : 0, agreed, stream);
  backend_.mark(kTargetBegin, stream);
  const auto enqueue = [&] {
    target_.forward(rows_.batch(stream), cache_, logits, stream);
    backend_.mark(kTargetEnd, stream);
    editor_.enqueue(edited, stream);
    verifier_.enqueue(stream);
  };
  if (replayed) {
    times_.recorded |= backend_.replay(target_key(Pass::target, edited, verify_key), stream,
                                       several_ranks_, enqueue);
  } else {
    enqueue();
  }
  const auto verdicts = verifier_.finish(stream);
  times_.draft = backend_.seconds_between(kStepBegin, kDrafted);
  times_.target = backend_.seconds_between(kTargetBegin, kTargetEnd);
  times_.exchange = verifier_.exchange_seconds();
  times_.verify = backend_.seconds_between(kTargetEnd, kVerified) - times_.exchange;

  const TensorView states =
      target_.states(rows_.num_rows(), rows_.num_logit_rows(), rows_.segmented());
  size_t decoded = 0, verdict = 0, query = 0;
  for (size_t i = 0; i < work.size(); ++i) {
    SlotOutcome& outcome = outcomes_[i];
    const auto next_queries = [&](size_t count) {
      query += count;
      return verifier_.logprobs().subspan(query - count, count);
    };
    outcome.prompt_logprobs = next_queries(outcome.prompt_logprobs.size());
    if (!outcome.decoded) continue;
    outcome.logprobs = next_queries(outcome.logprobs.size());
    const auto of_work = verdicts.subspan(verdict, 1 + outcome.num_alternatives);
    verdict += of_work.size();
    outcome.verdict = of_work.front();
    for (const Verdict& alternative : of_work.subspan(1)) {
      outcome.verdict.gathered += alternative.gathered;
    }
    SequenceState& state = slots[work[i].slot];
    const int32_t* drafted = verifier_.host_drafted() + place(static_cast<int64_t>(i));
    const int32_t* const alternatives = drafted + outcome.num_drafted;
    outcome.alternative = find_alternative(alternatives, of_work);
    outcome.in_cache = outcome.alternative < 0;
    int64_t row = raw_rows_[decoded++];
    if (outcome.in_cache) {
      row += outcome.verdict.num_accepted;
    } else {
      row += outcome.num_drafted + 1 + outcome.alternative;
      drafted = alternatives + outcome.alternative;
    }
    commit(state, work[i], drafted, outcome, of_work[1 + outcome.alternative].extra_token);
    if (state.drafter != nullptr && !outcome.verdict.non_finite) {
      state.drafter->take_state(work[i].slot, static_cast<int64_t>(state.tokens.size()),
                                states.rows(row, row + 1), stream);
    }
  }
  return outcomes_;
}

double SpeculativeStep::measure_target(int64_t rows, int64_t num_logits, int64_t position,
                                       bool replayed, Stream& stream) {
  rows_.begin_step();
  for (int64_t i = 0; i < rows; ++i) rows_.add(0, 0, position + i, i < num_logits);
  rows_.pad();
  return measure_pass(replayed, stream);
}

double SpeculativeStep::measure_alternatives(int64_t rows, int64_t position, Stream& stream) {
  rows_.begin_step();
  rows_.add(0, 0, position, true);
  for (int64_t i = 1; i < rows; ++i) rows_.add(0, 0, position + 1, true, static_cast<int>(i));
  return measure_pass(false, stream);
}

double SpeculativeStep::measure_pass(bool replayed, Stream& stream) {
  rows_.upload(stream);
  const int64_t padded_logits = rows_.num_logit_rows();
  const TensorView logits =
      target_logits_.view(DType::f32, {padded_logits, target_.shard().vocab.size()});
  const auto pass = [&] {
    target_.forward(rows_.batch(stream), cache_, logits, stream);
    backend_.mark(kTargetEnd, stream);
  };
  bool recorded = false;  // on all ranks alike
  do {
    backend_.mark(kTargetBegin, stream);
    if (replayed) {
      recorded = backend_.replay(target_key(Pass::measured, {}, padded_logits), stream,
                                 several_ranks_, pass);
    } else {
      pass();
    }
    backend_.synchronize(stream);
  } while (recorded);
  return backend_.seconds_between(kTargetBegin, kTargetEnd);
}

double SpeculativeStep::measure_draft(LogitDrafter& drafter, int64_t sequences, int64_t length,
                                      int num_alternatives, const Processors& processors,
                                      Stream& stream) {
  std::vector<SequenceState> slots(sequences);
  std::vector<SlotWork> work(sequences);
  for (int64_t i = 0; i < sequences; ++i) {
    slots[i] = {
        .tokens = std::vector<int32_t>(length), .processors = processors, .drafter = &drafter};
    work[i] = {
        .slot = i, .decode = true, .num_draft_tokens = 1, .num_alternatives = num_alternatives};
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
  const auto length = static_cast<int64_t>(state.tokens.size());
  CHECK((w.decode ? length + w.num_draft_tokens : w.prefill_end) <= cache_.capacity(w.slot));
  SlotOutcome outcome{.slot = w.slot,
                      .decoded = w.decode,
                      .num_drafted = w.num_draft_tokens,
                      .first_prompt_row = state.num_cached};
  // Places of the queries' results, which are not there yet: their number is what counts.
  static constexpr LogprobRow* kLater = nullptr;

  const bool wants_prompt = w.prompt_logits;
  // What is fed again has logits that nobody reads: as the rows of a step without prompts have.
  const bool wants_logits = wants_prompt || state.is_stale;
  for (int64_t i = state.num_cached; i < w.prefill_end; ++i) {
    if (wants_prompt) {
      queries_.push_back({.row = rows_.num_logit_rows(),
                          .token = state.tokens[i + 1],
                          .top_n = state.top_prompt_logprobs});
    }
    rows_.add(w.slot, state.tokens[i], i, wants_logits);
  }
  if (wants_prompt) {
    outcome.prompt_logprobs = {kLater, static_cast<size_t>(w.prefill_end - state.num_cached)};
  }
  state.num_cached = w.prefill_end;
  state.is_stale = false;
  if (w.decode) {
    CHECK(w.prefill_end == length - 1);
    add_verified_rows(state, w, index);
    add_alternatives(state, w, index);
    outcome.num_alternatives = w.num_alternatives;
    if (state.top_logprobs >= 0) {
      outcome.logprobs = {kLater, static_cast<size_t>(w.num_draft_tokens) + 1};
    }
  }
  outcomes_.push_back(outcome);
}

void SpeculativeStep::add_verified_rows(const SequenceState& state, const SlotWork& w,
                                        int64_t index) {
  const int32_t* const drafted = verifier_.drafted() + place(index);
  const auto length = static_cast<int64_t>(state.tokens.size());
  const int k = w.num_draft_tokens;
  const int64_t raw_row = rows_.num_logit_rows();
  const bool edits = editor_.edits(w.slot);
  raw_rows_.push_back(raw_row);
  to_verify_.push_back({.first_row = edits ? max_rows_ + edited_rows_ : raw_row,
                        .num_drafted = k,
                        .drafted = drafted,
                        .draft_logits = w.draws() ? q_logits(index) : nullptr,
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
      rows_.add(w.slot, drafted + i - 1, length - 1 + i, true,
                w.num_alternatives > 0 ? kDraftSegment : 0);
    }
  }
}

void SpeculativeStep::add_alternatives(const SequenceState& state, const SlotWork& w,
                                       int64_t index) {
  if (w.num_alternatives == 0) return;
  CHECK(w.draws() && w.num_alternatives <= kMaxAlternatives);
  CHECK(w.num_draft_tokens + w.num_alternatives <= kMaxDraftTokens);
  CHECK(state.top_logprobs < 0);
  const auto drafts = static_cast<int>(to_verify_.size()) - 1;
  const auto length = static_cast<int64_t>(state.tokens.size());
  for (int i = 0; i < w.num_alternatives; ++i) {
    const int32_t* const token = verifier_.drafted() + place(index) + w.num_draft_tokens + i;
    const int64_t raw_row = rows_.num_logit_rows();
    const bool edits = editor_.edits(w.slot);
    to_verify_.push_back({.first_row = edits ? max_rows_ + edited_rows_ : raw_row,
                          .processors = of_alternative(state.processors),
                          .key = {state.seed, state.choice, static_cast<uint32_t>(length) + 1},
                          .alternative_of = drafts,
                          .alternative = token});
    if (edits) edit_target_row(w.slot, raw_row, token, 1);
    rows_.add(w.slot, token, length, true, 1 + i);
  }
}

// The row behind drafted[0 … i) goes to the next place for edited ones.
void SpeculativeStep::edit_target_row(int64_t slot, int64_t row, const int32_t* drafted, int i) {
  const Range vocab = target_.shard().vocab;
  float* const logits = static_cast<float*>(target_logits_.data());
  editor_.add(slot, drafted, i, logits + row * vocab.size(),
              logits + (max_rows_ + edited_rows_++) * vocab.size(), vocab.begin, vocab.size());
}

// The accepted drafts and the extra token; rejected positions leave no trace.
void SpeculativeStep::commit(SequenceState& state, const SlotWork& w, const int32_t* drafted,
                             const SlotOutcome& outcome, int32_t extra_token) {
  const auto length = static_cast<int64_t>(state.tokens.size());
  const bool failed = outcome.verdict.non_finite != 0;
  if (!failed) {
    state.tokens.insert(state.tokens.end(), drafted, drafted + outcome.num_accepted());
    state.tokens.push_back(extra_token);
    editor_.commit(w.slot, std::span(state.tokens).subspan(length));
  }
  const int64_t verified = failed             ? length - 1
                           : outcome.in_cache ? length + outcome.num_accepted()
                                              : length;
  state.num_cached = verified;
  state.is_stale = !outcome.in_cache;
  if (state.drafter != nullptr) state.drafter->truncate(w.slot, verified);
}

}  // namespace outrider
