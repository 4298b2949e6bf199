#include "model/weights.h"

#include <cstring>
#include <string>

#include "core/error.h"
#include "model/weight_reader.h"

namespace outrider {

namespace {

// What a checkpoint calls the tensors that it holds once, and where its layers begin.
struct TensorNames {
  std::string layers;  // a number and a dot follow
  std::string embedding;
  std::string position_embedding;
  std::string norm;  // ".weight" follows
};

TensorNames names_of(const Checkpoint& checkpoint, const ModelConfig& config) {
  if (config.family == Family::llama) {
    return {"model.layers.", "model.embed_tokens.weight", "", "model.norm"};
  }
  // GPT-2's first checkpoints are of the model without its head, which has no prefix.
  const std::string prefix = checkpoint.find("wte.weight") != nullptr ? "" : "transformer.";
  return {prefix + "h.", prefix + "wte.weight", prefix + "wpe.weight", prefix + "ln_f"};
}

std::string layer_prefix(const TensorNames& names, int64_t layer) {
  return names.layers + std::to_string(layer) + ".";
}

Range shifted(Range range, int64_t by) { return {range.begin + by, range.end + by}; }

void expect_norm(TensorChecker& checker, const std::string& name, const ModelConfig& config) {
  const char* source = config.family == Family::gpt2 ? "n_embd" : "hidden_size";
  checker.expect(name + ".weight", {config.hidden_size}, source);
  if (config.norm == Norm::layer) checker.expect(name + ".bias", {config.hidden_size}, source);
}

NormWeights load_norm(const WeightReader& reader, const std::string& name,
                      const ModelConfig& config) {
  NormWeights norm;
  norm.weight = reader.norm(name + ".weight");
  if (config.norm == Norm::layer) norm.bias = reader.norm(name + ".bias");
  return norm;
}

void expect_llama_layer(TensorChecker& checker, const ModelConfig& config,
                        const std::string& prefix) {
  const int64_t hidden = config.hidden_size;
  const int64_t ffn = config.intermediate_size;
  const int64_t q = config.num_heads * config.head_dim;
  const int64_t kv = config.num_kv_heads * config.head_dim;
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const char* q_source = "num_attention_heads * head_dim, hidden_size";
  const char* kv_source = "num_key_value_heads * head_dim, hidden_size";
  expect_norm(checker, prefix + "input_layernorm", config);
  checker.expect(attention + "q_proj.weight", {q, hidden}, q_source);
  checker.expect(attention + "k_proj.weight", {kv, hidden}, kv_source);
  checker.expect(attention + "v_proj.weight", {kv, hidden}, kv_source);
  checker.expect(attention + "o_proj.weight", {hidden, q},
                 "hidden_size, num_attention_heads * head_dim");
  expect_norm(checker, prefix + "post_attention_layernorm", config);
  checker.expect(mlp + "gate_proj.weight", {ffn, hidden}, "intermediate_size, hidden_size");
  checker.expect(mlp + "up_proj.weight", {ffn, hidden}, "intermediate_size, hidden_size");
  checker.expect(mlp + "down_proj.weight", {hidden, ffn}, "hidden_size, intermediate_size");
  if (config.attention_bias) {
    checker.needed_by("attention_bias is true");
    checker.expect(attention + "q_proj.bias", {q}, "num_attention_heads * head_dim");
    checker.expect(attention + "k_proj.bias", {kv}, "num_key_value_heads * head_dim");
    checker.expect(attention + "v_proj.bias", {kv}, "num_key_value_heads * head_dim");
    checker.expect(attention + "o_proj.bias", {hidden}, "hidden_size");
  }
  if (config.mlp_bias) {
    checker.needed_by("mlp_bias is true");
    checker.expect(mlp + "gate_proj.bias", {ffn}, "intermediate_size");
    checker.expect(mlp + "up_proj.bias", {ffn}, "intermediate_size");
    checker.expect(mlp + "down_proj.bias", {hidden}, "hidden_size");
  }
}

LayerWeights load_llama_layer(const WeightReader& reader, const ModelConfig& config,
                              const Shard& shard, const std::string& prefix) {
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const int64_t head_dim = config.head_dim;
  const Range q = {shard.heads.begin * head_dim, shard.heads.end * head_dim};
  const Range kv = {shard.kv_heads.begin * head_dim, shard.kv_heads.end * head_dim};
  const Range ffn = shard.intermediate;
  const bool first_rank = shard.rank == 0;

  LayerWeights layer;
  layer.input_norm = load_norm(reader, prefix + "input_layernorm", config);
  layer.qkv = reader.pack({reader.rows(attention + "q_proj.weight", q),
                           reader.rows(attention + "k_proj.weight", kv),
                           reader.rows(attention + "v_proj.weight", kv)});
  layer.attention_out = reader.pack({reader.columns(attention + "o_proj.weight", q)});
  if (config.attention_bias) {
    layer.qkv_bias = reader.bias({reader.rows(attention + "q_proj.bias", q),
                                  reader.rows(attention + "k_proj.bias", kv),
                                  reader.rows(attention + "v_proj.bias", kv)});
    if (first_rank) layer.attention_bias = reader.bias({reader.view(attention + "o_proj.bias")});
  }
  layer.ffn_norm = load_norm(reader, prefix + "post_attention_layernorm", config);
  layer.ffn_in = reader.pack_gate_up(
      {reader.rows(mlp + "gate_proj.weight", ffn), reader.rows(mlp + "up_proj.weight", ffn)});
  layer.ffn_out = reader.pack({reader.columns(mlp + "down_proj.weight", ffn)});
  if (config.mlp_bias) {
    layer.ffn_in_bias = reader.bias(
        {reader.rows(mlp + "gate_proj.bias", ffn), reader.rows(mlp + "up_proj.bias", ffn)});
    if (first_rank) layer.ffn_out_bias = reader.bias({reader.view(mlp + "down_proj.bias")});
  }
  return layer;
}

// Matrices are Conv1D's: inputs by outputs.
void expect_gpt2_layer(TensorChecker& checker, const ModelConfig& config,
                       const std::string& prefix) {
  const int64_t hidden = config.hidden_size;
  const int64_t ffn = config.intermediate_size;
  expect_norm(checker, prefix + "ln_1", config);
  checker.expect(prefix + "attn.c_attn.weight", {hidden, 3 * hidden}, "n_embd, 3 * n_embd");
  checker.expect(prefix + "attn.c_attn.bias", {3 * hidden}, "3 * n_embd");
  checker.expect(prefix + "attn.c_proj.weight", {hidden, hidden}, "n_embd, n_embd");
  checker.expect(prefix + "attn.c_proj.bias", {hidden}, "n_embd");
  expect_norm(checker, prefix + "ln_2", config);
  checker.expect(prefix + "mlp.c_fc.weight", {hidden, ffn}, "n_embd, n_inner");
  checker.expect(prefix + "mlp.c_fc.bias", {ffn}, "n_inner");
  checker.expect(prefix + "mlp.c_proj.weight", {ffn, hidden}, "n_inner, n_embd");
  checker.expect(prefix + "mlp.c_proj.bias", {hidden}, "n_embd");
  checker.ignore(prefix + "attn.bias");  // the causal mask, and what it masks with
  checker.ignore(prefix + "attn.masked_bias");
}

LayerWeights load_gpt2_layer(const WeightReader& reader, const ModelConfig& config,
                             const Shard& shard, const std::string& prefix) {
  const std::string attention = prefix + "attn.";
  const std::string mlp = prefix + "mlp.";
  const int64_t hidden = config.hidden_size;
  const Range q = {shard.heads.begin * config.head_dim, shard.heads.end * config.head_dim};
  const Range k = shifted(q, hidden), v = shifted(k, hidden);  // in c_attn
  const Range ffn = shard.intermediate;
  const bool first_rank = shard.rank == 0;

  LayerWeights layer;
  layer.input_norm = load_norm(reader, prefix + "ln_1", config);
  const std::string qkv = attention + "c_attn.weight", qkv_bias = attention + "c_attn.bias";
  layer.qkv = reader.pack_transposed(
      {reader.columns(qkv, q), reader.columns(qkv, k), reader.columns(qkv, v)});
  layer.qkv_bias =
      reader.bias({reader.rows(qkv_bias, q), reader.rows(qkv_bias, k), reader.rows(qkv_bias, v)});
  layer.attention_out = reader.pack_transposed({reader.rows(attention + "c_proj.weight", q)});
  if (first_rank) layer.attention_bias = reader.bias({reader.view(attention + "c_proj.bias")});
  layer.ffn_norm = load_norm(reader, prefix + "ln_2", config);
  layer.ffn_in = reader.pack_transposed({reader.columns(mlp + "c_fc.weight", ffn)});
  layer.ffn_in_bias = reader.bias({reader.rows(mlp + "c_fc.bias", ffn)});
  layer.ffn_out = reader.pack_transposed({reader.rows(mlp + "c_proj.weight", ffn)});
  if (first_rank) layer.ffn_out_bias = reader.bias({reader.view(mlp + "c_proj.bias")});
  return layer;
}

// Rows of a tied model's lm_head.weight, and the same of its embedding.
void check_copy(const Checkpoint& checkpoint, TensorView head, TensorView embedding) {
  if (std::memcmp(head.raw(), embedding.raw(), embedding.bytes()) == 0) return;
  throw Error(checkpoint.path_of(kLmHeadTensor) + ": tensor " + kLmHeadTensor +
              " is not the embedding's copy; expected that, or tie_word_embeddings false in "
              "config.json");
}

}  // namespace

std::string embedding_tensor(const Checkpoint& checkpoint, const ModelConfig& config) {
  return names_of(checkpoint, config).embedding;
}

void check_tensors(const Checkpoint& checkpoint, const ModelConfig& config) {
  const bool gpt2 = config.family == Family::gpt2;
  const char* vocab_source = gpt2 ? "vocab_size, n_embd" : "vocab_size, hidden_size";
  const TensorNames names = names_of(checkpoint, config);
  const int64_t hidden = config.hidden_size;
  TensorChecker checker(checkpoint, "architectures");
  checker.expect(names.embedding, {config.vocab_size, hidden}, vocab_source);
  if (config.positions == Positions::learned) {
    checker.expect(names.position_embedding, {config.max_position_embeddings, hidden},
                   "n_positions, n_embd");
  }
  const std::string num_layers = std::to_string(config.num_layers);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    checker.needed_by((gpt2 ? "n_layer is " : "num_hidden_layers is ") + num_layers);
    const auto expect_layer = gpt2 ? expect_gpt2_layer : expect_llama_layer;
    expect_layer(checker, config, layer_prefix(names, layer));
  }
  checker.needed_by("architectures");
  expect_norm(checker, names.norm, config);
  if (config.tie_word_embeddings) {
    if (checkpoint.find(kLmHeadTensor) != nullptr) {
      checker.expect(kLmHeadTensor, {config.vocab_size, hidden}, vocab_source);
    }
  } else {
    const auto scored = static_cast<int64_t>(config.draft_token_ids.size());
    checker.needed_by("tie_word_embeddings is not true");
    checker.expect(kLmHeadTensor, {scored > 0 ? scored : config.vocab_size, hidden},
                   scored > 0 ? "draft_token_ids, hidden_size" : vocab_source);
  }
  checker.finish();
}

