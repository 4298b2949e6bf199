// load_weights reads its own rank's slices of the file and nothing else: all other pages of the
// mapped file are taken away before it runs, and reading one of them would end the process.
#include "model/weights.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/one_line_error.h"
#include "tests/testing/temporary_directory.h"

namespace outrider {
namespace {

using nlohmann::json;

// One layer whose matrices are many pages, and so long in both directions that the slices by rows
// and those by columns leave out whole pages.
ModelConfig wide_layer() {
  ModelConfig config;
  config.vocab_size = 9000;
  config.hidden_size = 24;
  config.intermediate_size = 12000;
  config.num_layers = 1;
  config.num_heads = 96;
  config.num_kv_heads = 24;
  config.head_dim = 128;
  config.tie_word_embeddings = false;
  config.attention_bias = true;
  config.mlp_bias = true;
  return config;
}

// The same of a GPT-2: narrow, as a row of c_attn is shared by all ranks page by page.
ModelConfig wide_gpt2_layer() {
  ModelConfig config;
  config.family = Family::gpt2;
  config.norm = Norm::layer;
  config.activation = Activation::gelu_tanh;
  config.positions = Positions::learned;
  config.vocab_size = 90000;
  config.hidden_size = 24;
  config.intermediate_size = 60000;
  config.num_layers = 1;
  config.num_heads = config.num_kv_heads = 6;
  config.head_dim = 4;
  config.max_position_embeddings = 16;
  config.tie_word_embeddings = true;
  config.attention_bias = config.mlp_bias = true;
  return config;
}

// A tensor of the checkpoint, and which part of it a rank may read; several parts of one tensor
// follow each other.
struct Part {
  std::string name;
  std::vector<int64_t> shape;
  Range rows, columns;
};

std::vector<Part> llama_parts(const ModelConfig& config, const Shard& shard) {
  const int64_t hidden = config.hidden_size, ffn = config.intermediate_size;
  const int64_t q = config.num_heads * config.head_dim;
  const int64_t kv = config.num_kv_heads * config.head_dim;
  const auto of_heads = [&](Range heads) {
    return Range{heads.begin * config.head_dim, heads.end * config.head_dim};
  };
  const Range whole = {0, hidden}, none = {0, 0}, one = {0, 1};
  const Range my_q = of_heads(shard.heads), my_kv = of_heads(shard.kv_heads);
  const Range behind_sum = shard.rank == 0 ? whole : none;
  const std::string layer = "model.layers.0.", attention = layer + "self_attn.";
  const std::string mlp = layer + "mlp.";
  return {
      {"model.embed_tokens.weight", {config.vocab_size, hidden}, shard.vocab, whole},
      {layer + "input_layernorm.weight", {hidden}, whole, one},
      {attention + "q_proj.weight", {q, hidden}, my_q, whole},
      {attention + "q_proj.bias", {q}, my_q, one},
      {attention + "k_proj.weight", {kv, hidden}, my_kv, whole},
      {attention + "k_proj.bias", {kv}, my_kv, one},
      {attention + "v_proj.weight", {kv, hidden}, my_kv, whole},
      {attention + "v_proj.bias", {kv}, my_kv, one},
      {attention + "o_proj.weight", {hidden, q}, whole, my_q},
      {attention + "o_proj.bias", {hidden}, behind_sum, one},
      {layer + "post_attention_layernorm.weight", {hidden}, whole, one},
      {mlp + "gate_proj.weight", {ffn, hidden}, shard.intermediate, whole},
      {mlp + "gate_proj.bias", {ffn}, shard.intermediate, one},
      {mlp + "up_proj.weight", {ffn, hidden}, shard.intermediate, whole},
      {mlp + "up_proj.bias", {ffn}, shard.intermediate, one},
      {mlp + "down_proj.weight", {hidden, ffn}, whole, shard.intermediate},
      {mlp + "down_proj.bias", {hidden}, behind_sum, one},
      {"model.norm.weight", {hidden}, whole, one},
      {"lm_head.weight", {config.vocab_size, hidden}, shard.vocab, whole},
  };
}

std::vector<Part> gpt2_parts(const ModelConfig& config, const Shard& shard) {
  const int64_t hidden = config.hidden_size, ffn = config.intermediate_size;
  const Range whole = {0, hidden}, none = {0, 0}, one = {0, 1};
  const Range behind_sum = shard.rank == 0 ? whole : none;
  const Range q = {shard.heads.begin * config.head_dim, shard.heads.end * config.head_dim};
  const Range k = {q.begin + hidden, q.end + hidden}, v = {k.begin + hidden, k.end + hidden};
  const Range positions = {0, config.max_position_embeddings};
  const std::string layer = "transformer.h.0.";
  std::vector<Part> parts = {
      {"transformer.wte.weight", {config.vocab_size, hidden}, shard.vocab, whole},
      {"transformer.wpe.weight", {positions.end, hidden}, positions, whole},
  };
  for (const char* norm : {"ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"}) {
    parts.push_back({layer + norm, {hidden}, whole, one});
  }
  for (const Range& columns : {q, k, v}) {
    parts.push_back({layer + "attn.c_attn.weight", {hidden, 3 * hidden}, whole, columns});
  }
  for (const Range& rows : {q, k, v}) {
    parts.push_back({layer + "attn.c_attn.bias", {3 * hidden}, rows, one});
  }
  for (const Part& part : std::vector<Part>{
           {layer + "attn.c_proj.weight", {hidden, hidden}, q, whole},
           {layer + "attn.c_proj.bias", {hidden}, behind_sum, one},
           {layer + "mlp.c_fc.weight", {hidden, ffn}, whole, shard.intermediate},
           {layer + "mlp.c_fc.bias", {ffn}, shard.intermediate, one},
           {layer + "mlp.c_proj.weight", {ffn, hidden}, shard.intermediate, whole},
           {layer + "mlp.c_proj.bias", {hidden}, behind_sum, one},
           {"transformer.ln_f.weight", {hidden}, whole, one},
           {"transformer.ln_f.bias", {hidden}, whole, one},
       }) {
    parts.push_back(part);
  }
  return parts;
}

std::vector<Part> parts_of(const ModelConfig& config, const Shard& shard) {
  return config.family == Family::gpt2 ? gpt2_parts(config, shard) : llama_parts(config, shard);
}

void write_checkpoint(const TemporaryDirectory& directory, const std::vector<Part>& parts) {
  json header = json::object();
  int64_t end = 0;
  for (const Part& part : parts) {
    if (header.contains(part.name)) continue;
    int64_t bytes = sizeof(bf16);
    for (const int64_t size : part.shape) bytes *= size;
    header[part.name] = {
        {"dtype", "BF16"}, {"shape", part.shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  directory.write("model.safetensors",
                  std::string(reinterpret_cast<const char*>(&length), sizeof length) + text +
                      std::string(end, '\0'));
}

// Takes away every page of the mapped tensors that holds nothing of `parts`. Returns the share of
// the tensors' bytes that went.
double take_other_pages_away(const Checkpoint& checkpoint, const std::vector<Part>& parts) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = [&](const Part& part) {
    return reinterpret_cast<uintptr_t>(checkpoint.find(part.name)->data);
  };
  uintptr_t begin = UINTPTR_MAX, end = 0;
  for (const Part& part : parts) {
    begin = std::min(begin, address(part));
    end = std::max(end, address(part) + checkpoint.find(part.name)->bytes);
  }
  const uintptr_t first = begin / page;
  std::vector<bool> needed((end - 1) / page - first + 1);
  needed.front() = true;  // the header's end
  for (const Part& part : parts) {
    const int64_t width = part.shape.size() == 1 ? 1 : part.shape[1];
    for (int64_t row = part.rows.begin; row < part.rows.end; ++row) {
      const uintptr_t at = address(part) + (row * width + part.columns.begin) * sizeof(bf16);
      const uintptr_t last = at + part.columns.size() * sizeof(bf16) - 1;
      for (uintptr_t p = at / page; p <= last / page; ++p) needed[p - first] = true;
    }
  }
  size_t taken = 0;
  for (size_t p = 0; p < needed.size(); ++p) {
    if (needed[p]) continue;
    if (mprotect(reinterpret_cast<void*>((first + p) * page), page, PROT_NONE) != 0) {
      throw Error("mprotect failed");
    }
    ++taken;
  }
  return static_cast<double>(taken * page) / static_cast<double>(end - begin);
}

// In a process of its own; what `touch` reads besides would end it.
[[noreturn]] void load_from_own_pages(const TemporaryDirectory& directory,
                                      const ModelConfig& config, int rank, int size,
                                      const std::function<void(const Checkpoint&)>& touch) {
  const Shard shard = Shard::of(config, rank, size);
  const Checkpoint checkpoint(directory.path());
  const double taken = take_other_pages_away(checkpoint, parts_of(config, shard));
  const Weights weights = load_weights(checkpoint, config, shard, *make_cpu_backend(), {});
  if (touch) touch(checkpoint);
  std::fprintf(stderr, "loaded without %.0f %% of the file\n", 100 * taken);
  // Rounding to pages leaves some of the others' bytes.
  std::exit(taken >= 0.8 * (size - 1) / size ? 0 : 1);
}

class LoadWeights : public testing::TestWithParam<ModelConfig (*)()> {
 protected:
  LoadWeights() { write_checkpoint(directory_, parts_of(config_, Shard::of(config_, 0, 1))); }
  ModelConfig config_ = GetParam()();
  TemporaryDirectory directory_;
};

TEST_P(LoadWeights, ReadsTheSlicesOfItsRankAlone) {
  for (int size = 1; size <= 3; ++size) {
    for (int rank = 0; rank < size; ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank) + " of " + std::to_string(size));
      EXPECT_EXIT(load_from_own_pages(directory_, config_, rank, size, {}),
                  testing::ExitedWithCode(0), "loaded without");
    }
  }
}

// And another rank's slice could not have been read unseen.
TEST_P(LoadWeights, WouldBeSeenToReadMore) {
  const auto touch = [&](const Checkpoint& checkpoint) {
    const StoredTensor& table = *checkpoint.find(embedding_tensor(checkpoint, config_));
    const volatile char* bytes = static_cast<const char*>(table.data);
    static_cast<void>(bytes[table.bytes / 4 * 3]);  // of rank 1's half
  };
  EXPECT_DEATH(load_from_own_pages(directory_, config_, 0, 2, touch), "");
}

INSTANTIATE_TEST_SUITE_P(Families, LoadWeights, testing::Values(wide_layer, wide_gpt2_layer),
                         [](const auto& info) { return info.index == 0 ? "llama" : "gpt2"; });

// Of a tied model, a rank looks at its own rows alone.
TEST(LoadTiedWeights, RefusesAnLmHeadThatIsNoCopyOfTheEmbedding) {
  const ModelConfig config = wide_gpt2_layer();
  std::vector<Part> parts = parts_of(config, Shard::of(config, 0, 1));
  const TemporaryDirectory directory;
  const auto load = [&](int rank) {
    const Checkpoint checkpoint(directory.path());
    load_weights(checkpoint, config, Shard::of(config, rank, 2), *make_cpu_backend(), {});
  };
  parts.push_back({"lm_head.weight", {config.vocab_size, 12}, {}, {}});
  write_checkpoint(directory, parts);
  expect_one_line_error({"lm_head.weight has shape [90000, 12]", "expected [90000, 24]"},
                        [&] { load(1); });
  parts.back().shape[1] = config.hidden_size;
  write_checkpoint(directory, parts);
  load(1);
  std::fstream file(directory.path() / "model.safetensors", std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end);
  file.put('\x3f');  // the last token's row
  file.close();
  load(0);
  expect_one_line_error({"model.safetensors: tensor lm_head.weight", "embedding",
                         "tie_word_embeddings false in config.json"},
                        [&] { load(1); });
}

TEST(CheckTensors, ATrimmedHeadHasARowForEachOfItsTokens) {
  const auto directory = test_checkpoint("tiny-trimmed");
  const Checkpoint checkpoint(directory);
  ModelConfig config = ModelConfig::load(directory);
  check_tensors(checkpoint, config);
  config.draft_token_ids.pop_back();
  expect_one_line_error(
      {"lm_head.weight has shape [74, 48]", "expected [73, 48]", "draft_token_ids"},
      [&] { check_tensors(checkpoint, config); });
  config.draft_token_ids.clear();
  expect_one_line_error({"lm_head.weight has shape [74, 48]", "expected [512, 48]", "vocab_size"},
                        [&] { check_tensors(checkpoint, config); });
}

}  // namespace
}  // namespace outrider
