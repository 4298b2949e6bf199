// ModelConfig: a checkpoint's config.json, validated whole. Immutable after load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/weight_format.h"

namespace outrider {

// "rope_type": "llama3" (Llama 3.1): low frequencies are slowed, high ones kept, those between
// interpolated.
struct Llama3RopeScaling {
  double factor = 0;
  double low_freq_factor = 0;
  double high_freq_factor = 0;
  int64_t original_max_position_embeddings = 0;
};

// What tells the families apart. Everything else of a decoder is common to them.
enum class Family { llama, gpt2 };         // names and layout of the checkpoint's tensors
enum class Norm { rms, layer };            // layer: mean and variance, with biases
enum class Positions { rotary, learned };  // learned: a row of a table is added to the embedding

constexpr int64_t kMaxVocabSize = int64_t{1} << 20;  // verification sums masses in fixed point
constexpr int64_t kMaxHiddenSize = int64_t{1} << 17;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxIntermediateSize = int64_t{1} << 20;
// Of a draft's matrices: half of bf16's bytes, and guesses that are rounded are verified like
// others.
constexpr WeightFormat kDraftWeights = WeightFormat::int8;
constexpr const char* kDraftHeadType = "outrider_draft_head";  // model_type of what is no model

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM"
  Family family = Family::llama;
  Norm norm = Norm::rms;
  Activation activation = Activation::swiglu;
  Positions positions = Positions::rotary;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rope_theta = 0;  // this and the next: of rotary positions
  std::optional<Llama3RopeScaling> rope_scaling;
  float norm_eps = 0;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  // A trimmed LM head: the tokens of its rows, ascending. Others are never predicted. Empty: it
  // has a row for every token.
  std::vector<int32_t> draft_token_ids;
  // Of the layers' matrices, and of an LM head of its own; what embeds is bf16, an LM head or not.
  WeightFormat matrix_format = WeightFormat::bf16;
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t>
      eos_token_ids;  // of generation_config.json where it has them, else of config.json

  // Matrices of [intermediate_size, hidden_size] in front of the activation: gate and up, or one.
  int64_t num_ffn_in() const { return num_inputs(activation); }

  // Reads config.json and generation_config.json (which may be absent). Throws Error naming file
  // and field, what was expected and what was found, for whatever is missing, of a wrong type, out
  // of range, inconsistent or unsupported.
  static ModelConfig load(const std::filesystem::path& directory);
  // The same of a draft, whose matrices are kDraftWeights.
  static ModelConfig load_draft(const std::filesystem::path& directory);

  // Reads a file with fields of config.json and no checkpoint around it. What it leaves out is as
  // tools/make_checkpoint.py makes it; ids of tokens stay unset. Throws as load does.
  static ModelConfig load_shape(const std::filesystem::path& file);
};

}  // namespace outrider
