#include "model/draft_head.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "model/find_draft.h"
#include "model/json_file.h"
#include "model/json_node.h"
#include "model/model_config.h"
#include "model/shard.h"
#include "model/weights.h"

namespace outrider {

namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr const char* kAuxLayersField = "aux_hidden_state_layers";
constexpr const char* kAuxProjTensor = "aux_proj.weight";

Buffer floats(Backend& backend, int64_t rows, int64_t width) {
  return backend.allocate(sizeof(float) * rows * width);
}

Buffer halves(Backend& backend, int64_t rows, int64_t width) {
  return backend.allocate(sizeof(bf16) * rows * width);
}

// Rows `tokens` of a matrix on the host, and zeros behind them, packed.
PackedWeight pack_rows(TensorView from, std::span<const int32_t> tokens, int64_t num_rows,
                       Backend& backend) {
  const int64_t width = from.extent(1);
  std::vector<bf16> rows(num_rows * width);
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::memcpy(rows.data() + i * width, from.rows(tokens[i], tokens[i] + 1).raw(),
                width * sizeof(bf16));
  }
  const TensorView view(rows.data(), DType::bf16, {num_rows, width});
  return backend.pack(std::span(&view, 1), kDraftWeights);
}

// Where its weights are read from far away, or a collective takes as long as a pass, it is better
// whole.
bool is_split(const DraftHeadConfig& config, const Communicator& communicator) {
  const auto parts =
      std::min(config.intermediate_size, static_cast<int64_t>(config.draft_token_ids.size()));
  return communicator.size() > 1 && communicator.is_near() && parts >= communicator.size();
}

void check_same(const std::filesystem::path& directory, const char* field, int64_t found,
                int64_t expected) {
  if (found == expected) return;
  throw Error((directory / "config.json").string() + ": " + field + " is " + std::to_string(found) +
              "; expected the target's, " + std::to_string(expected));
}

void check_tensors(const std::filesystem::path& directory, const Checkpoint& checkpoint,
                   const DraftHeadConfig& config, const ModelConfig& target) {
  check_same(directory, "vocab_size", config.vocab_size, target.vocab_size);
  check_same(directory, "hidden_size", config.hidden_size, target.hidden_size);
  if (!config.aux_layers.empty() && config.aux_layers.back() >= target.num_layers) {
    throw Error((directory / "config.json").string() + ": " + kAuxLayersField + " has " +
                std::to_string(config.aux_layers.back()) +
                "; expected layers of the target, 0 to " + std::to_string(target.num_layers - 1));
  }
  const int64_t hidden = config.hidden_size, ffn = config.intermediate_size;
  TensorChecker checker(checkpoint, "model_type");
  checker.expect("embed_norm.weight", {hidden}, "hidden_size");
  checker.expect("embed_proj.weight", {hidden, hidden}, "hidden_size");
  checker.expect("state_proj.weight", {hidden, hidden}, "hidden_size");
  checker.expect("ffn_norm.weight", {hidden}, "hidden_size");
  checker.expect("gate_proj.weight", {ffn, hidden}, "intermediate_size, hidden_size");
  checker.expect("up_proj.weight", {ffn, hidden}, "intermediate_size, hidden_size");
  checker.expect("down_proj.weight", {hidden, ffn}, "hidden_size, intermediate_size");
  checker.expect("norm.weight", {hidden}, "hidden_size");
  checker.needed_by(kAuxLayersField);
  if (!config.aux_layers.empty()) {
    checker.expect(kAuxProjTensor, {hidden, config.aux_width()}, kAuxLayersField);
  }
  checker.finish();
}

}  // namespace

