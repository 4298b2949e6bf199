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
  LogitDrafter* drafter = nullptr;  // null: none, or a copy drafter
};

// What a step does for one slot: feeds prompt tokens [num_cached, prefill_end), and where `decode`
// is set, goes on in the same pass with the last token and the drafted ones.
struct SlotWork {
  int64_t slot = 0;
  int64_t prefill_end = 0;
  bool decode = false;                // then prefill_end is the sequence's length - 1
  int num_draft_tokens = 0;           // K: drawn from the sequence's drafter …
  std::span<const int32_t> proposed;  // … or, where it has none, these K tokens
};

struct SlotOutcome {
  int64_t slot = 0;
  int num_drafted = 0;
  Verdict verdict;
  // The step's tokens (accepted drafts, then the extra one) stand at the end of the slot's tokens.
};

class SpeculativeStep {
 public:
  // max_rows: rows of a step, prompt rows and K + 1 for each decoding sequence.
  SpeculativeStep(Backend& backend, Communicator& communicator, Transformer& target, KvCache& cache,
                  int64_t num_slots, int64_t max_rows);

  // Advances the states in place. `agreed`: a digest of what all ranks must agree on before this
  // step. Throws DisagreementError where they do not agree on it or on the drafted tokens. The
  // outcomes (of decoding slots, in order) are valid until the next run.
  std::span<const SlotOutcome> run(std::span<SequenceState> slots, std::span<const SlotWork> work,
                                   uint64_t agreed, Stream& stream);

 private:
  void draft(std::span<SequenceState> slots, std::span<const SlotWork> work, Stream& stream);

  Transformer& target_;
  KvCache& cache_;
  Verifier verifier_;
  cpu::Isa isa_;
  BatchBuilder rows_;
  Buffer draft_logits_;   // f32 [num_slots, kMaxDraftTokens, vocab_size]: q, kept until verified
  Buffer target_logits_;  // f32 [num_slots * (kMaxDraftTokens + 1), vocabulary shard]
  std::vector<std::vector<int32_t>> drafted_;  // [slots]
  std::vector<SequenceToVerify> to_verify_;
  std::vector<SlotOutcome> outcomes_;
};

}  // namespace outrider
