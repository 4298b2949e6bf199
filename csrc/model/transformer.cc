#include "model/transformer.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "model/rope.h"
#include "model/safetensors.h"
#include "model/weights.h"

namespace outrider {

namespace {

constexpr size_t kScratchAlignment = 64;  // bytes: a cache line

}  // namespace

int64_t longest_context(const ModelConfig& config, int64_t max_positions) {
  CHECK(max_positions >= 0);
  if (max_positions == 0) return config.max_position_embeddings;
  if (max_positions > config.max_position_embeddings) {
    throw Error("--max-positions is " + std::to_string(max_positions) +
                "; expected at most the model's max_position_embeddings, " +
                std::to_string(config.max_position_embeddings));
  }
  return max_positions;
}

// The residual stream and what stands between two operations of a layer. Views of `scratch_`, laid
// out for max_rows, cut to the pass's rows.
struct Transformer::Scratch {
  TensorView residual;   // f32 [rows, hidden]: what the norms before have added up
  TensorView normed;     // bf16 [rows, hidden]
  TensorView wanted;     // bf16 [rows, hidden]: the rows whose logits are wanted, at its head
  TensorView partial;    // f32 [rows, hidden]: this rank's share of a row-parallel product, then
                         // the ranks' sum, which the next norm adds
  TensorView qkv;        // f32 [rows, (heads + 2 kv_heads) * head_dim]
  TensorView attention;  // bf16 [rows, heads * head_dim]
  TensorView activated;  // bf16 [rows, intermediate]
  TensorView scored;     // f32 [rows, draft_token_ids]: logits of a trimmed head

