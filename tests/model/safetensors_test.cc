#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "model/checkpoint_hash.h"
#include "model/model_config.h"
#include "model/weights.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/one_line_error.h"
#include "tests/testing/temporary_directory.h"

namespace outrider {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

// A file's bytes: the header's length, the header padded to 8 bytes as writers do, the data.
std::string file_of(std::string header, const std::string& data) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

json entry(const std::string& dtype, const json& shape, int64_t begin, int64_t end) {
  return {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end}}};
}

// Two tensors side by side in 20 bytes: "a" [2, 3] in bf16, then "b" [2] in f32.
json small_header() {
  return {{"__metadata__", {{"format", "pt"}}},
          {"a", entry("BF16", {2, 3}, 0, 12)},
          {"b", entry("F32", {2}, 12, 20)}};
}
const std::string kSmallData = "0123456789abcdefghij";

SafetensorsFile open(const std::string& bytes) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", bytes);
  return SafetensorsFile(directory.path() / "model.safetensors");
}

TEST(SafetensorsFile, FindsTensorsWhereTheyLie) {
  const SafetensorsFile file = open(file_of(small_header().dump(), kSmallData));
  ASSERT_EQ(file.tensors().size(), 2u);
  const StoredTensor& a = file.tensors().at("a");
  EXPECT_EQ(a.dtype, "BF16");
  EXPECT_THAT(a.shape, ElementsAre(2, 3));
  EXPECT_EQ(a.size(), 6);
  EXPECT_EQ(std::string(static_cast<const char*>(a.data), a.bytes), "0123456789ab");
  const StoredTensor& b = file.tensors().at("b");
  EXPECT_EQ(std::string(static_cast<const char*>(b.data), b.bytes), "cdefghij");
  EXPECT_THAT(file.metadata(), ElementsAre(::testing::Pair("format", "pt")));
}

TEST(SafetensorsFile, TakesScalarsAndEmptyTensors) {
  const json header = {{"empty", entry("BF16", {0, 7}, 2, 2)},
                       {"scalar", entry("BF16", json::array(), 0, 2)}};
  const SafetensorsFile file = open(file_of(header.dump(), "xy"));
  EXPECT_EQ(file.tensors().at("empty").size(), 0);
  EXPECT_EQ(file.tensors().at("scalar").size(), 1);
}

struct BadHeader {
  const char* what;
  json patch;            // merged into small_header() (RFC 7396: a null erases)
  const char* expected;  // in the message
};

