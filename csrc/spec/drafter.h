// Drafters: what rides ahead of the target. They decide when tokens come, never which.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "comm/reporting_communicator.h"
#include "model/transformer.h"
#include "spec/batch_builder.h"

namespace outrider {

// One sequence that a drafter extends.
struct DraftContext {
  int64_t slot = 0;
  std::span<const int32_t> tokens;  // prompt and emitted tokens
  // What was drafted so far in this step, behind them: on the backend, where alone it is known.
  const int32_t* drafted = nullptr;
  int64_t num_drafted = 0;

  int64_t length() const { return static_cast<int64_t>(tokens.size()) + num_drafted; }
};

// Makes a row of logits for each next token; the token itself is drawn from it by the same
// operation as the target's. Every rank ends with the same rows.
class LogitDrafter {
 public:
  virtual ~LogitDrafter() = default;

  // From now on what it computes without the other ranks is told to `progress`, which outlives
  // this, as collectives are: as many on every rank, unless one has to record a pass anew.
  virtual void report_to(StepProgress& /*progress*/) {}

  // A step begins; nothing of the one before is in flight.
  virtual void begin_step() = 0;

  // Positions of the slot that it has seen: prefill up to there feeds nothing.
  virtual int64_t num_seen(int64_t slot) const = 0;

  // A new sequence holds the slot; its first `num_cached` positions stand in the cache's pages.
  virtual void admit(int64_t slot, int64_t num_cached) = 0;

  // Feeds whatever of the contexts was not seen before.
  virtual void prefill(std::span<const DraftContext> contexts, Stream& stream) = 0;

  // Readies a row of logits for each context's next token; `enqueue` then computes it. Whatever of
  // a context was not seen before (the last accepted tokens) is fed first. Returns a key of all
  // that `enqueue` does, which is the same in every round of as many rows. logits: f32 [contexts,
  // vocab_size], or more rows, which come to mean nothing.
  virtual uint64_t prepare(std::span<const DraftContext> contexts, TensorView logits,
                           Stream& stream) = 0;
  virtual void enqueue(Stream& stream) = 0;

  // Forgets what it has seen of the slot from position `length` on.
  virtual void truncate(int64_t slot, int64_t length) = 0;

  // Of its weights, what a round reads.
  virtual int64_t weight_bytes() const { return 0; }

  // The longest context in which it drafts.
  virtual int64_t max_positions() const { return INT64_MAX; }

  // The target's states behind which the slot's last token was drawn: bf16 [1, width], a row of
  // Transformer::states. length: of the sequence, with that token.
  virtual void take_state(int64_t /*slot*/, int64_t /*length*/, TensorView /*states*/,
                          Stream& /*stream*/) {}
};

// `model`: a checkpoint with the target's vocabulary, whole on each rank (Chen et al. 2023, section
// 4).
class ModelDrafter final : public LogitDrafter {
 public:
  // num_pages: of its KV cache. max_rows: the most rows of one of its passes. Throws Error where
  // the checkpoint cannot be loaded.
  ModelDrafter(const std::filesystem::path& directory, Backend& backend, int64_t num_pages,
               int64_t num_slots, int64_t max_rows, const std::function<void(double)>& progress);

  const ModelConfig& config() const { return model_.config(); }
  int64_t weight_bytes() const override { return model_.weight_bytes(); }
  KvCache& cache() { return cache_; }  // its pages must reach as far as what is fed
  void report_to(StepProgress& progress) override { reporting_.report_to(progress); }
  void begin_step() override { rows_.begin_step(); }
  int64_t max_positions() const override { return model_.config().max_position_embeddings; }
  int64_t num_seen(int64_t slot) const override { return seen_[slot]; }
  void admit(int64_t slot, int64_t num_cached) override { seen_[slot] = num_cached; }
  void prefill(std::span<const DraftContext> contexts, Stream& stream) override;
  uint64_t prepare(std::span<const DraftContext> contexts, TensorView logits,
                   Stream& stream) override;
  void enqueue(Stream& stream) override;
  void truncate(int64_t slot, int64_t length) override;

 private:
  // Gathers rows of what was not seen, for logits of the last row of each context where they are
  // wanted. A pass that is full runs; the last one is left.
  void gather(std::span<const DraftContext> contexts, bool wants_logits, TensorView logits,
              Stream& stream);
  void run_pass(TensorView logits, Stream& stream);

  Backend& backend_;
  std::unique_ptr<Communicator> self_;
  ReportingCommunicator reporting_;  // around it
  Transformer model_;
  KvCache cache_;
  BatchBuilder rows_;
  std::vector<int64_t> seen_;  // [slots]: positions in the cache
  // Rows of `logits` that earlier passes of a `prepare` wrote. Where there are any, the last pass,
  // which hardly comes again, runs in it too, unpadded: it has the rows that are left.
  int64_t logits_done_ = 0;
  TensorView logits_;  // that the last pass writes
};

// `random`: uniform over the vocabulary. Costs nothing, guesses nothing, tests everything. Greedy
// requests see token 0 drafted, the arg max of equal logits.
class RandomDrafter final : public LogitDrafter {
 public:
  RandomDrafter(Backend& backend, int64_t vocab_size)
      : backend_(backend), zeros_(backend.allocate(vocab_size * sizeof(float))) {}

  void begin_step() override {}
  int64_t num_seen(int64_t) const override { return INT64_MAX; }
  void admit(int64_t, int64_t) override {}
  void prefill(std::span<const DraftContext>, Stream&) override {}
  uint64_t prepare(std::span<const DraftContext> contexts, TensorView logits,
                   Stream& stream) override;
  void enqueue(Stream& stream) override;
  void truncate(int64_t, int64_t) override {}

 private:
  Backend& backend_;
  TensorView logits_;  // of `prepare`
  Buffer zeros_;       // f32 [vocab_size]: equal logits, so that processors leave them uniform
};

}  // namespace outrider
