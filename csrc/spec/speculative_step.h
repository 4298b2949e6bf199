// One step of speculative sampling over any number of sequences: draft, one target pass,
// verification. Chen et al. 2023, Algorithm 2. Beside a draft of K tokens, one behind the other,
// may stand alternatives to its first: where that one is refused, and the extra token is one of
// these, the token behind it comes from its row. A step without them, and then one without drafts,
// would emit the same two, where by rejection the second is a coupled one: its noise serves nothing
// else there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/batch_builder.h"
#include "spec/drafter.h"
#include "spec/logit_editor.h"
#include "spec/verifier.h"

namespace outrider {

// A sequence that lives in a slot; every rank holds the same.
struct SequenceState {
  std::vector<int32_t> tokens;  // prompt and emitted tokens
  int64_t num_cached = 0;       // positions in the target's cache
  // Those behind num_cached hold a draft that was refused: they are fed again with the next token.
  bool is_stale = false;
  Processors processors;
  uint64_t seed = 0;
  uint32_t choice = 0;              // which of a request's n answers
  int32_t top_logprobs = -1;        // of each emitted token: the best so many; -1: none wanted
  int32_t top_prompt_logprobs = 0;  // of each prompt token, where a work asks for them
  LogitDrafter* drafter = nullptr;  // null: none, or a copy drafter
};

// What a step does for one slot: feeds prompt tokens [num_cached, prefill_end), and where `decode`
// is set, goes on in the same pass with the last token and the drafted ones. Both caches have pages
// for all of it.
struct SlotWork {
  int64_t slot = 0;
  int64_t prefill_end = 0;
  int64_t draft_prefill_end = 0;  // the drafter is fed up to here before anything is drafted
  bool prompt_logits = false;     // log-probabilities of the prompt rows' next tokens are wanted
  bool decode = false;            // then prefill_end is the sequence's length - 1
  int num_draft_tokens = 0;       // K: drawn from the sequence's drafter …
  std::span<const int32_t> proposed;  // … or, where there are any, these K tokens
  // Drawn beside the first of K; without log-probabilities.
  int num_alternatives = 0;

  bool draws() const { return num_draft_tokens > 0 && proposed.empty(); }
};

// What a step did for one slot.
struct SlotOutcome {
  int64_t slot = 0;
  bool decoded = false;
  int num_drafted = 0;  // K
  int num_alternatives = 0;
  Verdict verdict;       // of the K drafted tokens
  int alternative = -1;  // which one was accepted in their place; -1: none
  bool in_cache = true;  // whether the target's cache has the accepted drafts
  // The step's tokens (accepted drafts, then the extra one) stand at the end of the slot's tokens.
  int num_accepted() const { return alternative >= 0 ? 1 : verdict.num_accepted; }
  std::span<const LogprobRow>
      prompt_logprobs;  // rows of the prompt's tokens first_prompt_row + 1 …
  int64_t first_prompt_row = 0;
  std::span<const LogprobRow> logprobs;  // [num_drafted + 1]; where wanted
};

// Seconds on the device.
struct StepPhases {
  double draft = 0, target = 0, verify = 0, exchange = 0;  // verify: without its exchanges
  bool recorded = false;  // some pass (Backend::replay): they say nothing of steps like it
};

class SpeculativeStep {
 public:
  // max_rows: rows of a step: of prompts, and of each decoding sequence K + 1, its alternatives,
  // and what it feeds again.
  SpeculativeStep(Backend& backend, Communicator& communicator, Transformer& target, KvCache& cache,
                  int64_t num_slots, int64_t max_rows);

  // A new sequence holds the slot; `tokens` are its prompt and what it emitted before. `rules`:
  // what is done to its logits before its processors.
  void admit(int64_t slot, const LogitRules& rules, std::span<const int32_t> tokens,
             int64_t num_prompt_tokens) {
    editor_.admit(slot, rules, tokens, num_prompt_tokens);
  }

  // Advances the states in place. `agreed`: a digest of what all ranks must agree on before this
  // step. Throws DisagreementError where they do not agree on it or on the drafted tokens. The
  // outcomes, one for each work and in its order, are valid until the next run.
  std::span<const SlotOutcome> run(std::span<SequenceState> slots, std::span<const SlotWork> work,
                                   uint64_t agreed, Stream& stream);

  const StepPhases& times() const { return times_; }  // of the last run

