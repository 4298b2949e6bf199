#include "model/weights.h"

#include <string>

#include "model/weight_reader.h"

namespace outrider {

namespace {

constexpr char kNorm[] = "model.norm.weight";

std::string layer_prefix(int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }

LayerWeights load_layer(WeightReader& reader, const ModelConfig& config, const Shard& shard,
                        int64_t number) {
  const std::string attention = layer_prefix(number) + "self_attn.";
  const std::string mlp = layer_prefix(number) + "mlp.";
  const int64_t head_dim = config.head_dim;
  const Range q = {shard.heads.begin * head_dim, shard.heads.end * head_dim};
  const Range kv = {shard.kv_heads.begin * head_dim, shard.kv_heads.end * head_dim};
  const Range ffn = shard.intermediate;
  const bool first_rank = shard.rank == 0;

  LayerWeights layer;
  layer.input_norm = reader.norm(layer_prefix(number) + "input_layernorm.weight");
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
  layer.ffn_norm = reader.norm(layer_prefix(number) + "post_attention_layernorm.weight");
  layer.gate_up = reader.pack(
      {reader.rows(mlp + "gate_proj.weight", ffn), reader.rows(mlp + "up_proj.weight", ffn)});
  layer.down = reader.pack({reader.columns(mlp + "down_proj.weight", ffn)});
  if (config.mlp_bias) {
    layer.gate_up_bias = reader.bias(
        {reader.rows(mlp + "gate_proj.bias", ffn), reader.rows(mlp + "up_proj.bias", ffn)});
    if (first_rank) layer.down_bias = reader.bias({reader.view(mlp + "down_proj.bias")});
  }
  return layer;
}

}  // namespace

void check_tensors(const Checkpoint& checkpoint, const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t ffn = config.intermediate_size;
  const int64_t q = config.num_heads * config.head_dim;
  const int64_t kv = config.num_kv_heads * config.head_dim;
  TensorChecker checker(checkpoint);
  checker.expect(kEmbeddingTensor, {config.vocab_size, hidden}, "vocab_size, hidden_size");
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string attention = layer_prefix(layer) + "self_attn.";
    const std::string mlp = layer_prefix(layer) + "mlp.";
    const char* q_source = "num_attention_heads * head_dim, hidden_size";
    const char* kv_source = "num_key_value_heads * head_dim, hidden_size";
    checker.expect(layer_prefix(layer) + "input_layernorm.weight", {hidden}, "hidden_size");
    checker.expect(attention + "q_proj.weight", {q, hidden}, q_source);
    checker.expect(attention + "k_proj.weight", {kv, hidden}, kv_source);
    checker.expect(attention + "v_proj.weight", {kv, hidden}, kv_source);
    checker.expect(attention + "o_proj.weight", {hidden, q},
                   "hidden_size, num_attention_heads * head_dim");
    if (config.attention_bias) {
      checker.expect(attention + "q_proj.bias", {q}, "num_attention_heads * head_dim");
      checker.expect(attention + "k_proj.bias", {kv}, "num_key_value_heads * head_dim");
      checker.expect(attention + "v_proj.bias", {kv}, "num_key_value_heads * head_dim");
      checker.expect(attention + "o_proj.bias", {hidden}, "hidden_size");
    }
    checker.expect(layer_prefix(layer) + "post_attention_layernorm.weight", {hidden},
                   "hidden_size");
    checker.expect(mlp + "gate_proj.weight", {ffn, hidden}, "intermediate_size, hidden_size");
    checker.expect(mlp + "up_proj.weight", {ffn, hidden}, "intermediate_size, hidden_size");
    checker.expect(mlp + "down_proj.weight", {hidden, ffn}, "hidden_size, intermediate_size");
    if (config.mlp_bias) {
      checker.expect(mlp + "gate_proj.bias", {ffn}, "intermediate_size");
      checker.expect(mlp + "up_proj.bias", {ffn}, "intermediate_size");
      checker.expect(mlp + "down_proj.bias", {hidden}, "hidden_size");
    }
  }
  checker.expect(kNorm, {hidden}, "hidden_size");
  if (config.tie_word_embeddings) {
    checker.ignore(kLmHeadTensor);
  } else {
    const auto scored = static_cast<int64_t>(config.draft_token_ids.size());
    checker.expect(kLmHeadTensor, {scored > 0 ? scored : config.vocab_size, hidden},
                   scored > 0 ? "draft_token_ids, hidden_size" : "vocab_size, hidden_size");
  }
  checker.finish();
}

Weights load_weights(const Checkpoint& checkpoint, const ModelConfig& config, const Shard& shard,
                     Backend& backend, const std::function<void(double)>& progress) {
  check_tensors(checkpoint, config);
  WeightReader reader(checkpoint, backend);
  const double steps = static_cast<double>(config.num_layers) + 1;  // layers, and the rest
  Weights weights;
  weights.layers.reserve(config.num_layers);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    weights.layers.push_back(load_layer(reader, config, shard, layer));
    if (progress) progress(static_cast<double>(layer + 1) / steps);
  }
  weights.embedding = reader.pack({reader.rows(kEmbeddingTensor, shard.vocab)});
  weights.norm = reader.norm(kNorm);
  if (!config.tie_word_embeddings) {
    weights.untied_head = reader.pack({reader.rows(kLmHeadTensor, shard.head)});
  }
  if (progress) progress(1.0);
  return weights;
}

WeightBytes weight_bytes(const ModelConfig& config, const Shard& shard) {
  const int64_t hidden = config.hidden_size;
  const int64_t q = shard.heads.size() * config.head_dim;
  const int64_t kv = shard.kv_heads.size() * config.head_dim;
  const int64_t ffn = shard.intermediate.size();
  const int64_t vocabulary = shard.vocab.size() * hidden;
  int64_t layer = 2 * hidden + (q + 2 * kv) * hidden + hidden * q + 3 * ffn * hidden;
  if (config.attention_bias) layer += q + 2 * kv + (shard.rank == 0 ? hidden : 0);
  if (config.mlp_bias) layer += 2 * ffn + (shard.rank == 0 ? hidden : 0);
  const int64_t pass = config.num_layers * layer + hidden + shard.head.size() * hidden;
  const int64_t held = pass + (config.tie_word_embeddings ? 0 : vocabulary);
  const auto bytes = static_cast<int64_t>(dtype_bytes(DType::bf16));
  return {held * bytes, pass * bytes};
}

}  // namespace outrider