  // Calls place(view, dtype, width) for each.
  template <typename Place>
  void lay_out(const ModelConfig& config, const Shard& shard, Place place) {
    place(residual, DType::f32, config.hidden_size);
    place(normed, DType::bf16, config.hidden_size);
    place(wanted, DType::bf16, config.hidden_size);
    place(partial, DType::f32, config.hidden_size);
    place(qkv, DType::f32, shard.attention.qkv_width());
    place(attention, DType::bf16, shard.attention.num_heads * config.head_dim);
    place(activated, DType::bf16, shard.intermediate.size());
    place(scored, DType::f32, static_cast<int64_t>(config.draft_token_ids.size()));
  }
};

Transformer::Transformer(const std::filesystem::path& directory, Backend& backend,
                         Communicator& communicator, int64_t max_rows, int64_t max_positions,
                         const std::function<void(double)>& progress)
    : Transformer(
          ModelConfig::load(directory),
          [&](const ModelConfig& config, const Shard& shard, Backend& to) {
            return load_weights(Checkpoint(directory), config, shard, to, progress);
          },
          backend, communicator, max_rows, max_positions) {}

Transformer::Transformer(const ModelConfig& config, const WeightsMaker& make_weights,
                         Backend& backend, Communicator& communicator, int64_t max_rows,
                         int64_t max_positions)
    : backend_(backend),
      communicator_(communicator),
      config_(config),
      shard_(Shard::of(config_, communicator.rank(), communicator.size())),
      max_rows_(max_rows),
      max_positions_(longest_context(config_, max_positions)) {
  CHECK(max_rows > 0);
  weights_ = std::make_unique<const Weights>(make_weights(config_, shard_, backend_));

  if (config_.positions == Positions::rotary) {
    const RopeTables tables = make_rope_tables(config_, max_positions_);
    const size_t table_bytes = tables.cos.size() * sizeof(float);
    const int64_t half = config_.head_dim / 2;
    rope_ = backend_.allocate(2 * table_bytes);
    cos_ = rope_.view(DType::f32, {max_positions_, half});
    sin_ = rope_.view(DType::f32, {max_positions_, half}, table_bytes);
    Stream stream = backend_.make_stream();
    backend_.copy_from_host(cos_, tables.cos.data(), stream);
    backend_.copy_from_host(sin_, tables.sin.data(), stream);
    backend_.synchronize(stream);
  }

  if (!config_.draft_token_ids.empty()) {
    scored_tokens_ = upload_tokens(config_.draft_token_ids, backend_);
  }

  size_t scratch_bytes = 0;
  Scratch().lay_out(config_, shard_, [&](TensorView&, DType dtype, int64_t width) {
    scratch_bytes += max_rows_ * width * dtype_bytes(dtype) + kScratchAlignment;
  });
  scratch_ = backend_.allocate(scratch_bytes);
  backend_.reserve_activation(max_rows_, config_.num_ffn_in() * shard_.intermediate.size());
  backend_.reserve_attention(max_rows_, max_positions_, shard_.attention);
  backend_.forget_replayed();  // of another model: the memory that its sums take may move
  communicator_.reserve_sum(max_rows_ * config_.hidden_size);
}

Transformer::~Transformer() = default;

int64_t Transformer::weight_bytes() const {
  return outrider::weight_bytes(config_, shard_).read_each_pass;
}

KvCache Transformer::make_kv_cache(int64_t num_pages, int64_t num_slots) const {
  return KvCache(backend_, config_.num_layers, shard_.attention, num_pages, num_slots,
                 max_positions_);
}

Transformer::Scratch Transformer::scratch_for(int64_t rows) const {
  Scratch scratch;
  size_t offset = 0;
  scratch.lay_out(config_, shard_, [&](TensorView& view, DType dtype, int64_t width) {
    view = scratch_.view(dtype, {rows, width}, offset);
    offset += max_rows_ * width * dtype_bytes(dtype) + kScratchAlignment - 1;
    offset -= offset % kScratchAlignment;
  });
  return scratch;
}

void Transformer::keep_states(std::span<const int32_t> aux_layers) {
  CHECK(std::is_sorted(aux_layers.begin(), aux_layers.end()));
  CHECK(aux_layers.empty() || aux_layers.back() < config_.num_layers);
  aux_layers_.assign(aux_layers.begin(), aux_layers.end());
  if (aux_layers.empty()) return;
  const auto width = static_cast<int64_t>(1 + aux_layers.size()) * config_.hidden_size;
  states_ = backend_.allocate(sizeof(bf16) * max_rows_ * width);
  backend_.forget_replayed();  // passes that did not keep them
}

TensorView Transformer::states(int64_t rows, int64_t num_logits, bool segmented) const {
  if (!aux_layers_.empty()) {
    const auto width = static_cast<int64_t>(1 + aux_layers_.size()) * config_.hidden_size;
    return states_.view(DType::bf16, {num_logits, width});
  }
  const Scratch scratch = scratch_for(rows);
  return num_logits < rows || segmented ? scratch.wanted.rows(0, num_logits) : scratch.normed;
}

// Of the wanted rows' states the place `which`, from what is normed now.
void Transformer::keep(int64_t which, const Batch& batch, const Scratch& scratch, Stream& stream) {
  const int64_t hidden = config_.hidden_size;
  const TensorView all = states(batch.tokens.extent(0), batch.logit_rows.extent(0));
  backend_.gather_rows(scratch.normed, batch.logit_rows,
                       all.slice(1, which * hidden, (which + 1) * hidden), stream);
}

void Transformer::forward(const Batch& batch, KvCache& cache, TensorView logits, Stream& stream) {
  const int64_t rows = batch.tokens.extent(0);
  const int64_t num_logits = batch.logit_rows.extent(0);
  CHECK(rows <= max_rows_ && batch.positions.extent(0) == rows && batch.slots.extent(0) == rows);
  CHECK(num_logits <= rows && logits.extent(0) == num_logits);
  CHECK(num_logits == 0 || logits.extent(1) == shard_.vocab.size());
  if (rows == 0) return;

  const Scratch scratch = scratch_for(rows);
  TensorView addend = embed(batch, scratch, stream);
  size_t aux = 0;
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    // A chunk of a prompt is only there for the cache: behind its last entry nothing is computed.
    const bool only_cache = num_logits == 0 && i + 1 == config_.num_layers;
    const LayerWeights& layer = weights_->layers[i];
    attention_block(layer, addend, cache.k_pages(i), cache.v_pages(i), batch, cache, scratch,
                    only_cache, stream);
    if (only_cache) return;
    if (num_logits > 0 && aux < aux_layers_.size() && aux_layers_[aux] == i) {
      keep(static_cast<int64_t>(++aux), batch, scratch, stream);  // what the block has normed
    }
    ffn_block(layer, scratch, stream);
    addend = scratch.partial;
  }