  // Runs the target over `rows` rows from `position` of slot 0 on, whatever they hold, and writes
  // its logits of the first num_logits: padded, and, as of steps that only decode, replayed once it
  // has run before; or each time anew, as of steps with prompts. Returns the seconds it took: of
  // one that was recorded, those of another behind it. Nothing may be running.
  double measure_target(int64_t rows, int64_t num_logits, int64_t position, bool replayed,
                        Stream& stream);
  // The same of rows that all have logits, of which all but the first are candidates for the
  // position behind it.
  double measure_alternatives(int64_t rows, int64_t position, Stream& stream);
  // Drafts a token, and so many alternatives to it, behind `length` tokens for each of so many
  // slots, from the first on, whatever they hold; the drafter forgets them. Likewise.
  double measure_draft(LogitDrafter& drafter, int64_t sequences, int64_t length,
                       int num_alternatives, const Processors& processors, Stream& stream);
  // Feeds the drafter `length` tokens for the first slot. Likewise.
  double measure_feed(LogitDrafter& drafter, int64_t length, Stream& stream);

 private:
  enum class Pass : uint64_t { target, draft, measured };

  static uint64_t key_of(Pass pass, int64_t rows, const LogitEditor::Batch& edited, uint64_t parts);
  uint64_t target_key(Pass pass, const LogitEditor::Batch& edited, uint64_t parts) const;
  void prefill_drafts(std::span<SequenceState> slots, std::span<const SlotWork> work,
                      Stream& stream);
  void draft(std::span<SequenceState> slots, std::span<const SlotWork> work, Stream& stream);
  void propose(std::span<const SlotWork> work, Stream& stream);
  void draft_with(LogitDrafter* drafter, std::span<SequenceState> slots,
                  std::span<const SlotWork> work, Stream& stream);
  int add_alternative_draws(std::span<const SlotWork> work, int64_t padded);
  void add_rows(std::span<SequenceState> slots, std::span<const SlotWork> work, int64_t index);
  void add_verified_rows(const SequenceState& state, const SlotWork& work, int64_t index);
  void add_alternatives(const SequenceState& state, const SlotWork& work, int64_t index);
  void edit_target_row(int64_t slot, int64_t row, const int32_t* drafted, int i);
  double measure_pass(bool replayed, Stream& stream);
  void commit(SequenceState& state, const SlotWork& work, const int32_t* drafted,
              const SlotOutcome& outcome, int32_t extra_token);

  // The drafted tokens of a work (its index in the step's): an index into drafted tokens, q and its
  // logits.
  static int64_t place(int64_t work) { return work * kMaxDraftTokens; }
  RowDistribution* q(int64_t work) const {
    return static_cast<RowDistribution*>(q_.data()) + place(work);
  }
  float* q_logits(int64_t work) const {
    return static_cast<float*>(q_logits_.data()) + place(work) * target_.config().vocab_size;
  }

  Backend& backend_;
  Transformer& target_;
  KvCache& cache_;
  Verifier verifier_;
  bool several_ranks_;  // the target's passes exchange; drafts do not, where they are replayed
  int64_t max_rows_;
  int64_t nobody_;          // the place of drafted tokens that nobody reads
  int64_t max_round_rows_;  // of a round of drafts
  int64_t max_draft_rows_;  // of a step, over all rounds
  BatchBuilder rows_;
  LogitEditor editor_;
  Buffer draft_logits_;   // f32 [max_round_rows, vocab_size]: of a round
  Buffer target_logits_;  // f32 [2 max_rows, vocabulary shard]: as the model gives them, for
                          // log-probabilities too; behind max_rows the edited ones
  Buffer q_;              // RowDistribution [nobody + 1]
  Buffer q_logits_;       // f32 [nobody, vocab_size]: q of what is drawn by rejection; else scratch
  // [1 + kMaxAlternatives, max_round_rows]; on the host [max_draft_rows], by rounds
  Staged<DraftRow> draft_rows_;
  Staged<int32_t> proposed_;     // [slots, kMaxDraftTokens]: by copy drafters
  Staged<TokenCopy> proposals_;  // [slots * kMaxDraftTokens]: into the drafted tokens
  int64_t draft_rows_used_ = 0;
  int64_t edited_rows_ = 0;        // of the target's, in this step
  std::vector<int64_t> drafting_;  // works, by falling K
  std::vector<DraftContext> contexts_;
  std::vector<VerifyWork> to_verify_;
  std::vector<int64_t> raw_rows_;  // of each work that decodes: its first row, before edits
  std::vector<LogprobQuery> queries_;
  std::vector<SlotOutcome> outcomes_;
  StepPhases times_;
};

}  // namespace outrider