const BadHeader kBadHeaders[] = {
    {"not an object", {{"a", 5}}, "tensor \"a\" is 5; expected an object"},
    {"metadata that are no object", {{"__metadata__", 5}}, "metadata is 5; expected an object"},
    {"metadata that are no text", {{"__metadata__", {{"format", 5}}}}, "metadata: format is 5"},
    {"no dtype", {{"a", {{"dtype", nullptr}}}}, "tensor \"a\": dtype is missing"},
    {"dtype of wrong type", {{"a", {{"dtype", 7}}}}, "tensor \"a\": dtype is 7"},
    {"unknown dtype", {{"a", {{"dtype", "BF17"}}}}, "tensor \"a\": dtype is \"BF17\""},
    {"dtype in lower case", {{"a", {{"dtype", "bf16"}}}}, "dtype is \"bf16\""},
    {"no shape", {{"a", {{"shape", nullptr}}}}, "tensor \"a\": shape is missing"},
    {"shape of wrong type", {{"a", {{"shape", "2x3"}}}}, "shape is \"2x3\""},
    {"negative size", {{"a", {{"shape", {2, -3}}}}}, "shape[1] is -3"},
    {"fractional size", {{"a", {{"shape", {2, 3.0}}}}}, "shape[1] is 3.0"},
    {"size beyond 63 bits",
     {{"a", {{"shape", {uint64_t{1} << 63}}}}},
     "shape[0] is 9223372036854775808"},
    {"sizes that overflow",
     {{"a", {{"shape", {int64_t{1} << 40, int64_t{1} << 40}}}}},
     "expected fewer bytes than 2^63"},
    {"sizes that overflow to the right one",
     {{"a", {{"shape", {int64_t{1} << 62, 4, 6}}}}},
     "expected fewer bytes than 2^63"},
    {"bytes that overflow", {{"a", {{"shape", {INT64_MAX}}}}}, "expected fewer bytes than 2^63"},
    {"nine dimensions",
     {{"a", {{"shape", {1, 1, 1, 1, 1, 1, 1, 2, 3}}}}},
     "an array of 9; expected an array of at most 8"},
    {"no offsets", {{"a", {{"data_offsets", nullptr}}}}, "data_offsets is missing"},
    {"one offset", {{"a", {{"data_offsets", {0}}}}}, "two offsets"},
    {"three offsets", {{"a", {{"data_offsets", {0, 6, 12}}}}}, "array of at most 2"},
    {"offsets of wrong type", {{"a", {{"data_offsets", {"0", "12"}}}}}, "data_offsets[0] is \"0\""},
    {"negative offset", {{"a", {{"data_offsets", {-12, 0}}}}}, "data_offsets[0] is -12"},
    {"offsets the wrong way round",
     {{"a", {{"data_offsets", {12, 0}}}}},
     "[12, 0]; expected a range"},
    {"offsets behind the file",
     {{"b", {{"data_offsets", {16, 24}}}}},
     "within the 20 bytes of data"},
    {"huge offsets",
     {{"b", {{"data_offsets", {INT64_MAX - 8, INT64_MAX}}}}},
     "within the 20 bytes"},
    {"fewer bytes than the shape",
     {{"a", {{"shape", {2, 4}}}}},
     "expected the 16 bytes of shape [2, 4] in BF16"},
    {"more bytes than the shape",
     {{"a", {{"shape", {1, 3}}}}},
     "expected the 6 bytes of shape [1, 3]"},
    {"dtype of another size", {{"a", {{"dtype", "F32"}}}}, "expected the 24 bytes"},
    {"overlap",
     {{"c", entry("BF16", {2}, 10, 14)}},
     "tensor \"c\" starts at byte 10 of the data; expected 12"},
    {"the same place twice",
     {{"c", entry("BF16", {6}, 0, 12)}},
     "starts at byte 0 of the data; expected 12"},
    {"gap", {{"a", nullptr}}, "tensor \"b\" starts at byte 12 of the data; expected 0"},
    {"data that is nobody's",
     {{"b", nullptr}},
     "the tensors end at byte 12 of the data; expected 20"},
    {"no tensors", {{"a", nullptr}, {"b", nullptr}}, "the tensors end at byte 0"},
};

TEST(SafetensorsFile, RefusesBadHeaders) {
  for (const BadHeader& bad : kBadHeaders) {
    SCOPED_TRACE(bad.what);
    json header = small_header();
    header.merge_patch(bad.patch);
    expect_one_line_error({"model.safetensors: ", bad.expected},
                          [&] { open(file_of(header.dump(), kSmallData)); });
  }
}

TEST(SafetensorsFile, RefusesUnalignedData) {
  const json header = {{"a", entry("U8", {1}, 0, 1)}, {"b", entry("BF16", {1}, 1, 3)}};
  expect_one_line_error({"tensor \"b\": data_offsets is [1, 3]", "unaligned"},
                        [&] { open(file_of(header.dump(), "xyz")); });
}

