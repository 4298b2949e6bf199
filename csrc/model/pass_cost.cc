#include "model/pass_cost.h"

namespace outrider {

namespace {

constexpr int64_t kFloat = 4;  // bytes
constexpr int64_t kBf16 = 2;

// The pass as Transformer writes it down, block by block.
class Pass {
 public:
  Pass(const ModelConfig& config, const Shard& shard, const PassShape& shape)
      : config_(config), shard_(shard), shape_(shape) {}

  PassCost cost() {
    const int64_t hidden = config_.hidden_size;
    add(embed_cost(rows_, hidden));
    all_reduce();
    const bool learned = config_.positions == Positions::learned;
    if (learned) add(embed_cost(rows_, hidden));
    for (int64_t i = 0; i < config_.num_layers; ++i) {
      const bool only_cache = shape_.num_logits == 0 && i + 1 == config_.num_layers;
      attention_block(i > 0 || learned, only_cache);
      if (only_cache) return cost_;
      ffn_block();
    }
    norm(true);
    if (shape_.num_logits < rows_) add(gather_rows_cost(shape_.num_logits, hidden));
    const bool tied = config_.tie_word_embeddings;
    linear(shape_.num_logits, shard_.head.size(), hidden, false,
           tied ? WeightFormat::bf16 : config_.matrix_format);
    if (!config_.draft_token_ids.empty()) {
      add(expand_logits_cost(shape_.num_logits, shard_.head.size(), shard_.vocab.size()));
    }
    return cost_;
  }

 private:
  // adds: a block before, or learned positions, left something for the norm to add.
  void attention_block(bool adds, bool only_cache) {
    const AttentionShape& attention = shard_.attention;
    const int64_t hidden = config_.hidden_size;
    norm(adds);
    layer_linear(rows_, attention.qkv_width(), hidden, config_.attention_bias);
    const bool rotates = config_.positions == Positions::rotary;
    if (only_cache) return add(rope_and_cache_cost(shape_.rows, attention, rotates));
    add(rope_and_attend_cost(shape_.rows, shape_.max_positions, attention, rotates));
    layer_linear(rows_, hidden, attention.num_heads * attention.head_dim,
                 config_.attention_bias && shard_.rank == 0);
    all_reduce();
  }

  void ffn_block() {
    const int64_t hidden = config_.hidden_size;
    const int64_t ffn = shard_.intermediate.size();
    norm(true);
    add(linear_activated_cost(rows_, ffn, hidden, config_.mlp_bias, config_.activation,
                              shape_.numerics, config_.matrix_format));
    layer_linear(rows_, hidden, ffn, config_.mlp_bias && shard_.rank == 0);
    all_reduce();
  }

  void norm(bool adds) {
    const bool layer_norm = config_.norm == Norm::layer;
    add((layer_norm ? layer_norm_cost : rms_norm_cost)(rows_, config_.hidden_size, adds));
  }

  void linear(int64_t rows, int64_t n, int64_t k, bool bias, WeightFormat format) {
    add(linear_cost(rows, n, k, bias, shape_.numerics, format));
  }
  void layer_linear(int64_t rows, int64_t n, int64_t k, bool bias) {
    linear(rows, n, k, bias, config_.matrix_format);
  }

  void add(const OperationCost& cost) { cost_.operations += cost; }
  void all_reduce() {
    cost_.exchanges +=
        all_reduce_sum_cost(shard_.size, rows_ * config_.hidden_size, shape_.numerics);
  }

