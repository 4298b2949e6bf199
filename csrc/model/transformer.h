// Transformer: a decoder with pre-norm residual blocks, sharded by tensor parallelism over a
// Communicator. One class for every family (ModelConfig says how they differ), for target and draft
// (a draft has a self communicator: it is a model like any other).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "model/checkpoint_hash.h"
#include "model/kv_cache.h"
#include "model/model_config.h"
#include "model/shard.h"

namespace outrider {

struct LayerWeights;
struct NormWeights;
struct Weights;

// Makes a rank's weights; throws Error.
using WeightsMaker =
    std::function<Weights(const ModelConfig& config, const Shard& shard, Backend& backend)>;

// Positions of the longest context: max_positions, or where that is 0 the config's. Throws Error
// where it is more than the config's.
int64_t longest_context(const ModelConfig& config, int64_t max_positions);

// One ragged pass: rows of several sequences (prefill chunks, drafts to verify) side by side, in
// any mix. A row attends to its sequence's earlier rows of the same pass too, wherever they stand.
//
// Several rows may be candidates for one position of a sequence, where each is in another segment:
// in every layer a segment's keys and values are written, and attended to, before those of the
// next, which take their place in the cache.
struct Batch {
  TensorView tokens;      // i32 [rows], each in [0, vocab_size)
  TensorView positions;   // i32 [rows]
  TensorView slots;       // i32 [rows]: the row's sequence in the KV cache
  TensorView logit_rows;  // i32 [num_logits]: which rows' logits are wanted; ascending, where there
                          // is one segment
  std::span<const int64_t> segment_ends;  // rising, the last is rows; empty: one segment
  int64_t context = INT64_MAX;            // RowMap's
};

class Transformer {
 public:
  // Loads this rank's slices from the directory's safetensors and packs them. `progress` (may be
  // empty) hears the share done, 0 … 1. Throws Error naming file and tensor. max_rows: the largest
  // pass. max_positions: as longest_context has it.
  // `backend` and `communicator` outlive the model.
  Transformer(const std::filesystem::path& directory, Backend& backend, Communicator& communicator,
              int64_t max_rows, int64_t max_positions,
              const std::function<void(double)>& progress = {});
  // The same with weights from elsewhere.
  Transformer(const ModelConfig& config, const WeightsMaker& make_weights, Backend& backend,
              Communicator& communicator, int64_t max_rows, int64_t max_positions);
  ~Transformer();
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  const ModelConfig& config() const { return config_; }
  const Shard& shard() const { return shard_; }
  int64_t weight_bytes() const;  // on this rank, read once a pass

  KvCache make_kv_cache(int64_t num_pages, int64_t num_slots) const;

  // Writes keys and values of all rows, then the logits of the wanted rows over this rank's
  // vocabulary. The rows' positions must be reserved in `cache`. Every rank calls it with the same
  // batch. logits: f32 [num_logits, shard().vocab.size()]
  void forward(const Batch& batch, KvCache& cache, TensorView logits, Stream& stream);

  // Passes keep, from now on, what enters these layers, ascending, beside what enters the LM head.
  void keep_states(std::span<const int32_t> aux_layers);

  // What the last pass, of so many rows, left at those whose logits were wanted: bf16 [num_logits,
  // (1 + aux_layers) * hidden]: what entered the LM head, and what entered the attention of each
  // auxiliary layer, normed too. The same on every rank; stands until the next pass. segmented: it
  // had several segments.
  TensorView states(int64_t rows, int64_t num_logits, bool segmented = false) const;

 private:
  struct Scratch;  // of one pass

  TensorView embed(const Batch& batch, const Scratch& scratch, Stream& stream);
  void keep(int64_t which, const Batch& batch, const Scratch& scratch, Stream& stream);
  void norm(const NormWeights& weights, TensorView addend, const Scratch& scratch, Stream& stream);
  void attention_block(const LayerWeights& layer, TensorView addend, TensorView k_pages,
                       TensorView v_pages, const Batch& batch, const KvCache& cache,
                       const Scratch& scratch, bool only_cache, Stream& stream);
  void ffn_block(const LayerWeights& layer, const Scratch& scratch, Stream& stream);
  Scratch scratch_for(int64_t rows) const;

  Backend& backend_;
  Communicator& communicator_;
  ModelConfig config_;
  Shard shard_;
  int64_t max_rows_;
  int64_t max_positions_;
  std::unique_ptr<const Weights> weights_;
  Buffer rope_;           // f32 [2, max_positions, head_dim / 2]: cosines, then sines; empty where
                          // positions are learned
  TensorView cos_, sin_;  // of it, f32 [max_positions, head_dim / 2]; empty likewise
  Buffer scored_tokens_;  // i32 [draft_token_ids]; empty where the head is not trimmed
  Buffer scratch_;        // everything that a pass of max_rows writes
  std::vector<int32_t> aux_layers_;
  Buffer states_;  // bf16 [max_rows, (1 + aux_layers) * hidden]; empty where there are none
};

}  // namespace outrider