TEST(SafetensorsFile, RefusesBadBytes) {
  const std::string good = file_of(small_header().dump(), kSmallData);
  const auto with_length = [&](uint64_t length) {
    std::string bytes = good;
    std::memcpy(bytes.data(), &length, sizeof length);
    return bytes;
  };
  const std::string twice = R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                            R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  const std::tuple<const char*, std::string, const char*> bad[] = {
      {"empty file", "", "has 0 bytes"},
      {"seven bytes", "\1\0\0\0\0\0\0", "expected a safetensors header"},
      {"length of 2^64 - 1", with_length(~uint64_t{0}), "header length is 18446744073709551615"},
      {"length beyond the file", with_length(good.size()), "header length is"},
      {"length of 0", with_length(0), "expected JSON"},
      {"header cut short", with_length(40), "header: expected JSON"},
      {"a pickle", "\x80\x02}q\x01(X\x05\0\0\0", "header length is"},
      {"array for a header", file_of("[]", ""), "header: expected a JSON object"},
      {"name that stands twice", file_of(twice, ""), "key \"a\" stands twice"},
      {"size that stands twice", file_of(R"({"a":{"dtype":"U8","dtype":"U8"}})", ""),
       "\"dtype\" stands twice"},
      {"deep header", file_of("{\"a\":" + std::string(5000, '['), ""), "nested deeper than 16"},
      {"invalid UTF-8", file_of("{\"\xc3\x28\":1}", ""), "expected JSON"},
      {"a byte too many", good + "x", "expected 21, the end of the file"},
      {"a name of two lines", file_of("{\"a\\nb\":3}", ""), "tensor \"a\\nb\" is 3"},
  };
  for (const auto& [what, bytes, expected] : bad) {
    SCOPED_TRACE(what);
    expect_one_line_error({"model.safetensors: ", expected}, [&] { open(bytes); });
  }
}

TEST(SafetensorsFile, RefusesEveryTruncation) {
  const std::string good = file_of(small_header().dump(), kSmallData);
  for (size_t length = 0; length < good.size(); ++length) {
    expect_one_line_error({"model.safetensors: "}, [&] { open(good.substr(0, length)); });
  }
}

// Whatever a byte of the header becomes, the file is refused in one line or its tensors lie inside
// its data, side by side.
TEST(SafetensorsFile, SurvivesEveryChangedByte) {
  const std::string good = file_of(small_header().dump(), kSmallData);
  const TemporaryDirectory directory;
  std::mt19937 random(1);
  int refused = 0, taken = 0;
  for (size_t at = 0; at < good.size() - kSmallData.size(); ++at) {
    for (int variant = 0; variant < 8; ++variant) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(variant < 4 ? random() : "0,}\""[variant - 4]);
      directory.write("model.safetensors", bytes);
      try {
        const SafetensorsFile file(directory.path() / "model.safetensors");
        int64_t stored = 0;
        for (const auto& [name, tensor] : file.tensors()) stored += tensor.bytes;
        EXPECT_EQ(stored, 20);
        ++taken;
      } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
        ++refused;
      }
    }
  }
  std::printf("%d refused, %d taken\n", refused, taken);
  EXPECT_GT(refused, taken);
}

const std::string kPartA = file_of(json{{"a", entry("BF16", {2}, 0, 4)}}.dump(), "abcd");
const std::string kPartB = file_of(json{{"b", entry("BF16", {1}, 0, 2)}}.dump(), "ef");
const std::string kIndex = R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})";

TEST(Checkpoint, JoinsTheFilesOfAnIndex) {
  const TemporaryDirectory directory;
  directory.write("one.safetensors", kPartA);
  directory.write("two.safetensors", kPartB);
  directory.write("model.safetensors.index.json", kIndex);
  const Checkpoint checkpoint(directory.path());
  ASSERT_NE(checkpoint.find("a"), nullptr);
  ASSERT_NE(checkpoint.find("b"), nullptr);
  EXPECT_EQ(*static_cast<const char*>(checkpoint.find("b")->data), 'e');
  EXPECT_EQ(checkpoint.find("c"), nullptr);
  EXPECT_EQ(checkpoint.path_of("b"), (directory.path() / "two.safetensors").string());
}

