#include "model/weights.h"

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

#include "core/error.h"
#include "model/json_file.h"

namespace outrider {

namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kNorm[] = "model.norm.weight";
constexpr char kHead[] = "lm_head.weight";

std::string layer_prefix(int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }

// Checks tensors off against what the config describes.
class TensorChecker {
 public:
  explicit TensorChecker(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // source: the fields of config.json that the shape comes from, for the message.
  void expect(const std::string& name, std::initializer_list<int64_t> shape, const char* source) {
    const StoredTensor* tensor = checkpoint_.find(name);
    const std::string where = checkpoint_.path_of(name) + ": tensor " + name;
    if (tensor == nullptr) throw Error(where + " is missing; expected as config.json says");
    if (tensor->dtype != "BF16") {
      throw Error(where + " has dtype " + tensor->dtype +
                  "; expected BF16 (another would change the numbers)");
    }
    const std::vector<int64_t> expected = shape;
    if (tensor->shape != expected) {
      throw Error(where + " has shape " + show_shape(tensor->shape) + "; expected " +
                  show_shape(expected) + " as config.json (" + source + ") says");
    }
    known_.insert(name);
  }

  void ignore(const std::string& name) { known_.insert(name); }

  // Throws for a tensor that nothing has asked for.
  void finish() const {
    for (const auto& [name, tensor] : checkpoint_.tensors()) {
      if (!known_.contains(name) && !name.ends_with(".rotary_emb.inv_freq")) {
        throw Error(checkpoint_.path_of(name) + ": tensor " + quote(name) +
                    " is not of the model that config.json describes; expected no such tensor");
      }
    }
  }

 private:
  const Checkpoint& checkpoint_;
  std::set<std::string, std::less<>> known_;
};

// Takes slices out of a checkpoint whose tensors have been checked.
class WeightReader {
 public:
  WeightReader(const Checkpoint& checkpoint, Backend& backend)
      : checkpoint_(checkpoint), backend_(backend) {}

  // The tensor where it lies in the file: read-only, whatever TensorView allows.
  TensorView view(const std::string& name) const {
    const StoredTensor& tensor = *checkpoint_.find(name);
    void* data = const_cast<void*>(tensor.data);
    return tensor.shape.size() == 1
               ? TensorView(data, DType::bf16, {tensor.shape[0]})
               : TensorView(data, DType::bf16, {tensor.shape[0], tensor.shape[1]});
  }

  TensorView rows(const std::string& name, Range range) const {
    return view(name).rows(range.begin, range.end);
  }
  TensorView columns(const std::string& name, Range range) const {
    return view(name).slice(1, range.begin, range.end);
  }

  PackedWeight pack(std::initializer_list<TensorView> parts) {
    return backend_.pack(std::span(parts.begin(), parts.size()));
  }

  WeightVector norm(const std::string& name) {
    const TensorView from = view(name);
    return upload(from.raw(), DType::bf16, from.size());
  }

  // The parts end to end, in fp32.
  WeightVector bias(std::initializer_list<TensorView> parts) {
    std::vector<float> values;
    for (const TensorView& part : parts) {
      const bf16* from = part.data<bf16>();
      for (int64_t i = 0; i < part.size(); ++i) values.push_back(to_float(from[i]));
    }
    return upload(values.data(), DType::f32, static_cast<int64_t>(values.size()));
  }

 private:
  WeightVector upload(const void* from, DType dtype, int64_t n) {
    WeightVector vector;
    vector.data = backend_.allocate(n * dtype_bytes(dtype));
    vector.view = vector.data.view(dtype, {n});
    Stream stream = backend_.make_stream();
    backend_.copy_from_host(vector.view, from, stream);
    backend_.synchronize(stream);  // `from` may end with the caller
    return vector;
  }

  const Checkpoint& checkpoint_;
  Backend& backend_;
};

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
  checker.expect(kEmbedding, {config.vocab_size, hidden}, "vocab_size, hidden_size");
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
    checker.ignore(kHead);
  } else {
    const auto scored = static_cast<int64_t>(config.draft_token_ids.size());
    checker.expect(kHead, {scored > 0 ? scored : config.vocab_size, hidden},
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
  weights.embedding = reader.pack({reader.rows(kEmbedding, shard.vocab)});
  weights.norm = reader.norm(kNorm);
  if (!config.tie_word_embeddings) {
    weights.untied_head = reader.pack({reader.rows(kHead, shard.head)});
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
