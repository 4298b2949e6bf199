#include "model/random_weights.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace outrider {
namespace {

constexpr int64_t kValues = int64_t{1} << 23;  // 16 MiB

// SplitMix64 (Steele, Lea and Flood 2014).
uint64_t next(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

WeightVector vector_of(const void* from, DType dtype, int64_t n, Backend& backend) {
  WeightVector vector;
  vector.data = backend.allocate(n * dtype_bytes(dtype));
  vector.view = vector.data.view(dtype, {n});
  Stream stream = backend.make_stream();
  backend.copy_from_host(vector.view, from, stream);
  backend.synchronize(stream);
  return vector;
}

// Weights of 1, biases of 0.
NormWeights unit_norm(const ModelConfig& config, Backend& backend) {
  const std::vector<bf16> ones(config.hidden_size, to_bf16(1.0f)), zeros(config.hidden_size);
  NormWeights norm;
  norm.weight = vector_of(ones.data(), DType::bf16, config.hidden_size, backend);
  if (config.norm == Norm::layer) {
    norm.bias = vector_of(zeros.data(), DType::bf16, config.hidden_size, backend);
  }
  return norm;
}

WeightVector zeros(int64_t n, Backend& backend) {
  const std::vector<float> values(n);
  return vector_of(values.data(), DType::f32, n, backend);
}

}  // namespace

RandomMatrices::RandomMatrices(uint64_t seed) : values_(kValues), state_(seed) {
  for (bf16& value : values_) {
    value = to_bf16(static_cast<float>(static_cast<int64_t>(next(state_))) * 0x1p-69f);
  }
}

PackedWeight RandomMatrices::make_ffn_in(Activation activation, int64_t width, int64_t k,
                                         Backend& backend) {
  if (activation != Activation::swiglu) return make(width, k, backend);
  return backend.pack_gate_up(parts(2 * width, k), WeightFormat::bf16);
}

std::vector<TensorView> RandomMatrices::parts(int64_t n, int64_t k) {
  CHECK(k <= kValues / 2);
  const int64_t rows_at_once = kValues / 2 / k;
  std::vector<TensorView> parts;
  for (int64_t row = 0; row < n; row += rows_at_once) {
    bf16* const from = values_.data() + next(state_) % (kValues / 2 + 1);
    parts.emplace_back(from, DType::bf16,
                       std::initializer_list<int64_t>{std::min(rows_at_once, n - row), k});
  }
  return parts;
}

Weights random_weights(const ModelConfig& config, const Shard& shard, Backend& backend,
                       uint64_t seed) {
  CHECK(config.matrix_format == WeightFormat::bf16);
  RandomMatrices random(seed);
  const int64_t hidden = config.hidden_size;
  const int64_t q = shard.attention.num_heads * config.head_dim;
  const int64_t qkv = shard.attention.qkv_width();
  const int64_t ffn = shard.intermediate.size();
  const int64_t ffn_in = config.num_ffn_in() * ffn;
  const bool first_rank = shard.rank == 0;
  Weights weights;
  weights.layers.resize(config.num_layers);
  for (LayerWeights& layer : weights.layers) {
    layer.input_norm = unit_norm(config, backend);
    layer.qkv = random.make(qkv, hidden, backend);
    layer.attention_out = random.make(hidden, q, backend);
    layer.ffn_norm = unit_norm(config, backend);
    layer.ffn_in = random.make_ffn_in(config.activation, ffn, hidden, backend);
    layer.ffn_out = random.make(hidden, ffn, backend);
    if (config.attention_bias) layer.qkv_bias = zeros(qkv, backend);
    if (config.attention_bias && first_rank) layer.attention_bias = zeros(hidden, backend);
    if (config.mlp_bias) layer.ffn_in_bias = zeros(ffn_in, backend);
    if (config.mlp_bias && first_rank) layer.ffn_out_bias = zeros(hidden, backend);
  }
  weights.embedding = random.make(shard.vocab.size(), hidden, backend);
  if (config.positions == Positions::learned) {
    weights.position_embedding = random.make(config.max_position_embeddings, hidden, backend);
  }
  weights.norm = unit_norm(config, backend);
  if (!config.tie_word_embeddings) {
    weights.untied_head = random.make(shard.head.size(), hidden, backend);
  }
  return weights;
}

}  // namespace outrider
