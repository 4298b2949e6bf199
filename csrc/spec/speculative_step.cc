#include "spec/speculative_step.h"

#include <algorithm>
#include <chrono>

#include "core/digest.h"
#include "kernels/cpu/distribution.h"
#include "kernels/cpu/sample.h"

namespace outrider {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool drafts_with(const SequenceState& state, const SlotWork& work, const LogitDrafter* drafter) {
  return state.drafter == drafter && work.num_draft_tokens > 0;
}

}  // namespace

SpeculativeStep::SpeculativeStep(Backend& backend, Communicator& communicator, Transformer& target,
                                 KvCache& cache, int64_t num_slots, int64_t max_rows)
    : target_(target),
      cache_(cache),
      verifier_(backend, communicator, target.config().vocab_size, target.shard().vocab.begin,
                target.shard().vocab.size(), max_rows, num_slots),
      isa_(cpu::select_isa()),
      max_rows_(max_rows),
      rows_(backend, max_rows),
      draft_logits_(backend.allocate(sizeof(float) * num_slots * kMaxDraftTokens *
                                     target.config().vocab_size)),
      target_logits_(backend.allocate(sizeof(float) * max_rows * target.shard().vocab.size())),
      drafted_(num_slots) {
  for (Drafted& drafted : drafted_) {
    drafted.tokens.reserve(kMaxDraftTokens);
    drafted.rows.reserve(kMaxDraftTokens);
  }
  drafting_.reserve(num_slots);
  contexts_.reserve(num_slots);
  to_verify_.reserve(num_slots);
  queries_.reserve(max_rows);
  outcomes_.reserve(num_slots);
}

std::span<const SlotOutcome> SpeculativeStep::run(std::span<SequenceState> slots,
                                                  std::span<const SlotWork> work, uint64_t agreed,
                                                  Stream& stream) {
  const auto start = Clock::now();
  prefill_drafts(slots, work, stream);
  draft(slots, work, stream);
  for (const SlotWork& w : work) {
    const std::vector<int32_t>& tokens = drafted_[w.slot].tokens;
    agreed = digest(tokens.data(), tokens.size() * sizeof(int32_t), agreed);
  }
  times_.draft = seconds_since(start);

  // One ragged pass: prompt rows, then for each decoding sequence its last token and the drafted
  // ones.
  rows_.clear();
  to_verify_.clear();
  queries_.clear();
  outcomes_.clear();
  for (const SlotWork& w : work) add_rows(slots, w);
  const TensorView logits =
      target_logits_.view(DType::f32, {rows_.num_logit_rows(), target_.shard().vocab.size()});
  const auto target_start = Clock::now();
  target_.forward(rows_.upload(stream), cache_, logits, stream);
  times_.target = seconds_since(target_start);

  const auto verify_start = Clock::now();
  const auto verdicts = verifier_.verify(to_verify_, queries_, logits, agreed, stream);
  times_.exchange = verifier_.exchange_seconds();
  times_.verify = seconds_since(verify_start) - times_.exchange;

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
    outcome.verdict = verdicts[verdict++];
    commit(slots[work[i].slot], work[i], outcome.verdict);
  }
  return outcomes_;
}

void SpeculativeStep::run_target(int64_t rows, int64_t position, Stream& stream) {
  rows_.clear();
  for (int64_t i = 0; i < rows; ++i) rows_.add(0, 0, position + i, i == 0);
  target_.forward(rows_.upload(stream), cache_,
                  target_logits_.view(DType::f32, {1, target_.shard().vocab.size()}), stream);
}

// Rows, verification and queries of one slot, and its outcome with the sizes of what will come.
void SpeculativeStep::add_rows(std::span<SequenceState> slots, const SlotWork& w) {
  SequenceState& state = slots[w.slot];
  const Drafted& drafted = drafted_[w.slot];
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
      queries_.push_back({rows_.num_logit_rows(), state.tokens[i + 1], state.top_prompt_logprobs});
    }
    rows_.add(w.slot, state.tokens[i], i, wants_prompt);
  }
  if (wants_prompt) {
    outcome.prompt_logprobs = {kLater, static_cast<size_t>(w.prefill_end - state.num_cached)};
  }
  state.num_cached = w.prefill_end;
  if (w.decode) {
    CHECK(w.prefill_end == length - 1);
    const auto k = static_cast<size_t>(w.num_draft_tokens);
    to_verify_.push_back({.first_row = rows_.num_logit_rows(),
                          .drafted = drafted.tokens,
                          .draft_logits = drafted.logits,
                          .draft_rows = drafted.rows,
                          .processors = state.processors,
                          .key = {state.seed, state.choice, static_cast<uint32_t>(length)}});
    for (size_t i = 0; i <= k; ++i) {
      if (state.top_logprobs >= 0) {
        queries_.push_back(
            {rows_.num_logit_rows(), i < k ? drafted.tokens[i] : -1, state.top_logprobs});
      }
      rows_.add(w.slot, i == 0 ? state.tokens.back() : drafted.tokens[i - 1],
                length - 1 + static_cast<int64_t>(i), true);
    }
    if (state.top_logprobs >= 0) outcome.logprobs = {kLater, k + 1};
  }
  outcomes_.push_back(outcome);
}

