// A model's weights: which tensors a checkpoint must hold, and this rank's slices of them, packed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/model_config.h"
#include "model/safetensors.h"
#include "model/shard.h"
#include "model/weight_reader.h"

namespace outrider {

// Throws Error naming file and tensor unless the checkpoint holds just what the config describes:
// every tensor, in its shape, in bfloat16, and no other. (Tied models may bring a copy of the
// embedding as lm_head.weight, old ones the frequencies of RoPE or the masks of GPT-2's attention,
// which are not read.)
void check_tensors(const Checkpoint& checkpoint, const ModelConfig& config);

// The name of the embedding in a checkpoint that passes check_tensors.
std::string embedding_tensor(const Checkpoint& checkpoint, const ModelConfig& config);

struct NormWeights {
  WeightVector weight;  // [hidden]
  WeightVector bias;    // [hidden]; empty for Norm::rms
};

// Column-parallel: this rank's output rows. Row-parallel: its input columns; the partial products
// are summed over the ranks, and rank 0 alone holds the bias, so that the sum has it once.
struct LayerWeights {
  NormWeights input_norm;
  PackedWeight qkv;             // column-parallel: [(heads + 2 kv_heads) * head_dim, hidden]
  WeightVector qkv_bias;        // [(heads + 2 kv_heads) * head_dim]
  PackedWeight attention_out;   // row-parallel: [hidden, heads * head_dim]
  WeightVector attention_bias;  // [hidden]
  NormWeights ffn_norm;
  PackedWeight ffn_in;        // column-parallel: [num_ffn_in * intermediate, hidden]
  WeightVector ffn_in_bias;   // [num_ffn_in * intermediate]
  PackedWeight ffn_out;       // row-parallel: [hidden, intermediate]
  WeightVector ffn_out_bias;  // [hidden]
};

struct Weights {
  PackedWeight embedding;           // vocabulary-parallel: [vocab, hidden]
  PackedWeight position_embedding;  // whole on each rank: [max_position_embeddings, hidden];
                                    // empty for Positions::rotary
  std::vector<LayerWeights> layers;
  NormWeights norm;
  PackedWeight untied_head;  // [head, hidden]: vocabulary-parallel; empty where the embedding is
                             // the LM head too

  const PackedWeight& lm_head() const { return untied_head.n > 0 ? untied_head : embedding; }
};

// Reads this rank's slices alone. `progress` (may be empty) hears the share done, 0 … 1. Throws
// Error as check_tensors does, where a tied model's lm_head.weight is no copy of the embedding, or
// where memory runs out.
Weights load_weights(const Checkpoint& checkpoint, const ModelConfig& config, const Shard& shard,
                     Backend& backend, const std::function<void(double)>& progress);

// Bytes of one rank's parameters, biases in bf16 as the checkpoint has them.
struct WeightBytes {
  int64_t held = 0;
  int64_t read_each_pass = 0;  // all but embeddings of their own, of which few rows are
};
WeightBytes weight_bytes(const ModelConfig& config, const Shard& shard);
// … of them those of tokens' and positions' embeddings, which are bf16 whatever the format is.
int64_t table_bytes(const ModelConfig& config, const Shard& shard);

}  // namespace outrider
