#include "model/model_config.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "model/json_file.h"
#include "model/json_node.h"

namespace outrider {

namespace {

// Bounds on what a file may ask for, with those of the header. Products of any three of the sizes
// stay far inside 64 bits, and tables that no tensor of the file backs (RoPE's) at most 1 GiB.
constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kMaxPositions = int64_t{1} << 20;
constexpr size_t kMaxEosTokens = 64;

constexpr char kLlama[] = "LlamaForCausalLM";
constexpr char kMistral[] = "MistralForCausalLM";
constexpr char kGpt2[] = "GPT2LMHeadModel";

std::string read_architecture(const JsonNode& root) {
  const JsonNode names = root["architectures"];
  if (!names.value().is_array() || names.value().size() != 1) {
    names.refuse("an array of one architecture");
  }
  const JsonNode architecture = names.elements()[0];
  const std::string name = architecture.string();
  if (name != kLlama && name != kMistral && name != kGpt2) {
    architecture.refuse(quote(kLlama) + ", " + quote(kMistral) + " or " + quote(kGpt2));
  }
  return name;
}

// hidden_size over num_heads, the fields of which are named. `otherwise`: what else would do.
int64_t read_even_head_dim(const JsonNode& hidden_size, const char* heads_field,
                           const ModelConfig& config, const char* otherwise) {
  const int64_t head_dim = config.hidden_size / config.num_heads;
  if (config.hidden_size % config.num_heads != 0 || head_dim % 2 != 0 || head_dim > kMaxHeadDim) {
    hidden_size.refuse(std::string(heads_field) + " (" + std::to_string(config.num_heads) +
                       ") times an even number up to " + std::to_string(kMaxHeadDim) + otherwise);
  }
  return head_dim;
}

void read_heads(const JsonNode& root, ModelConfig& config) {
  config.num_heads = root["num_attention_heads"].integer(1, kMaxHeads);
  const std::string heads = std::to_string(config.num_heads);
  config.num_kv_heads = config.num_heads;
  if (!root.is_null("num_key_value_heads")) {
    config.num_kv_heads = root["num_key_value_heads"].integer(1, kMaxHeads);
  }
  if (config.num_heads % config.num_kv_heads != 0) {
    root["num_key_value_heads"].refuse("a divisor of num_attention_heads, " + heads);
  }
  if (!root.is_null("head_dim")) {
    config.head_dim = root["head_dim"].integer(2, kMaxHeadDim);
    if (config.head_dim % 2 != 0) root["head_dim"].refuse("an even number");
    return;
  }
  config.head_dim = read_even_head_dim(root["hidden_size"], "num_attention_heads", config,
                                       ", or head_dim beside it");
}

// Fields that would change the numbers and that nothing here computes.
void refuse_unsupported(const JsonNode& root, const ModelConfig& config) {
  if (!root.is_null("pretraining_tp")) root["pretraining_tp"].integer(1, 1);
  if (!root.is_null("partial_rotary_factor")) root["partial_rotary_factor"].number(1, 1);
  if (!root.is_null("hidden_act") && root["hidden_act"].string() != "silu") {
    root["hidden_act"].refuse("\"silu\"");
  }
  // A Mistral model has no biases, and a window of 4096 unless the field is there.
  const bool mistral = config.architecture == kMistral;
  if (mistral && config.attention_bias) root["attention_bias"].refuse("false for Mistral");
  if (mistral && config.mlp_bias) root["mlp_bias"].refuse("false for Mistral");
  if (mistral) root["sliding_window"];
  // Others can turn theirs off; Mistral's is on wherever it has a size.
  const bool windowed = mistral || root.boolean_or("use_sliding_window", true);
  if (!root.is_null("sliding_window") && windowed &&
      root["sliding_window"].integer(1, INT64_MAX) < config.max_position_embeddings) {
    root["sliding_window"].refuse("null, or no less than max_position_embeddings (" +
                                  std::to_string(config.max_position_embeddings) + ")");
  }
}

// root: where Transformers looks for the original length first.
Llama3RopeScaling read_llama3_scaling(const JsonNode& root, const JsonNode& node) {
  Llama3RopeScaling scaling;
  scaling.factor = node["factor"].number(1, 1e6);
  scaling.low_freq_factor = node["low_freq_factor"].number(1e-3, 1e6);
  scaling.high_freq_factor = node["high_freq_factor"].number(1e-3, 1e6);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    node["high_freq_factor"].refuse("more than low_freq_factor, " +
                                    show(node["low_freq_factor"].value()));
  }
  const std::string original = "original_max_position_embeddings";
  scaling.original_max_position_embeddings = node[original].integer(1, kMaxPositions);
  if (!root.is_null(original) &&
      root[original].integer(1, kMaxPositions) != scaling.original_max_position_embeddings) {
    root[original].refuse("that of the scaling, " + show(node[original].value()));
  }
  return scaling;
}

// "rope_theta" and "rope_scaling", or "rope_parameters" (newer Transformers), which holds both.
void read_rope(const JsonNode& root, ModelConfig& config) {
  constexpr double kMinTheta = 1.0, kMaxTheta = 1e12;
  config.rope_theta = 10000.0;
  const bool theta_given = !root.is_null("rope_theta");
  if (theta_given) config.rope_theta = root["rope_theta"].number(kMinTheta, kMaxTheta);
  const bool parameters = !root.is_null("rope_parameters");
  if (parameters && !root.is_null("rope_scaling")) {
    root["rope_scaling"].refuse("null beside rope_parameters");
  }
  const char* key = parameters ? "rope_parameters" : "rope_scaling";
  if (root.is_null(key)) return;
  const JsonNode rope = root[key];
  if (!rope.is_null("rope_theta")) {
    const double theta = rope["rope_theta"].number(kMinTheta, kMaxTheta);
    if (theta_given && theta != config.rope_theta) {
      rope["rope_theta"].refuse("the rope_theta beside it, " + show(root["rope_theta"].value()));
    }
    config.rope_theta = theta;
  }
  if (!rope.is_null("partial_rotary_factor")) rope["partial_rotary_factor"].number(1, 1);
  const JsonNode type =
      rope[rope.is_null("rope_type") && !rope.is_null("type") ? "type" : "rope_type"];
  if (type.string() == "default") return;
  if (type.string() != "llama3") type.refuse("\"llama3\" or \"default\"");
  config.rope_scaling = read_llama3_scaling(root, rope);
}

int32_t read_token_id(const JsonNode& node, const ModelConfig& config) {
  return static_cast<int32_t>(node.integer(0, config.vocab_size - 1));
}

// An integer or a list of them.
std::vector<int32_t> read_eos_token_ids(const JsonNode& node, const ModelConfig& config) {
  if (!node.value().is_array()) return {read_token_id(node, config)};
  if (node.value().size() > kMaxEosTokens) {
    node.refuse("at most " + std::to_string(kMaxEosTokens) + " ids");
  }
  std::vector<int32_t> ids;
  for (const JsonNode& id : node.elements()) ids.push_back(read_token_id(id, config));
  return ids;
}

void read_token_ids(const JsonNode& root, const std::filesystem::path& directory,
                    ModelConfig& config) {
  const std::string eos = "eos_token_id";
  if (!root.is_null("bos_token_id")) {
    config.bos_token_id = read_token_id(root["bos_token_id"], config);
  }
  if (!root.is_null(eos)) config.eos_token_ids = read_eos_token_ids(root[eos], config);

  const auto path = directory / "generation_config.json";
  if (!std::filesystem::exists(path)) return;
  const nlohmann::json file = load_json_object(path, kMaxFileBytes);
  const JsonNode generation(file, path);
  if (!generation.is_null(eos)) config.eos_token_ids = read_eos_token_ids(generation[eos], config);
}

// A head of its own with a row for each of these tokens.
std::vector<int32_t> read_draft_token_ids(const JsonNode& node, const ModelConfig& config) {
  if (config.tie_word_embeddings) {
    node.refuse("none beside tie_word_embeddings: a trimmed head has an lm_head.weight of its own");
  }
  return node.ascending_integers(config.vocab_size, "token ids");
}

// Llama and Mistral.
void read_llama(const JsonNode& root, ModelConfig& config) {
  config.hidden_size = root["hidden_size"].integer(1, kMaxHiddenSize);
  config.intermediate_size = root["intermediate_size"].integer(1, kMaxIntermediateSize);
  config.num_layers = root["num_hidden_layers"].integer(1, kMaxLayers);
  config.max_position_embeddings = root["max_position_embeddings"].integer(2, kMaxPositions);
  config.norm_eps = static_cast<float>(root["rms_norm_eps"].number(1e-12, 0.1));
  config.tie_word_embeddings = root.boolean_or("tie_word_embeddings", false);
  config.attention_bias = root.boolean_or("attention_bias", false);
  config.mlp_bias = root.boolean_or("mlp_bias", false);
  read_heads(root, config);
  refuse_unsupported(root, config);
  read_rope(root, config);
}

void read_gpt2(const JsonNode& root, ModelConfig& config) {
  config.family = Family::gpt2;
  config.norm = Norm::layer;
  config.activation = Activation::gelu_tanh;
  config.positions = Positions::learned;
  config.attention_bias = config.mlp_bias = true;
  config.hidden_size = root["n_embd"].integer(1, kMaxHiddenSize);
  config.intermediate_size = 4 * config.hidden_size;
  if (!root.is_null("n_inner")) {
    config.intermediate_size = root["n_inner"].integer(1, kMaxIntermediateSize);
  }
  config.num_layers = root["n_layer"].integer(1, kMaxLayers);
  config.num_heads = config.num_kv_heads = root["n_head"].integer(1, kMaxHeads);
  config.head_dim = read_even_head_dim(root["n_embd"], "n_head", config, "");
  config.max_position_embeddings = root["n_positions"].integer(2, kMaxPositions);
  config.norm_eps = static_cast<float>(root["layer_norm_epsilon"].number(1e-12, 0.1));
  config.tie_word_embeddings = root.boolean_or("tie_word_embeddings", true);
  // What would change the numbers and that nothing here computes.
  if (!root.is_null("activation_function") && root["activation_function"].string() != "gelu_new") {
    root["activation_function"].refuse("\"gelu_new\"");
  }
  if (!root.boolean_or("scale_attn_weights", true)) root["scale_attn_weights"].refuse("true");
  for (const char* field :
       {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"}) {
    if (root.boolean_or(field, false)) root[field].refuse("false");
  }
}

// All but the ids of tokens that end a text.
ModelConfig read_config(const JsonNode& root) {
  ModelConfig config;
  config.architecture = read_architecture(root);
  config.vocab_size = root["vocab_size"].integer(1, kMaxVocabSize);
  if (!root.is_null("quantization_config")) {
    root["quantization_config"].refuse("none: weights must be bfloat16");
  }
  if (config.architecture == kGpt2) {
    read_gpt2(root, config);
  } else {
    read_llama(root, config);
  }
  const std::string head = "draft_token_ids";
  if (!root.is_null(head)) config.draft_token_ids = read_draft_token_ids(root[head], config);
  return config;
}

}  // namespace

ModelConfig ModelConfig::load(const std::filesystem::path& directory) {
  const auto path = directory / "config.json";
  std::error_code error;  // what else is wrong with the file, reading it tells
  if (std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found) {
    throw Error(directory.string() +
                (std::filesystem::is_directory(directory) ? ": holds no config.json"
                                                          : ": is no directory") +
                "; expected a checkpoint's: config.json, *.safetensors, tokenizer.json");
  }
  const nlohmann::json file = load_json_object(path, kMaxFileBytes);
  const JsonNode root(file, path);
  if (root.get("model_type").value() == kDraftHeadType) {
    root["model_type"].refuse("a model's (a draft head goes to --draft-head)");
  }
  ModelConfig config = read_config(root);
  read_token_ids(root, directory, config);
  return config;
}

ModelConfig ModelConfig::load_draft(const std::filesystem::path& directory) {
  ModelConfig config = load(directory);
  config.matrix_format = kDraftWeights;
  return config;
}

ModelConfig ModelConfig::load_shape(const std::filesystem::path& file) {
  nlohmann::json shape = load_json_object(file, kMaxFileBytes);
  const bool gpt2 = shape.value("model_type", nlohmann::json()) == "gpt2";
  shape.emplace("architectures", nlohmann::json::array({gpt2 ? kGpt2 : kLlama}));
  shape.emplace(gpt2 ? "layer_norm_epsilon" : "rms_norm_eps", 1e-5);
  shape.emplace(gpt2 ? "n_positions" : "max_position_embeddings", gpt2 ? 1024 : 2048);
  shape.emplace("tie_word_embeddings", true);
  return read_config(JsonNode(shape, file));
}

}  // namespace outrider