DraftHeadConfig DraftHeadConfig::load(const std::filesystem::path& directory) {
  const auto path = directory / "config.json";
  const nlohmann::json file = load_json_object(path, kMaxFileBytes);
  const JsonNode root(file, path);
  if (root["model_type"].string() != kDraftHeadType) {
    root["model_type"].refuse(quote(kDraftHeadType) + " (a draft model goes to --draft)");
  }
  DraftHeadConfig config;
  config.vocab_size = root["vocab_size"].integer(1, kMaxVocabSize);
  config.hidden_size = root["hidden_size"].integer(1, kMaxHiddenSize);
  config.intermediate_size = root["intermediate_size"].integer(1, kMaxIntermediateSize);
  config.rms_norm_eps = static_cast<float>(root["rms_norm_eps"].number(1e-12, 0.1));
  config.draft_token_ids =
      root["draft_token_ids"].ascending_integers(config.vocab_size, "token ids");
  if (!root.is_null(kAuxLayersField)) {
    config.aux_layers = root[kAuxLayersField].ascending_integers(kMaxLayers, "layers");
  }
  if (!root.is_null("target")) config.target = root["target"].string();
  return config;
}

DraftHeadConfig check_draft_head(const std::filesystem::path& directory,
                                 const std::filesystem::path& target) {
  DraftHeadConfig config = DraftHeadConfig::load(directory);
  check_tensors(directory, Checkpoint(directory), config, ModelConfig::load(target));
  return config;
}

std::optional<std::filesystem::path> find_draft_head(const std::filesystem::path& directory,
                                                     const std::string& target_hash) {
  return find_draft(directory, "draft head for the model " + target_hash,
                    [&](const std::filesystem::path& entry) {
                      return mentions(entry / "config.json", {kDraftHeadType, target_hash}) &&
                             DraftHeadConfig::load(entry).target == target_hash;
                    });
}

DraftHead::DraftHead(const std::filesystem::path& directory,
                     const std::filesystem::path& target_directory, Backend& backend,
                     Communicator& communicator, int64_t max_rows)
    : backend_(backend),
      config_(DraftHeadConfig::load(directory)),
      split_over_(is_split(config_, communicator) ? &communicator : nullptr),
      max_rows_(max_rows) {
  const ModelConfig target = ModelConfig::load(target_directory);
  const Checkpoint checkpoint(directory);
  check_tensors(directory, checkpoint, config_, target);
  const int64_t hidden = config_.hidden_size;
  const WeightReader reader(checkpoint, backend, kDraftWeights);
  const Checkpoint target_checkpoint(target_directory);
  const WeightReader target_reader(target_checkpoint, backend);
  const TensorView embedding = target_reader.view(embedding_tensor(target_checkpoint, target));

  const int rank = split_over_ != nullptr ? split_over_->rank() : 0;
  const int size = split_over_ != nullptr ? split_over_->size() : 1;
  backend.packed_memory();  // others'
  const Range ffn = split_ffn(config_.intermediate_size, rank, size);
  gate_up_ = reader.pack_gate_up(
      {reader.rows("gate_proj.weight", ffn), reader.rows("up_proj.weight", ffn)});
  down_ = reader.pack({reader.columns("down_proj.weight", ffn)});
  const auto scored = static_cast<int64_t>(config_.draft_token_ids.size());
  const int64_t of_rank = (scored + size - 1) / size;  // the last ones may have fewer, or none
  const int64_t first = std::min(scored, rank * of_rank);
  lm_head_ = pack_rows(
      target.tie_word_embeddings ? embedding : target_reader.view(kLmHeadTensor),
      std::span(config_.draft_token_ids).subspan(first, std::min(of_rank, scored - first)), of_rank,
      backend);
  if (split_over_ != nullptr) backend.packed_memory();  // differs from rank to rank
  embedding_ = target_reader.pack({embedding});
  embed_norm_ = reader.norm("embed_norm.weight");
  embed_proj_ = reader.pack({reader.view("embed_proj.weight")});
  state_proj_ = reader.pack({reader.view("state_proj.weight")});
  if (!config_.aux_layers.empty()) aux_proj_ = reader.pack({reader.view(kAuxProjTensor)});
  ffn_norm_ = reader.norm("ffn_norm.weight");
  norm_ = reader.norm("norm.weight");
  for (const std::span<std::byte> memory : backend.packed_memory()) communicator.share(memory);
  scored_tokens_ = upload_tokens(config_.draft_token_ids, backend);

  residual_ = floats(backend, max_rows, hidden);
  partial_ = floats(backend, max_rows, hidden);
  normed_ = halves(backend, max_rows, hidden);
  activated_ = halves(backend, max_rows, ffn.size());
  scored_ = floats(backend, max_rows, of_rank);
  backend.reserve_activation(max_rows, gate_up_.n);
  if (split_over_ == nullptr) return;
  gathered_ = floats(backend, max_rows, size * of_rank);
  split_over_->reserve_sum(max_rows * hidden);
}