TEST(Checkpoint, RefusesBadIndexes) {
  const std::pair<const char*, const char*> bad[] = {
      {"{", "index.json: expected JSON"},
      {"{}", "weight_map is missing"},
      {R"({"weight_map": ["one.safetensors"]})", "weight_map is an array of 1"},
      {R"({"weight_map": {"a": 1}})", "\"a\" is 1; expected the plain name"},
      {R"({"weight_map": {"a": ""}})", "expected the plain name"},
      {R"({"weight_map": {"a": ".."}})", "expected the plain name"},
      {R"({"weight_map": {"a": "../one.safetensors"}})", "expected the plain name"},
      {R"({"weight_map": {"a": "/etc/passwd"}})", "expected the plain name"},
      {R"({"weight_map": {"a": "sub/one.safetensors"}})", "expected the plain name"},
      {R"({"weight_map": {"a": "one.safetensors\u0000x"}})", "expected the plain name"},
      {R"({"weight_map": {"a": "none.safetensors"}})", "none.safetensors: cannot open"},
      {R"({"weight_map": {"c": "one.safetensors"}})", "one.safetensors: tensor \"c\" is missing"},
      {R"({"weight_map": {"b": "two.safetensors", "a": "two.safetensors"}})",
       "two.safetensors: tensor \"a\" is missing"},
      {R"({"weight_map": {}})", "weight_map names no file"},
      {R"({"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}})", "stands twice"},
      {R"({"weight_map": {"a": "both.safetensors"}})",
       "weight_map names 1 tensors; expected the 2"},
  };
  for (const auto& [text, expected] : bad) {
    SCOPED_TRACE(text);
    const TemporaryDirectory directory;
    directory.write("one.safetensors", kPartA);
    directory.write("two.safetensors", kPartB);
    directory.write("both.safetensors", file_of(small_header().dump(), kSmallData));
    directory.write("model.safetensors.index.json", text);
    expect_one_line_error({expected}, [&] { Checkpoint checkpoint(directory.path()); });
  }
}

TEST(Checkpoint, RefusesADirectoryWithoutWeights) {
  const TemporaryDirectory directory;
  const auto nowhere = directory.path() / "nosuch";
  expect_one_line_error({nowhere.string() + ": is no directory; expected a checkpoint's"},
                        [&] { Checkpoint checkpoint(nowhere); });
  expect_one_line_error({"expected model.safetensors or model.safetensors.index.json"},
                        [&] { Checkpoint checkpoint(directory.path()); });
}

// A checkpoint of one layer that fits its config, for check_tensors.
ModelConfig one_layer() {
  ModelConfig config;
  config.vocab_size = 10;
  config.hidden_size = 4;
  config.intermediate_size = 6;
  config.num_layers = 1;
  config.num_heads = config.num_kv_heads = 1;
  config.head_dim = 4;
  config.tie_word_embeddings = true;
  return config;
}

const std::map<std::string, std::vector<int64_t>> kOneLayer = {
    {"model.embed_tokens.weight", {10, 4}},
    {"model.layers.0.input_layernorm.weight", {4}},
    {"model.layers.0.mlp.down_proj.weight", {4, 6}},
    {"model.layers.0.mlp.gate_proj.weight", {6, 4}},
    {"model.layers.0.mlp.up_proj.weight", {6, 4}},
    {"model.layers.0.post_attention_layernorm.weight", {4}},
    {"model.layers.0.self_attn.k_proj.weight", {4, 4}},
    {"model.layers.0.self_attn.o_proj.weight", {4, 4}},
    {"model.layers.0.self_attn.q_proj.weight", {4, 4}},
    {"model.layers.0.self_attn.v_proj.weight", {4, 4}},
    {"model.norm.weight", {4}},
};

// `dtypes`: of tensors that are not in bf16.
void check(const ModelConfig& config, const std::map<std::string, std::vector<int64_t>>& shapes,
           const std::map<std::string, std::string>& dtypes = {}) {
  json header = json::object();
  int64_t end = 0;
  for (const auto& [name, shape] : shapes) {
    const auto found = dtypes.find(name);
    const std::string dtype = found == dtypes.end() ? "BF16" : found->second;
    int64_t bytes = dtype == "F32" ? 4 : 2;
    for (const int64_t size : shape) bytes *= size;
    header[name] = entry(dtype, shape, end, end + bytes);
    end += bytes;
  }
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of(header.dump(), std::string(end, '\0')));
  check_tensors(Checkpoint(directory.path()), config);
}

TEST(CheckTensors, TakesWhatTheConfigDescribes) {
  check(one_layer(), kOneLayer);
  auto shapes = kOneLayer;
  shapes["lm_head.weight"] = {10, 4};  // a copy that tied models may bring
  shapes["model.layers.0.self_attn.rotary_emb.inv_freq"] = {2};
  check(one_layer(), shapes, {{"model.layers.0.self_attn.rotary_emb.inv_freq", "F32"}});
}

