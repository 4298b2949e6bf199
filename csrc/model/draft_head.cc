#include "model/draft_head.h"

#include <cstring>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "model/json_file.h"
#include "model/json_node.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace outrider {

namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr char kModelType[] = "outrider_draft_head";

Buffer floats(Backend& backend, int64_t rows, int64_t width) {
  return backend.allocate(sizeof(float) * rows * width);
}

Buffer halves(Backend& backend, int64_t rows, int64_t width) {
  return backend.allocate(sizeof(bf16) * rows * width);
}

// Rows `tokens` of a matrix on the host, packed.
PackedWeight pack_rows(TensorView from, const std::vector<int32_t>& tokens, Backend& backend) {
  const int64_t width = from.extent(1);
  std::vector<bf16> rows(tokens.size() * width);
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::memcpy(rows.data() + i * width, from.rows(tokens[i], tokens[i] + 1).raw(),
                width * sizeof(bf16));
  }
  const TensorView view(rows.data(), DType::bf16, {static_cast<int64_t>(tokens.size()), width});
  return backend.pack(std::span(&view, 1));
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
  checker.finish();
}

// Looks for the bytes: a file that cannot be parsed names its target too. One that cannot be read
// names nothing.
bool mentions(const std::filesystem::path& path, const std::string& target_hash) {
  std::error_code unreadable;
  if (!std::filesystem::is_regular_file(path, unreadable)) return false;
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  return bytes.find(target_hash) != std::string::npos;
}

}  // namespace

DraftHeadConfig DraftHeadConfig::load(const std::filesystem::path& directory) {
  const auto path = directory / "config.json";
  const nlohmann::json file = load_json_object(path, kMaxFileBytes);
  const JsonNode root(file, path);
  if (root["model_type"].string() != kModelType) {
    root["model_type"].refuse(quote(kModelType) + " (a draft model goes to --draft)");
  }
  DraftHeadConfig config;
  config.vocab_size = root["vocab_size"].integer(1, kMaxVocabSize);
  config.hidden_size = root["hidden_size"].integer(1, kMaxHiddenSize);
  config.intermediate_size = root["intermediate_size"].integer(1, kMaxIntermediateSize);
  config.rms_norm_eps = static_cast<float>(root["rms_norm_eps"].number(1e-12, 0.1));
  config.draft_token_ids = root["draft_token_ids"].ascending_token_ids(config.vocab_size);
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
  std::optional<std::filesystem::path> found;
  std::error_code unreadable;  // is as good as absent
  for (std::filesystem::directory_iterator entry(directory, unreadable), end;
       !unreadable && entry != end; entry.increment(unreadable)) {
    const std::filesystem::path candidate = entry->path();
    if (!mentions(candidate / "config.json", target_hash)) continue;
    if (DraftHeadConfig::load(candidate).target != target_hash) continue;
    if (found) {
      throw Error(directory.string() + ": " + found->filename().string() + " and " +
                  candidate.filename().string() + " are both for the model " + target_hash +
                  "; expected one draft head");
    }
    found = candidate;
  }
  return found;
}

DraftHead::DraftHead(const std::filesystem::path& directory,
                     const std::filesystem::path& target_directory, Backend& backend,
                     int64_t max_rows)
    : backend_(backend), config_(DraftHeadConfig::load(directory)), max_rows_(max_rows) {
  const ModelConfig target = ModelConfig::load(target_directory);
  const Checkpoint checkpoint(directory);
  check_tensors(directory, checkpoint, config_, target);
  const int64_t hidden = config_.hidden_size, ffn = config_.intermediate_size;
  const WeightReader reader(checkpoint, backend);
  embed_norm_ = reader.norm("embed_norm.weight");
  embed_proj_ = reader.pack({reader.view("embed_proj.weight")});
  state_proj_ = reader.pack({reader.view("state_proj.weight")});
  ffn_norm_ = reader.norm("ffn_norm.weight");
  gate_up_ = reader.pack_gate_up({reader.view("gate_proj.weight"), reader.view("up_proj.weight")});
  down_ = reader.pack({reader.view("down_proj.weight")});
  norm_ = reader.norm("norm.weight");

  const Checkpoint shared(target_directory);
  const WeightReader shared_reader(shared, backend);
  const TensorView embedding = shared_reader.view(embedding_tensor(shared, target));
  embedding_ = shared_reader.pack({embedding});
  lm_head_ = pack_rows(target.tie_word_embeddings ? embedding : shared_reader.view(kLmHeadTensor),
                       config_.draft_token_ids, backend);
  head_rows_ = make_head_rows(config_.draft_token_ids, config_.vocab_size, backend);

  residual_ = floats(backend, max_rows, hidden);
  partial_ = floats(backend, max_rows, hidden);
  normed_ = halves(backend, max_rows, hidden);
  activated_ = halves(backend, max_rows, ffn);
  scored_ = floats(backend, max_rows, lm_head_.n);
  backend.reserve_activation(max_rows, gate_up_.n);
}

int64_t DraftHead::weight_bytes() const {
  int64_t elements = embed_norm_.view.size() + ffn_norm_.view.size() + norm_.view.size();
  for (const PackedWeight* weight : {&embed_proj_, &state_proj_, &gate_up_, &down_, &lm_head_}) {
    elements += weight->n * weight->k;
  }
  return elements * static_cast<int64_t>(sizeof(bf16));
}

void DraftHead::forward(TensorView states, TensorView tokens, TensorView logits, Stream& stream) {
  const int64_t rows = tokens.extent(0);
  const int64_t hidden = config_.hidden_size, ffn = config_.intermediate_size;
  CHECK(rows <= max_rows_ && states.extent(0) == rows && logits.extent(0) == rows);
  const TensorView residual = residual_.view(DType::f32, {rows, hidden});
  const TensorView partial = partial_.view(DType::f32, {rows, hidden});
  const TensorView normed = normed_.view(DType::bf16, {rows, hidden});
  const TensorView activated = activated_.view(DType::bf16, {rows, ffn});
  const TensorView scored = scored_.view(DType::f32, {rows, lm_head_.n});

  backend_.embed(embedding_, tokens, 0, partial, stream);
  backend_.rms_norm(partial, {}, embed_norm_.view, config_.rms_norm_eps, normed, stream);
  backend_.linear(embed_proj_, normed, {}, residual, stream);
  backend_.linear(state_proj_, states, {}, partial, stream);
  backend_.rms_norm(residual, partial, ffn_norm_.view, config_.rms_norm_eps, normed, stream);
  backend_.linear_activated(gate_up_, normed, {}, Activation::swiglu, activated, stream);
  backend_.linear(down_, activated, {}, partial, stream);
  backend_.rms_norm(residual, partial, norm_.view, config_.rms_norm_eps, states, stream);
  backend_.linear(lm_head_, states, {}, scored, stream);
  backend_.expand_logits(scored, head_rows_.view(DType::i32, {config_.vocab_size}), logits, stream);
}

}  // namespace outrider