  norm(weights_->norm, addend, scratch, stream);
  TensorView wanted = scratch.normed;
  // Where they are all rows in their order nothing is gathered.
  if (num_logits < rows || batch.segment_ends.size() > 1) {
    wanted = scratch.wanted.rows(0, num_logits);
    backend_.gather_rows(scratch.normed, batch.logit_rows, wanted, stream);
  }
  if (!aux_layers_.empty()) keep(0, batch, scratch, stream);
  if (!config_.draft_token_ids.empty()) {
    const TensorView scored = scratch.scored.rows(0, num_logits);
    backend_.linear(weights_->lm_head(), wanted, {}, scored, stream);
    const TensorView tokens = scored_tokens_.view(DType::i32, {scored.extent(1)});
    backend_.expand_logits(scored, tokens, logits, stream);
    return;
  }
  // Vocabulary-parallel: each rank keeps the logits of its own tokens; nothing is gathered.
  backend_.linear(weights_->lm_head(), wanted, {}, logits, stream);
}

// x = E[token]. Returns what the first norm adds: P[position] where positions are learned.
TensorView Transformer::embed(const Batch& batch, const Scratch& scratch, Stream& stream) {
  // Vocabulary-parallel: one rank has the token's row, the others add zeros, so the sum is exact.
  backend_.embed(weights_->embedding, batch.tokens, shard_.vocab.begin, scratch.residual, stream);
  communicator_.all_reduce_sum(scratch.residual, stream);
  if (config_.positions == Positions::rotary) return {};
  backend_.embed(weights_->position_embedding, batch.positions, 0, scratch.partial, stream);
  return scratch.partial;
}

// residual += addend, residual -> normed
void Transformer::norm(const NormWeights& weights, TensorView addend, const Scratch& scratch,
                       Stream& stream) {
  const TensorView x = scratch.residual, y = scratch.normed;
  if (config_.norm == Norm::layer) {
    backend_.layer_norm(x, addend, weights.weight.view, weights.bias.view, config_.norm_eps, y,
                        stream);
  } else {
    backend_.rms_norm(x, addend, weights.weight.view, config_.norm_eps, y, stream);
  }
}

// x += addend; partial = W_o attention(rope(W_qkv norm(x))), without rope where positions are
// learned
void Transformer::attention_block(const LayerWeights& layer, TensorView addend, TensorView k_pages,
                                  TensorView v_pages, const Batch& batch, const KvCache& cache,
                                  const Scratch& scratch, bool only_cache, Stream& stream) {
  norm(layer.input_norm, addend, scratch, stream);
  // Column-parallel: whole heads.
  backend_.linear(layer.qkv, scratch.normed, layer.qkv_bias.view, scratch.qkv, stream);
  const int64_t rows = batch.tokens.extent(0);
  const std::span<const int64_t> one(&rows, 1);
  int64_t begin = 0;
  for (const int64_t end : batch.segment_ends.empty() ? one : batch.segment_ends) {
    const RowMap map = {batch.positions.slice(0, begin, end), batch.slots.slice(0, begin, end),
                        cache.page_tables(), /*behind_others=*/begin > 0, batch.context};
    const TensorView qkv = scratch.qkv.rows(begin, end);
    const TensorView y = scratch.attention.rows(begin, end);
    if (only_cache) {
      backend_.rope_and_cache(qkv, cos_, sin_, k_pages, v_pages, map, shard_.attention, stream);
    } else {
      backend_.rope_and_attend(qkv, cos_, sin_, k_pages, v_pages, y, map, shard_.attention, stream);
    }
    begin = end;
  }
  if (only_cache) return;
  // Row-parallel: partial products, summed in rank order.
  backend_.linear(layer.attention_out, scratch.attention, layer.attention_bias.view,
                  scratch.partial, stream);
  communicator_.all_reduce_sum(scratch.partial, stream);
}

// x += partial; partial = W_out (silu(W_gate norm(x)) * W_up norm(x)), or W_out gelu(W_in norm(x))
void Transformer::ffn_block(const LayerWeights& layer, const Scratch& scratch, Stream& stream) {
  norm(layer.ffn_norm, scratch.partial, scratch, stream);
  // Column-parallel: this rank's FFN columns (of gate and up both, where there are two).
  backend_.linear_activated(layer.ffn_in, scratch.normed, layer.ffn_in_bias.view,
                            config_.activation, scratch.activated, stream);
  // Row-parallel: partial products, summed in rank order.
  backend_.linear(layer.ffn_out, scratch.activated, layer.ffn_out_bias.view, scratch.partial,
                  stream);
  communicator_.all_reduce_sum(scratch.partial, stream);
}

}  // namespace outrider