TEST(CheckTensors, RefusesEachMissingTensor) {
  for (const auto& [name, shape] : kOneLayer) {
    auto shapes = kOneLayer;
    shapes.erase(name);
    expect_one_line_error(
        {"model.safetensors: tensor " + name + " is missing; expected as config.json (" +
         (name.find(".layers.") == std::string::npos ? "architectures" : "num_hidden_layers is 1") +
         ") says"},
        [&] { check(one_layer(), shapes); });
  }
}

TEST(CheckTensors, RefusesEachWrongShape) {
  for (const auto& [name, shape] : kOneLayer) {
    auto shapes = kOneLayer;
    shapes[name][0] += 1;
    expect_one_line_error({"model.safetensors: tensor " + name + " has shape " +
                               show_shape(shapes[name]) + "; expected " + show_shape(shape),
                           "config.json ("},
                          [&] { check(one_layer(), shapes); });
    shapes[name] = shape;
    shapes[name].push_back(1);
    expect_one_line_error({name + " has shape"}, [&] { check(one_layer(), shapes); });
  }
}

TEST(CheckTensors, RefusesOtherDtypes) {
  for (const auto& [name, shape] : kOneLayer) {
    for (const char* dtype : {"F32", "F16"}) {
      expect_one_line_error({"tensor " + name + " has dtype " + dtype, "expected BF16"}, [&] {
        check(one_layer(), kOneLayer, {{name, dtype}});
      });
    }
  }
}

TEST(CheckTensors, RefusesTensorsThatTheConfigDoesNotDescribe) {
  for (const char* name : {"model.layers.1.input_layernorm.weight",   // one layer more
                           "model.layers.0.self_attn.q_proj.bias",    // attention_bias is false
                           "model.layers.0.self_attn.q_norm.weight",  // another architecture
                           "vision.weight"}) {
    auto shapes = kOneLayer;
    shapes[name] = {4};
    expect_one_line_error({"model.safetensors: tensor \"" + std::string(name) + "\" is not of"},
                          [&] { check(one_layer(), shapes); });
  }
}

TEST(CheckTensors, WantsAnLmHeadAndBiasesWhereTheConfigSaysSo) {
  ModelConfig config = one_layer();
  config.tie_word_embeddings = false;
  expect_one_line_error({"lm_head.weight is missing", "(tie_word_embeddings is not true)"},
                        [&] { check(config, kOneLayer); });
  config = one_layer();
  config.attention_bias = true;
  expect_one_line_error({"q_proj.bias is missing", "(attention_bias is true)"},
                        [&] { check(config, kOneLayer); });
  config = one_layer();
  config.mlp_bias = true;
  expect_one_line_error({"gate_proj.bias is missing", "(mlp_bias is true)"},
                        [&] { check(config, kOneLayer); });
}

ModelConfig one_gpt2_layer() {
  ModelConfig config = one_layer();
  config.family = Family::gpt2;
  config.norm = Norm::layer;
  config.activation = Activation::gelu_tanh;
  config.positions = Positions::learned;
  config.attention_bias = config.mlp_bias = true;
  config.max_position_embeddings = 5;
  return config;
}

const std::map<std::string, std::vector<int64_t>> kOneGpt2Layer = {
    {"transformer.wte.weight", {10, 4}},
    {"transformer.wpe.weight", {5, 4}},
    {"transformer.h.0.ln_1.weight", {4}},
    {"transformer.h.0.ln_1.bias", {4}},
    {"transformer.h.0.attn.c_attn.weight", {4, 12}},
    {"transformer.h.0.attn.c_attn.bias", {12}},
    {"transformer.h.0.attn.c_proj.weight", {4, 4}},
    {"transformer.h.0.attn.c_proj.bias", {4}},
    {"transformer.h.0.ln_2.weight", {4}},
    {"transformer.h.0.ln_2.bias", {4}},
    {"transformer.h.0.mlp.c_fc.weight", {4, 6}},
    {"transformer.h.0.mlp.c_fc.bias", {6}},
    {"transformer.h.0.mlp.c_proj.weight", {6, 4}},
    {"transformer.h.0.mlp.c_proj.bias", {4}},
    {"transformer.ln_f.weight", {4}},
    {"transformer.ln_f.bias", {4}},
};

