// Executor: carries out plans on this rank; the same code on each. Owns the models, their caches
// and the slots' state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "comm/step_progress.h"
#include "engine/request.h"
#include "engine/step_plan.h"
#include "engine/step_pricing.h"
#include "model/tokenizer.h"
#include "spec/drafters.h"
#include "spec/lookahead.h"
#include "spec/speculative_step.h"

namespace outrider {

struct EngineOptions {
  std::filesystem::path model;
  std::optional<std::filesystem::path> draft;         // a checkpoint with the target's vocabulary
  std::optional<std::filesystem::path> draft_counts;  // a file of tools/count_tokens.py
  std::optional<std::filesystem::path> draft_head;    // of the model: tools/distill_draft.py
  std::string model_hash;                   // checkpoint_hash of the model; empty: not known yet
  std::optional<DrafterKind> drafter;       // where a request names none; unset: head, model or
                                            // prompt_lookup, the first there is
  LookaheadPolicy lookahead;                // K where a request gives none
  int max_draft_tokens = kMaxDraftTokens;   // K at most; with alternatives, where K is named
  int max_alternatives = kMaxAlternatives;  // to a first drafted token, where K is chosen
  double tpot_slo_ms = 0;     // that a step shall take at most, where a request gives none; 0: none
  int64_t max_positions = 0;  // longest prompt and answer; 0: what the model allows
  int64_t max_sequences = 64;  // that run at once
  // Rows of a step: of prompts, and of each decoding sequence K + 1, its alternatives, and what it
  // feeds again.
  int64_t max_rows = 512;
  int64_t prefill_chunk = 256;  // most prompt rows of a step
  int64_t prefill_beside = 0;   // the same while somebody decodes; 0: measured at the start
  int64_t kv_cache_tokens = 0;  // positions of the KV cache; 0: what 1 GiB a rank holds
  bool prefix_cache = true;     // prompts that begin alike share pages
  std::function<void(const std::string& what, double done)>
      progress;  // of the start, such as "loading model", 0 (it begins) … 1; may be empty

  DrafterFiles drafter_files() const {
    return {.model = draft, .head = draft_head, .counts = draft_counts};
  }
};

// Reads what there is to be wrong in the files, without their weights, and in what the options ask
// of the model on so many ranks; of draft head and counts nothing, which may not be known yet.
// Throws Error as Executor and ChatTemplate do; on rank 0 before anything is loaded, so that it is
// reported once.
void check_files(const EngineOptions& options, int num_ranks);

class Executor {
 public:
  // Loads this rank's part of the models. Throws Error for a bad checkpoint, a draft with another
  // vocabulary, or options that the model cannot meet (before anything is loaded).
  Executor(EngineOptions options, Backend& backend, Communicator& communicator);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // From now on each step's begin and end are told to `progress`, which outlives this.
  void report_to(StepProgress& progress);
  // Rank 0's engine waits in `wait` for something to do: no step of it is expected meanwhile.
  void rest(const std::function<void()>& wait);
  // Thread-safe. One is: the engine is about to be woken.
  void expect_work();

  // Throws Error where the ranks disagree on the plan or on the state before it. An outcome for
  // each work of the plan, in its order; valid until the next call.
  std::span<const SlotOutcome> execute(std::span<const uint8_t> plan);

  // Measured at the start; unknown where nobody wants to know: prefill_beside is given, and the
  // lookahead is not adaptive.
  const LookaheadTables& tables() const { return tables_; }
  const StepPhases& step_times() const { return step_.times(); }
  int64_t weight_bytes() const { return target_.weight_bytes(); }  // on this rank, read each step
  // The same of the default drafter, read for each token that it drafts; 0 where it has no weights.
  int64_t draft_weight_bytes() const;
  int64_t num_pages() const { return cache_.num_pages(); }
  int64_t num_draft_pages() const;  // 0: no drafter has a cache

  const SequenceState& slot(int64_t index) const { return slots_[index]; }
  const EngineOptions& options() const { return options_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const ModelConfig& config() const { return target_.config(); }
  int64_t max_positions() const { return max_positions_; }
  // Longest context in which this drafter drafts.
  int64_t max_draft_positions(DrafterKind kind) const;
  std::vector<DrafterKind> drafters() const;
  DrafterKind default_drafter() const;

  const std::string& model_hash() const { return model_hash_; }
  // Of what decides an answer beside its request: build, weights of target and draft, tokenizer and
  // what ends an answer, ranks, instruction set or device, KV dtype.
  std::string numerics_fingerprint() const;
  // Of the slots and caches: equal on all ranks before every step.
  uint64_t state_digest() const;

 private:
  void admit(const Admission& admission);
  double measure_ms(int64_t rows, int64_t num_logits, int64_t position);
  StepCosts measure_step_costs();
  void measure_draft_costs(DrafterKind kind);
  void measure_feed_costs();

  EngineOptions options_;
  Backend& backend_;
  ForgetReplayed forget_replayed_{backend_};  // of a start that fails, too
  int num_ranks_;
  Stream stream_;
  Tokenizer tokenizer_;
  Transformer target_;
  int64_t max_positions_;
  KvCache cache_;
  std::string model_hash_, tokens_hash_;
  Drafters drafters_;
  SpeculativeStep step_;
  StepProgress* progress_ = nullptr;
  std::vector<SequenceState> slots_;
  std::vector<uint64_t> token_digests_;  // [slots]: of the tokens, chained as they come
  std::vector<SlotWork> work_;           // of the step
  LookaheadTables tables_;
};

}  // namespace outrider
