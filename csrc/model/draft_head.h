// DraftHead: guesses the token after the next one from the target's own last states and the next
// token: one layer without attention, under rows of the target's LM head. Its matrices are held in
// 8 bits, half of the bytes, which rounds guesses that are checked anyway. Ranks
// that are near each other split its FFN by columns and its LM head by rows; elsewhere it is whole
// on each.
// Chen et al. 2023 (section 4) name such heads as drafts; Li et al. 2024 (EAGLE) feed the next
// token; Li et al. 2025 (EAGLE-3) states of lower layers, too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "model/weight_reader.h"

namespace outrider {

struct DraftHeadConfig {
  int64_t hidden_size = 0;  // the target's
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;  // the target's
  float rms_norm_eps = 0;
  std::vector<int32_t>
      draft_token_ids;  // tokens that it scores, ascending; others are never drafted
  // Of the target, ascending; may be none. It takes what enters their attention, normed by the
  // layer. (EAGLE-3 takes what enters the layer.)
  std::vector<int32_t> aux_layers;
  std::string target;  // checkpoint_hash of the model that it was trained on; empty: any

  int64_t aux_width() const { return static_cast<int64_t>(aux_layers.size()) * hidden_size; }

  // Reads config.json. Throws Error naming file and field.
  static DraftHeadConfig load(const std::filesystem::path& directory);
};

// Reads all of a head but its weights, and returns its config. target: as for DraftHead, and throws
// Error as it does.
DraftHeadConfig check_draft_head(const std::filesystem::path& directory,
                                 const std::filesystem::path& target);

// Of the subdirectories of `directory` the one whose config.json is a head's and names
// `target_hash`, a checkpoint_hash, as its target; nullopt where there is none, or no `directory`.
// What the others are does not matter. Throws Error where that config.json is broken, or where
// there are two of them.
std::optional<std::filesystem::path> find_draft_head(const std::filesystem::path& directory,
                                                     const std::string& target_hash);

class DraftHead {
 public:
  // Every rank makes it; what is equal on those of a host, they share. target: the directory whose
  // embedding and LM head it has. max_rows: of a pass. Throws Error naming file and tensor, or
  // where the head is for a model of another shape.
  DraftHead(const std::filesystem::path& directory, const std::filesystem::path& target,
            Backend& backend, Communicator& communicator, int64_t max_rows);

  const DraftHeadConfig& config() const { return config_; }
  int64_t weight_bytes() const;  // that this rank reads once a pass, `project` aside
  // Ranks that it is split over: its bits depend on that.
  int num_parts() const { return split_over_ == nullptr ? 1 : split_over_->size(); }

  // What the auxiliary states add in every round behind a pass of the target. aux: bf16 [rows,
  // aux_width]: what enters those layers of the target, normed, at the last position that it has
  // computed. carried: f32 [rows, hidden]
  void project(TensorView aux, TensorView carried, Stream& stream);

  // states: bf16 [rows, hidden]: what enters the target's LM head at the position before each
  // token; comes to be the guess of what enters it at the token's own. carried: of `project`; empty
  // where there are no auxiliary layers. tokens: i32 [rows]. logits: f32 [rows, vocab_size], of the
  // tokens that follow. On every rank, with the same rows; all end with equal bits.
  void forward(TensorView states, TensorView carried, TensorView tokens, TensorView logits,
               Stream& stream);

 private:
  Backend& backend_;
  DraftHeadConfig config_;
  Communicator* split_over_;  // null: it is whole on each rank
  int64_t max_rows_;
  PackedWeight embedding_;   // [vocab, hidden]
  WeightVector embed_norm_;  // [hidden]
  PackedWeight embed_proj_;  // [hidden, hidden]
  PackedWeight state_proj_;  // [hidden, hidden]
  PackedWeight aux_proj_;    // [hidden, aux_width]; none where that is 0
  WeightVector ffn_norm_;    // [hidden]
  PackedWeight gate_up_;     // [2 intermediate of this rank, hidden]
  PackedWeight down_;        // [hidden, intermediate of this rank]
  WeightVector norm_;        // [hidden]
  PackedWeight lm_head_;     // [draft_token_ids of this rank, as many on each, hidden]
  Buffer scored_tokens_;     // i32 [draft_token_ids]
  // Of a pass:
  Buffer residual_, partial_;  // f32 [max_rows, hidden]
  Buffer normed_;              // bf16 [max_rows, hidden]
  Buffer activated_;           // bf16 [max_rows, intermediate of this rank]
  Buffer scored_;              // f32 [max_rows, draft_token_ids of this rank]
  Buffer gathered_;            // f32 [max_rows, those of all ranks]; where it is split
};

}  // namespace outrider
