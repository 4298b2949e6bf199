// One step of speculative sampling over any number of sequences: draft, one target pass,
// verification. Chen et al. 2023, Algorithm 2.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/isa.h"
#include "spec/batch_builder.h"
#include "spec/drafter.h"
#include "spec/verifier.h"

namespace outrider {

// A sequence that lives in a slot; every rank holds the same.
struct SequenceState {
  std::vector<int32_t> tokens;  // prompt and emitted tokens
  int64_t num_cached = 0;       // positions in the target's cache
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
  std::span<const int32_t> proposed;  // … or, where it has none, these K tokens
};

// What a step did for one slot.
struct SlotOutcome {
  int64_t slot = 0;
  bool decoded = false;
  int num_drafted = 0;
  Verdict verdict;
  // The step's tokens (accepted drafts, then the extra one) stand at the end of the slot's tokens.
  std::span<const LogprobRow>
      prompt_logprobs;  // rows of the prompt's tokens first_prompt_row + 1 …
  int64_t first_prompt_row = 0;
  std::span<const LogprobRow> logprobs;  // [num_drafted + 1]; where wanted
};

// Seconds.
struct StepPhases {
  double draft = 0, target = 0, verify = 0, exchange = 0;  // verify: without its exchanges
};

class SpeculativeStep {
 public:
  // max_rows: rows of a step, prompt rows and K + 1 for each decoding sequence.
  SpeculativeStep(Backend& backend, Communicator& communicator, Transformer& target, KvCache& cache,
                  int64_t num_slots, int64_t max_rows);

  // Advances the states in place. `agreed`: a digest of what all ranks must agree on before this
  // step. Throws DisagreementError where they do not agree on it or on the drafted tokens. The
  // outcomes, one for each work and in its order, are valid until the next run.
  std::span<const SlotOutcome> run(std::span<SequenceState> slots, std::span<const SlotWork> work,
                                   uint64_t agreed, Stream& stream);

  const StepPhases& times() const { return times_; }  // of the last run

  // Runs the target over `rows` rows from `position` of slot 0 on, whatever they hold, and writes
  // its logits of the first; for measuring. Nothing may be running.
  void run_target(int64_t rows, int64_t position, Stream& stream);

 private:
  void prefill_drafts(std::span<SequenceState> slots, std::span<const SlotWork> work,
                      Stream& stream);
  void draft(std::span<SequenceState> slots, std::span<const SlotWork> work, Stream& stream);
  void draft_with(LogitDrafter* drafter, std::span<SequenceState> slots,
                  std::span<const SlotWork> work, Stream& stream);
  void add_rows(std::span<SequenceState> slots, const SlotWork& work);
  void commit(SequenceState& state, const SlotWork& work, const Verdict& verdict);

  // What a slot drafted in this step.
  struct Drafted {
    std::vector<int32_t> tokens;
    TensorView logits;                  // f32 [K, vocab_size]; empty: one-hot
    std::vector<RowDistribution> rows;  // [K]: q
  };

  Transformer& target_;
  KvCache& cache_;
  Verifier verifier_;
  cpu::Isa isa_;
  int64_t max_rows_;
  BatchBuilder rows_;
  Buffer draft_logits_;   // f32 [max_rows, vocab_size]: q, kept until verified
  Buffer target_logits_;  // f32 [max_rows, vocabulary shard]
  int64_t draft_rows_used_ = 0;
  std::vector<Drafted> drafted_;  // [slots]
  std::vector<const SlotWork*> drafting_;
  std::vector<DraftContext> contexts_;
  std::vector<SequenceToVerify> to_verify_;
  std::vector<LogprobQuery> queries_;
  std::vector<SlotOutcome> outcomes_;
  StepPhases times_;
};

}  // namespace outrider