  const ModelConfig& config_;
  const Shard& shard_;
  const PassShape& shape_;
  int64_t rows_ = shape_.rows.rows();
  PassCost cost_;
};

}  // namespace

PassCost& PassCost::operator+=(const PassCost& other) {
  operations += other.operations;
  exchanges += other.exchanges;
  return *this;
}

PassCost pass_cost(const ModelConfig& config, const Shard& shard, const PassShape& shape) {
  return Pass(config, shard, shape).cost();
}

PassCost draft_head_cost(const DraftHeadConfig& config, int64_t rows, Numerics numerics) {
  const int64_t hidden = config.hidden_size, ffn = config.intermediate_size;
  const auto scored = static_cast<int64_t>(config.draft_token_ids.size());
  PassCost cost;
  const auto linear = [&](int64_t n, int64_t k) {
    cost.operations += linear_cost(rows, n, k, false, numerics, kDraftWeights);
  };
  cost.operations += embed_cost(rows, hidden);
  // Of the embedding, and of what the state and the FFN add.
  for (const bool adds : {false, true, true}) {
    cost.operations += rms_norm_cost(rows, hidden, adds);
  }
  if (!config.aux_layers.empty()) cost.operations += rms_norm_cost(rows, hidden, true);
  for (int inputs = 0; inputs < 2; ++inputs) linear(hidden, hidden);  // the token and the state
  cost.operations +=
      linear_activated_cost(rows, ffn, hidden, false, Activation::swiglu, numerics, kDraftWeights);
  linear(hidden, ffn);
  linear(scored, hidden);
  cost.operations += expand_logits_cost(rows, scored, config.vocab_size);
  return cost;
}

PassCost aux_projection_cost(const DraftHeadConfig& config, int64_t rows, Numerics numerics) {
  PassCost cost;
  cost.operations +=
      linear_cost(rows, config.hidden_size, config.aux_width(), false, numerics, kDraftWeights);
  return cost;
}

int64_t cuda_weight_bytes(const ModelConfig& config, const Shard& shard) {
  const auto matrix = [&](int64_t n, int64_t k) {
    return cuda_packed_bytes(n, k, config.matrix_format);
  };
  const int64_t hidden = config.hidden_size;
  const int64_t q = shard.heads.size() * config.head_dim;
  const int64_t ffn = shard.intermediate.size();
  const int64_t ffn_in = config.num_ffn_in() * ffn;
  const int64_t norm = (config.norm == Norm::layer ? 2 : 1) * hidden * kBf16;
  int64_t layer = matrix(shard.attention.qkv_width(), hidden) + matrix(hidden, q) +
                  matrix(ffn_in, hidden) + matrix(hidden, ffn) + 2 * norm;
  const int64_t summed_bias = shard.rank == 0 ? hidden : 0;
  if (config.attention_bias) layer += (shard.attention.qkv_width() + summed_bias) * kFloat;
  if (config.mlp_bias) layer += (ffn_in + summed_bias) * kFloat;
  int64_t bytes = config.num_layers * layer + norm + cuda_packed_bytes(shard.vocab.size(), hidden);
  if (!config.tie_word_embeddings) bytes += matrix(shard.head.size(), hidden);
  if (config.positions == Positions::learned) {
    bytes += cuda_packed_bytes(config.max_position_embeddings, hidden);
  }
  return bytes;
}

int64_t cuda_weight_bytes(const DraftHeadConfig& config) {
  const int64_t hidden = config.hidden_size, ffn = config.intermediate_size;
  const auto scored = static_cast<int64_t>(config.draft_token_ids.size());
  const auto packed = [](int64_t n, int64_t k) { return cuda_packed_bytes(n, k, kDraftWeights); };
  const int64_t aux = config.aux_layers.empty() ? 0 : packed(hidden, config.aux_width());
  return cuda_packed_bytes(config.vocab_size, hidden) + 2 * packed(hidden, hidden) + aux +
         packed(2 * ffn, hidden) + packed(hidden, ffn) + packed(scored, hidden) +
         3 * hidden * kBf16;
}

int64_t transformer_workspace_bytes(const ModelConfig& config, const Shard& shard, int64_t max_rows,
                                    int64_t max_positions) {
  const int64_t q = shard.heads.size() * config.head_dim;
  const auto scored = static_cast<int64_t>(config.draft_token_ids.size());
  const int64_t floats = 2 * config.hidden_size + shard.attention.qkv_width() + scored;
  const int64_t halves = 2 * config.hidden_size + q + shard.intermediate.size();
  const bool rotary = config.positions == Positions::rotary;
  const int64_t angles = rotary ? max_positions * config.head_dim : 0;  // cosines and sines
  return max_rows * (floats * kFloat + halves * kBf16) + (angles + scored) * kFloat;
}

int64_t draft_head_workspace_bytes(const DraftHeadConfig& config, int64_t max_rows) {
  const int64_t hidden = config.hidden_size, ffn = config.intermediate_size;
  const auto scored = static_cast<int64_t>(config.draft_token_ids.size());
  const int64_t floats = 2 * hidden + scored, halves = hidden + ffn;
  return max_rows * (floats * kFloat + halves * kBf16) + scored * kFloat;
}

}  // namespace outrider
