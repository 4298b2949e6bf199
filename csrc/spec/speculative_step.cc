#include "spec/speculative_step.h"

#include <algorithm>

#include "core/digest.h"
#include "kernels/cpu/sample.h"

namespace outrider {

namespace {

constexpr int64_t kRowsPerSlot = kMaxDraftTokens + 1;

}  // namespace

SpeculativeStep::SpeculativeStep(Backend& backend, Communicator& communicator, Transformer& target,
                                 KvCache& cache, int64_t num_slots, int64_t max_rows)
    : target_(target),
      cache_(cache),
      verifier_(backend, communicator, target.config().vocab_size, target.shard().vocab.begin,
                target.shard().vocab.size(), num_slots * kRowsPerSlot, num_slots),
      isa_(cpu::select_isa()),
      rows_(backend, max_rows),
      draft_logits_(backend.allocate(sizeof(float) * num_slots * kMaxDraftTokens *
                                     target.config().vocab_size)),
      target_logits_(
          backend.allocate(sizeof(float) * num_slots * kRowsPerSlot * target.shard().vocab.size())),
      drafted_(num_slots) {
  for (auto& tokens : drafted_) tokens.reserve(kMaxDraftTokens);
  to_verify_.reserve(num_slots);
  outcomes_.reserve(num_slots);
}

std::span<const SlotOutcome> SpeculativeStep::run(std::span<SequenceState> slots,
                                                  std::span<const SlotWork> work, uint64_t agreed,
                                                  Stream& stream) {
  draft(slots, work, stream);
  for (const SlotWork& w : work) {
    agreed = digest(drafted_[w.slot].data(), drafted_[w.slot].size() * sizeof(int32_t), agreed);
  }

  // One ragged pass: prompt rows, then for each decoding sequence its last token and the drafted
  // ones.
  rows_.clear();
  to_verify_.clear();
  const int64_t vocab = target_.config().vocab_size;
  for (const SlotWork& w : work) {
    SequenceState& state = slots[w.slot];
    const std::vector<int32_t>& drafted = drafted_[w.slot];
    const auto length = static_cast<int64_t>(state.tokens.size());
    const int64_t end = w.decode ? length + w.num_draft_tokens : w.prefill_end;
    CHECK(cache_.reserve(w.slot, end));
    for (int64_t i = state.num_cached; i < w.prefill_end; ++i) {
      rows_.add(w.slot, state.tokens[i], i, false);
    }
    state.num_cached = w.prefill_end;
    if (!w.decode) continue;
    CHECK(w.prefill_end == length - 1);
    to_verify_.push_back(
        {.first_row = rows_.num_logit_rows(),
         .drafted = drafted,
         .draft_logits = state.drafter == nullptr
                             ? TensorView()
                             : draft_logits_.view(DType::f32, {w.num_draft_tokens, vocab},
                                                  sizeof(float) * w.slot * kMaxDraftTokens * vocab),
         .processors = state.processors,
         .key = {.seed = state.seed, .choice = 0, .base = static_cast<uint32_t>(length)}});
    rows_.add(w.slot, state.tokens.back(), length - 1, true);
    for (int i = 0; i < w.num_draft_tokens; ++i) rows_.add(w.slot, drafted[i], length + i, true);
  }
  const TensorView logits =
      target_logits_.view(DType::f32, {rows_.num_logit_rows(), target_.shard().vocab.size()});
  target_.forward(rows_.upload(stream), cache_, logits, stream);
  const auto verdicts = verifier_.verify(to_verify_, logits, agreed, stream);

  // Commit: the accepted prefix and the extra token; rejected positions leave no trace.
  outcomes_.clear();
  for (const SlotWork& w : work) {
    if (!w.decode) continue;
    SequenceState& state = slots[w.slot];
    const Verdict& verdict = verdicts[outcomes_.size()];
    outcomes_.push_back({.slot = w.slot, .num_drafted = w.num_draft_tokens, .verdict = verdict});
    const auto length = static_cast<int64_t>(state.tokens.size());
    const int64_t verified = verdict.non_finite ? length - 1 : length + verdict.num_accepted;
    if (!verdict.non_finite) {
      const std::vector<int32_t>& drafted = drafted_[w.slot];
      state.tokens.insert(state.tokens.end(), drafted.begin(),
                          drafted.begin() + verdict.num_accepted);
      state.tokens.push_back(verdict.extra_token);
    }
    state.num_cached = verified;
    cache_.truncate(w.slot, verified);
    if (state.drafter != nullptr) state.drafter->truncate(w.slot, verified);
  }
  return outcomes_;
}

// Fills drafted_ and, for logit drafters, draft_logits_. Round i extends every sequence that drafts
// more than i tokens.
void SpeculativeStep::draft(std::span<SequenceState> slots, std::span<const SlotWork> work,
                            Stream& stream) {
  const int64_t vocab = target_.config().vocab_size;
  int rounds = 0;
  for (const SlotWork& w : work) {
    drafted_[w.slot].assign(w.proposed.begin(), w.proposed.end());
    if (slots[w.slot].drafter != nullptr) rounds = std::max(rounds, w.num_draft_tokens);
  }
  for (int round = 0; round < rounds; ++round) {
    for (const SlotWork& w : work) {
      SequenceState& state = slots[w.slot];
      if (state.drafter == nullptr || w.num_draft_tokens <= round) continue;
      const TensorView row = draft_logits_.view(
          DType::f32, {1, vocab}, sizeof(float) * (w.slot * kMaxDraftTokens + round) * vocab);
      const auto length = static_cast<uint32_t>(state.tokens.size() - round);
      const DraftContext context{w.slot, state.tokens};
      state.drafter->next_logits({&context, 1}, row, stream);
      const int32_t token = cpu::sample_draft(row.data<float>(), vocab, state.processors,
                                              {state.seed, 0, length}, round, isa_);
      drafted_[w.slot].push_back(token);
      state.tokens.push_back(token);  // a hypothesis; taken back below
    }
  }
  for (const SlotWork& w : work) {
    SequenceState& state = slots[w.slot];
    if (state.drafter != nullptr) state.tokens.resize(state.tokens.size() - w.num_draft_tokens);
  }
}

}  // namespace outrider