int64_t DraftHead::weight_bytes() const {
  int64_t bytes = embed_norm_.view.bytes() + ffn_norm_.view.bytes() + norm_.view.bytes();
  for (const PackedWeight* weight : {&embed_proj_, &state_proj_, &gate_up_, &down_, &lm_head_}) {
    bytes += weight->n * row_bytes(weight->k, weight->format);
  }
  return bytes;
}

void DraftHead::project(TensorView aux, TensorView carried, Stream& stream) {
  backend_.linear(aux_proj_, aux, {}, carried, stream);
}

void DraftHead::forward(TensorView states, TensorView carried, TensorView tokens, TensorView logits,
                        Stream& stream) {
  const int64_t rows = tokens.extent(0);
  const int64_t hidden = config_.hidden_size;
  CHECK(rows <= max_rows_ && states.extent(0) == rows && logits.extent(0) == rows);
  CHECK((carried.raw() == nullptr) == config_.aux_layers.empty());
  const TensorView residual = residual_.view(DType::f32, {rows, hidden});
  const TensorView partial = partial_.view(DType::f32, {rows, hidden});
  const TensorView normed = normed_.view(DType::bf16, {rows, hidden});
  const TensorView activated = activated_.view(DType::bf16, {rows, down_.k});
  const TensorView scored = scored_.view(DType::f32, {rows, lm_head_.n});

  backend_.embed(embedding_, tokens, 0, partial, stream);
  backend_.rms_norm(partial, {}, embed_norm_.view, config_.rms_norm_eps, normed, stream);
  backend_.linear(embed_proj_, normed, {}, residual, stream);
  if (carried.raw() != nullptr) {  // only to add it: what is normed here is overwritten
    backend_.rms_norm(residual, carried, ffn_norm_.view, config_.rms_norm_eps, normed, stream);
  }
  backend_.linear(state_proj_, states, {}, partial, stream);
  backend_.rms_norm(residual, partial, ffn_norm_.view, config_.rms_norm_eps, normed, stream);
  backend_.linear_activated(gate_up_, normed, {}, Activation::swiglu, activated, stream);
  backend_.linear(down_, activated, {}, partial, stream);
  if (split_over_ != nullptr) split_over_->all_reduce_sum(partial, stream);
  backend_.rms_norm(residual, partial, norm_.view, config_.rms_norm_eps, states, stream);
  backend_.linear(lm_head_, states, {}, scored, stream);
  const TensorView scored_tokens =
      scored_tokens_.view(DType::i32, {static_cast<int64_t>(config_.draft_token_ids.size())});
  if (split_over_ == nullptr) {
    backend_.expand_logits(scored, scored_tokens, logits, stream);
    return;
  }
  const TensorView gathered = gathered_.view(DType::f32, {rows, split_over_->size() * lm_head_.n});
  for (int64_t r = 0; r < rows; ++r) {
    split_over_->all_gather(scored.rows(r, r + 1), gathered.rows(r, r + 1), stream);
  }
  backend_.expand_logits(gathered, scored_tokens, logits, stream);
}

}  // namespace outrider