Weights load_weights(const Checkpoint& checkpoint, const ModelConfig& config, const Shard& shard,
                     Backend& backend, const std::function<void(double)>& progress) {
  check_tensors(checkpoint, config);
  const TensorNames names = names_of(checkpoint, config);
  const WeightReader tables(checkpoint, backend);
  const WeightReader reader(checkpoint, backend, config.matrix_format);
  const double steps = static_cast<double>(config.num_layers) + 1;  // layers, and the rest
  Weights weights;
  weights.layers.reserve(config.num_layers);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const auto load_layer = config.family == Family::gpt2 ? load_gpt2_layer : load_llama_layer;
    weights.layers.push_back(load_layer(reader, config, shard, layer_prefix(names, layer)));
    if (progress) progress(static_cast<double>(layer + 1) / steps);
  }
  weights.embedding = tables.pack({tables.rows(names.embedding, shard.vocab)});
  if (config.positions == Positions::learned) {
    weights.position_embedding = tables.pack({tables.view(names.position_embedding)});
  }
  weights.norm = load_norm(reader, names.norm, config);
  if (!config.tie_word_embeddings) {
    weights.untied_head = reader.pack({reader.rows(kLmHeadTensor, shard.head)});
  } else if (checkpoint.find(kLmHeadTensor) != nullptr) {
    check_copy(checkpoint, reader.rows(kLmHeadTensor, shard.vocab),
               reader.rows(names.embedding, shard.vocab));
  }
  if (progress) progress(1.0);
  return weights;
}