// The accepted prefix and the extra token; rejected positions leave no trace.
void SpeculativeStep::commit(SequenceState& state, const SlotWork& w, const Verdict& verdict) {
  const auto length = static_cast<int64_t>(state.tokens.size());
  const int64_t verified = verdict.non_finite ? length - 1 : length + verdict.num_accepted;
  if (!verdict.non_finite) {
    const std::vector<int32_t>& drafted = drafted_[w.slot].tokens;
    state.tokens.insert(state.tokens.end(), drafted.begin(),
                        drafted.begin() + verdict.num_accepted);
    state.tokens.push_back(verdict.extra_token);
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
  const auto prefills = [](const SlotWork& w) { return w.draft_prefill_end > 0; };
  for_each_drafter(slots, work, prefills, [&](LogitDrafter* drafter) {
    contexts_.clear();
    for (const SlotWork& w : work) {
      const SequenceState& state = slots[w.slot];
      if (state.drafter != drafter || !prefills(w)) continue;
      contexts_.push_back({w.slot, std::span(state.tokens).first(w.draft_prefill_end)});
    }
    drafter->prefill(contexts_, stream);
  });
}

// Fills drafted_.
void SpeculativeStep::draft(std::span<SequenceState> slots, std::span<const SlotWork> work,
                            Stream& stream) {
  draft_rows_used_ = 0;
  for (const SlotWork& w : work) {
    Drafted& drafted = drafted_[w.slot];
    drafted.tokens.assign(w.proposed.begin(), w.proposed.end());
    drafted.logits = {};
    drafted.rows.clear();
  }
  for_each_drafter(
      slots, work, [](const SlotWork& w) { return w.num_draft_tokens > 0; },
      [&](LogitDrafter* drafter) { draft_with(drafter, slots, work, stream); });
}

// Round i extends every sequence that drafts more than i tokens, in one pass. They stand in order
// of falling K, so that a round's sequences are the first ones of the round before it: sequence j's
// row of round i is row i * sequences + j.
void SpeculativeStep::draft_with(LogitDrafter* drafter, std::span<SequenceState> slots,
                                 std::span<const SlotWork> work, Stream& stream) {
  const int64_t vocab = target_.config().vocab_size;
  drafting_.clear();
  for (const SlotWork& w : work) {
    if (drafts_with(slots[w.slot], w, drafter)) drafting_.push_back(&w);
  }
  std::stable_sort(drafting_.begin(), drafting_.end(), [](const SlotWork* a, const SlotWork* b) {
    return a->num_draft_tokens > b->num_draft_tokens;
  });
  const int rounds = drafting_.front()->num_draft_tokens;
  const auto count = static_cast<int64_t>(drafting_.size());
  const TensorView rows = draft_logits_.view(DType::f32, {rounds, count, vocab},
                                             sizeof(float) * draft_rows_used_ * vocab);
  draft_rows_used_ += rounds * count;
  for (int round = 0; round < rounds; ++round) {
    contexts_.clear();
    for (const SlotWork* w : drafting_) {
      if (w->num_draft_tokens > round) contexts_.push_back({w->slot, slots[w->slot].tokens});
    }
    const auto drafting = static_cast<int64_t>(contexts_.size());
    float* const logits = rows.data<float>() + round * count * vocab;
    drafter->next_logits(contexts_, TensorView(logits, DType::f32, {drafting, vocab}), stream);
    for (int64_t j = 0; j < drafting; ++j) {
      SequenceState& state = slots[drafting_[j]->slot];
      Drafted& drafted = drafted_[drafting_[j]->slot];
      const RowDistribution q = cpu::process_row(logits + j * vocab, vocab, state.processors, isa_);
      const auto base = static_cast<uint32_t>(state.tokens.size() - round);
      const int32_t token = cpu::sample_draft(logits + j * vocab, vocab, q, state.processors.mode,
                                              {state.seed, state.choice, base}, round, isa_);
      drafted.rows.push_back(q);
      drafted.tokens.push_back(token);
      state.tokens.push_back(token);  // a hypothesis; taken back below
    }
  }
  for (int64_t j = 0; j < count; ++j) {
    const SlotWork& w = *drafting_[j];
    SequenceState& state = slots[w.slot];
    state.tokens.resize(state.tokens.size() - w.num_draft_tokens);
    drafted_[w.slot].logits =
        TensorView(rows.data<float>() + j * vocab, DType::f32, {w.num_draft_tokens, count, vocab})
            .slice(1, 0, 1);
  }
}

}  // namespace outrider