TEST(CheckTensors, TakesGpt2sWithAndWithoutItsPrefix) {
  check(one_gpt2_layer(), kOneGpt2Layer);
  auto shapes = kOneGpt2Layer;
  shapes["lm_head.weight"] = {10, 4};
  shapes["transformer.h.0.attn.bias"] = {1, 1, 5, 5};  // the causal mask
  shapes["transformer.h.0.attn.masked_bias"] = {};
  check(one_gpt2_layer(), shapes,
        {{"transformer.h.0.attn.bias", "F32"}, {"transformer.h.0.attn.masked_bias", "F32"}});
  std::map<std::string, std::vector<int64_t>> bare;
  for (const auto& [name, shape] : kOneGpt2Layer) {
    bare[name.substr(std::string("transformer.").size())] = shape;
  }
  bare["h.0.attn.bias"] = {1, 1, 5, 5};
  check(one_gpt2_layer(), bare, {{"h.0.attn.bias", "F32"}});
}

TEST(CheckTensors, RefusesWhatIsNoGpt2) {
  for (const auto& [name, shape] : kOneGpt2Layer) {
    auto shapes = kOneGpt2Layer;
    shapes.erase(name);
    const char* field = name.find(".h.") == std::string::npos ? "architectures" : "n_layer is 1";
    expect_one_line_error({"model.safetensors: tensor " + name + " is missing", field},
                          [&] { check(one_gpt2_layer(), shapes); });
    shapes[name] = shape;
    shapes[name].back() += 1;
    expect_one_line_error({"tensor " + name + " has shape " + show_shape(shapes[name]) +
                               "; expected " + show_shape(shape),
                           "config.json ("},
                          [&] { check(one_gpt2_layer(), shapes); });
    expect_one_line_error({"tensor " + name + " has dtype F32", "expected BF16"}, [&] {
      check(one_gpt2_layer(), kOneGpt2Layer, {{name, "F32"}});
    });
  }
  auto shapes = kOneGpt2Layer;
  shapes["transformer.h.1.ln_1.weight"] = {4};
  expect_one_line_error({"tensor \"transformer.h.1.ln_1.weight\" is not of"},
                        [&] { check(one_gpt2_layer(), shapes); });
}

TEST(CheckTensors, TakesTheRealModel) {
  check_tensors(Checkpoint(real_model()), ModelConfig::load(real_model()));
}

TEST(CheckpointHash, IsOfTheContentsAlone) {
  const auto make = [](const TemporaryDirectory& directory, const std::string& config,
                       const std::string& weights) {
    directory.write("config.json", config);
    directory.write("model.safetensors", weights);
    return checkpoint_hash(directory.path());
  };
  const TemporaryDirectory first, second;
  const std::string hash = make(first, "{}", kPartA);
  EXPECT_EQ(hash.size(), 16u);
  EXPECT_EQ(hash.find_first_not_of("0123456789abcdef"), std::string::npos) << hash;
  EXPECT_EQ(make(second, "{}", kPartA), hash);
  second.write("tokenizer.json", "{}");
  EXPECT_EQ(checkpoint_hash(second.path()), hash);
  EXPECT_NE(make(second, "{ }", kPartA), hash);
  EXPECT_NE(make(second, "{}", kPartB), hash);
  std::string changed = kPartA;
  changed.back() ^= 1;
  EXPECT_NE(make(second, "{}", changed), hash);
}

TEST(CheckpointHash, IsOfEveryPartOfTheWeights) {
  const TemporaryDirectory directory;
  directory.write("config.json", "{}");
  directory.write("model.safetensors.index.json", kIndex);
  const auto hash_of = [&](std::string one, std::string two) {
    directory.write("one.safetensors", one);
    directory.write("two.safetensors", two);
    return checkpoint_hash(directory.path());
  };
  const auto changed = [](std::string part) { return part.replace(part.size() - 1, 1, "x"); };
  const std::string hash = hash_of(kPartA, kPartB);
  EXPECT_NE(hash_of(changed(kPartA), kPartB), hash);
  EXPECT_NE(hash_of(kPartA, changed(kPartB)), hash);
}

}  // namespace
}  // namespace outrider