WeightBytes weight_bytes(const ModelConfig& config, const Shard& shard) {
  constexpr auto kBf16 = static_cast<int64_t>(dtype_bytes(DType::bf16));
  const auto matrix = [&](int64_t n, int64_t k) { return n * row_bytes(k, config.matrix_format); };
  const int64_t hidden = config.hidden_size;
  const int64_t q = shard.heads.size() * config.head_dim;
  const int64_t qkv = q + 2 * shard.kv_heads.size() * config.head_dim;
  const int64_t ffn = shard.intermediate.size();
  const int64_t ffn_in = config.num_ffn_in() * ffn;
  const int64_t norm = (config.norm == Norm::layer ? 2 : 1) * hidden * kBf16;
  const int64_t summed_bias = shard.rank == 0 ? hidden : 0;
  int64_t layer = 2 * norm + matrix(qkv, hidden) + matrix(hidden, q) + matrix(ffn_in, hidden) +
                  matrix(hidden, ffn);
  if (config.attention_bias) layer += (qkv + summed_bias) * kBf16;
  if (config.mlp_bias) layer += (ffn_in + summed_bias) * kBf16;
  const int64_t tables = table_bytes(config, shard);
  const bool tied = config.tie_word_embeddings;
  const int64_t head =
      tied ? shard.vocab.size() * hidden * kBf16 : matrix(shard.head.size(), hidden);
  const int64_t pass = config.num_layers * layer + norm + head;
  return {.held = pass + tables - (tied ? head : 0), .read_each_pass = pass};
}

int64_t table_bytes(const ModelConfig& config, const Shard& shard) {
  int64_t rows = shard.vocab.size();
  if (config.positions == Positions::learned) rows += config.max_position_embeddings;
  return rows * config.hidden_size * static_cast<int64_t>(dtype_bytes(DType::bf16));
}

}  // namespace outrider
