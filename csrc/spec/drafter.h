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
#include "model/transformer.h"
#include "spec/batch_builder.h"

namespace outrider {

// One sequence that a drafter extends.
struct DraftContext {
  int64_t slot = 0;
  std::span<const int32_t>
      tokens;  // prompt, emitted tokens, and what was drafted so far in this step
};

// Makes a row of logits for each next token; the token itself is drawn from it by the same
// operation as the target's. Replicated: every rank computes the same rows.
class LogitDrafter {
 public:
  virtual ~LogitDrafter() = default;

  // Positions of the slot that it has seen: prefill up to there feeds nothing.
  virtual int64_t num_seen(int64_t slot) const = 0;

  // A new sequence holds the slot; its first `num_cached` positions stand in the cache's pages.
  virtual void admit(int64_t slot, int64_t num_cached) = 0;

  // Feeds whatever of the contexts was not seen before.
  virtual void prefill(std::span<const DraftContext> contexts, Stream& stream) = 0;

  // logits: f32 [contexts, vocab_size], a row for each context's next token. Whatever of a context
  // was not seen before (the last accepted tokens) is fed first.
  virtual void next_logits(std::span<const DraftContext> contexts, TensorView logits,
                           Stream& stream) = 0;

  // Forgets what it has seen of the slot from position `length` on.
  virtual void truncate(int64_t slot, int64_t length) = 0;
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
  KvCache& cache() { return cache_; }  // its pages must reach as far as what is fed
  int64_t max_positions() const { return model_.config().max_position_embeddings; }
  int64_t num_seen(int64_t slot) const override { return seen_[slot]; }
  void admit(int64_t slot, int64_t num_cached) override { seen_[slot] = num_cached; }
  void prefill(std::span<const DraftContext> contexts, Stream& stream) override;
  void next_logits(std::span<const DraftContext> contexts, TensorView logits,
                   Stream& stream) override;
  void truncate(int64_t slot, int64_t length) override;

 private:
  // Rows for what was not seen; wants_logits: of the last of each context. Passes run as they fill,
  // `flush` runs the last.
  template <typename Flush>
  void feed(std::span<const DraftContext> contexts, bool wants_logits, const Flush& flush);

  std::unique_ptr<Communicator> self_;
  Transformer model_;
  KvCache cache_;
  BatchBuilder rows_;
  std::vector<int64_t> seen_;  // [slots]: positions in the cache
};

// `random`: uniform over the vocabulary. Costs nothing, guesses nothing, tests everything. Greedy
// requests see token 0 drafted, the arg max of equal logits.
class RandomDrafter final : public LogitDrafter {
 public:
  RandomDrafter(Backend& backend, int64_t vocab_size) : backend_(backend), zeros_(vocab_size) {}

  int64_t num_seen(int64_t) const override { return INT64_MAX; }
  void admit(int64_t, int64_t) override {}
  void prefill(std::span<const DraftContext>, Stream&) override {}
  void next_logits(std::span<const DraftContext> contexts, TensorView logits,
                   Stream& stream) override;
  void truncate(int64_t, int64_t) override {}

 private:
  Backend& backend_;
  std::vector<float> zeros_;  // [vocab_size]: equal logits, so that processors leave them uniform
};

// `prompt_lookup`: copies what followed the latest earlier occurrence of the context's last tokens
// (the longest match of at most 4 tokens; Leviathan et al. 2023, section 3.6). A copy drafter: runs
// on rank 0's host, its q is one-hot. Returns at most k tokens, none where nothing matches.
std::vector<int32_t> prompt_lookup(std::span<const int32_t> tokens, int k);

}  // namespace outrider
