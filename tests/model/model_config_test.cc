#include "model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/testing/checkpoints.h"
#include "tests/testing/one_line_error.h"
#include "tests/testing/temporary_directory.h"

namespace outrider {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A small Llama; as in Transformers, a patch of null is a null in the file.
json base_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 512},
          {"hidden_size", 64},
          {"intermediate_size", 160},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 2048},
          {"rms_norm_eps", 1e-5}};
}

json llama3_scaling() {
  return {{"rope_type", "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 64}};
}

ModelConfig load(const json& config, const std::string& generation_config = "") {
  const TemporaryDirectory directory;
  directory.write("config.json", config.dump());
  if (!generation_config.empty()) directory.write("generation_config.json", generation_config);
  return ModelConfig::load(directory.path());
}

ModelConfig load_with(const std::string& key, const json& value) {
  json config = base_config();
  config[key] = value;
  return load(config);
}

// A shape is what tools/make_checkpoint.py takes; what it leaves out is as it makes it.
TEST(ModelConfig, ReadsAShape) {
  const std::string shapes = std::string(OUTRIDER_SOURCE_DIR) + "/tests/testing/checkpoints/";
  for (const char* name : {"tiny", "tiny-odd", "tiny-llama3", "tiny-gpt2", "tiny-gpt2-odd"}) {
    const ModelConfig shape = ModelConfig::load_shape(shapes + name + ".json");
    const ModelConfig config = ModelConfig::load(test_checkpoint(name));
    EXPECT_EQ(shape.hidden_size, config.hidden_size);
    EXPECT_EQ(shape.num_kv_heads, config.num_kv_heads);
    EXPECT_EQ(shape.rope_theta, config.rope_theta);
    EXPECT_EQ(shape.norm_eps, config.norm_eps);
    EXPECT_EQ(shape.family, config.family);
    EXPECT_EQ(shape.intermediate_size, config.intermediate_size);
    EXPECT_EQ(shape.max_position_embeddings, config.max_position_embeddings);
    EXPECT_EQ(shape.tie_word_embeddings, config.tie_word_embeddings);
    EXPECT_EQ(shape.attention_bias, config.attention_bias);
  }
  const TemporaryDirectory directory;
  expect_one_line_error({"shape.json", "num_hidden_layers"}, [&] {
    directory.write("shape.json", R"({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8})");
    ModelConfig::load_shape(directory.path() / "shape.json");
  });
}

TEST(ModelConfig, ReadsTheRealModel) {
  const ModelConfig config = ModelConfig::load(real_model());
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.vocab_size, 49152);
  EXPECT_EQ(config.hidden_size, 576);
  EXPECT_EQ(config.intermediate_size, 1536);
  EXPECT_EQ(config.num_layers, 30);
  EXPECT_EQ(config.num_heads, 9);
  EXPECT_EQ(config.num_kv_heads, 3);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.max_position_embeddings, 8192);
  EXPECT_EQ(config.rope_theta, 100000.0);
  EXPECT_FALSE(config.rope_scaling);
  EXPECT_FLOAT_EQ(config.norm_eps, 1e-5f);
  EXPECT_EQ(config.family, Family::llama);
  EXPECT_EQ(config.norm, Norm::rms);
  EXPECT_EQ(config.activation, Activation::swiglu);
  EXPECT_EQ(config.positions, Positions::rotary);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
}

TEST(ModelConfig, FillsInTransformersDefaults) {
  json config = base_config();
  config.erase("num_key_value_heads");
  const ModelConfig loaded = load(config);
  EXPECT_EQ(loaded.num_kv_heads, 4);  // as many as query heads
  EXPECT_EQ(loaded.head_dim, 16);     // hidden_size / num_attention_heads
  EXPECT_EQ(loaded.rope_theta, 10000.0);
  EXPECT_FALSE(loaded.tie_word_embeddings);
  EXPECT_FALSE(loaded.bos_token_id);
  EXPECT_THAT(loaded.eos_token_ids, IsEmpty());
}

TEST(ModelConfig, TakesHeadDimWhereItIsGiven) {
  EXPECT_EQ(load_with("head_dim", 32).head_dim, 32);
  EXPECT_EQ(load_with("head_dim", nullptr).head_dim, 16);
}

TEST(ModelConfig, ReadsLlama3ScalingInEachOfItsForms) {
  json older = llama3_scaling();
  older.erase("rope_type");
  older["type"] = "llama3";
  json newer = llama3_scaling();
  newer["rope_theta"] = 500000.0;
  for (const auto& [key, value] : {std::pair<std::string, json>{"rope_scaling", llama3_scaling()},
                                   {"rope_scaling", older},
                                   {"rope_parameters", newer}}) {
    const ModelConfig config = load_with(key, value);
    ASSERT_TRUE(config.rope_scaling) << value;
    EXPECT_EQ(config.rope_scaling->factor, 8.0);
    EXPECT_EQ(config.rope_scaling->low_freq_factor, 1.0);
    EXPECT_EQ(config.rope_scaling->high_freq_factor, 4.0);
    EXPECT_EQ(config.rope_scaling->original_max_position_embeddings, 64);
    EXPECT_EQ(config.rope_theta, key == "rope_parameters" ? 500000.0 : 10000.0);
  }
}

TEST(ModelConfig, TakesAnUnscaledRope) {
  EXPECT_FALSE(load_with("rope_scaling", nullptr).rope_scaling);
  EXPECT_FALSE(load_with("rope_scaling", {{"rope_type", "default"}}).rope_scaling);
  const ModelConfig config =
      load_with("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 20000}});
  EXPECT_FALSE(config.rope_scaling);
  EXPECT_EQ(config.rope_theta, 20000.0);
}

TEST(ModelConfig, ReadsEosTokensFromBothFiles) {
  json config = base_config();
  config["eos_token_id"] = {5, 7};
  EXPECT_THAT(load(config).eos_token_ids, ElementsAre(5, 7));
  EXPECT_THAT(load(config, R"({"bos_token_id": 1})").eos_token_ids, ElementsAre(5, 7));
  EXPECT_THAT(load(config, R"({"eos_token_id": null})").eos_token_ids, ElementsAre(5, 7));
  EXPECT_THAT(load(config, R"({"eos_token_id": 9})").eos_token_ids, ElementsAre(9));
  EXPECT_THAT(load(config, R"({"eos_token_id": [9, 3]})").eos_token_ids, ElementsAre(9, 3));
}

TEST(ModelConfig, TakesMistralWithoutASlidingWindow) {
  json config = base_config();
  config["architectures"] = {"MistralForCausalLM"};
  config["sliding_window"] = nullptr;
  EXPECT_EQ(load(config).architecture, "MistralForCausalLM");
  config["sliding_window"] = 2048;  // never reached
  EXPECT_EQ(load(config).architecture, "MistralForCausalLM");
}

// config.json as GPT-2's first checkpoint has it, but for what concerns training.
json gpt2_config() {
  return {{"activation_function", "gelu_new"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"bos_token_id", 50256},
          {"eos_token_id", 50256},
          {"layer_norm_epsilon", 1e-5},
          {"model_type", "gpt2"},
          {"n_ctx", 1024},
          {"n_embd", 768},
          {"n_head", 12},
          {"n_layer", 12},
          {"n_positions", 1024},
          {"vocab_size", 50257}};
}

TEST(ModelConfig, ReadsGpt2) {
  const ModelConfig config = load(gpt2_config());
  EXPECT_EQ(config.architecture, "GPT2LMHeadModel");
  EXPECT_EQ(config.family, Family::gpt2);
  EXPECT_EQ(config.norm, Norm::layer);
  EXPECT_EQ(config.activation, Activation::gelu_tanh);
  EXPECT_EQ(config.positions, Positions::learned);
  EXPECT_EQ(config.vocab_size, 50257);
  EXPECT_EQ(config.hidden_size, 768);
  EXPECT_EQ(config.intermediate_size, 3072);  // n_inner is not there
  EXPECT_EQ(config.num_layers, 12);
  EXPECT_EQ(config.num_heads, 12);
  EXPECT_EQ(config.num_kv_heads, 12);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.max_position_embeddings, 1024);
  EXPECT_FLOAT_EQ(config.norm_eps, 1e-5f);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_TRUE(config.mlp_bias);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(50256));

  json given = gpt2_config();
  given["n_inner"] = nullptr;
  EXPECT_EQ(load(given).intermediate_size, 3072);
  given["n_inner"] = 1000;
  EXPECT_EQ(load(given).intermediate_size, 1000);
}

struct BadField {
  const char* field;
  json value;
  const char* expected;  // in the message, beside the file and the field
};

const BadField kBadFields[] = {
    {"architectures", nullptr, "an array of one"},
    {"architectures", "LlamaForCausalLM", "array"},
    {"architectures", json::array(), "an array of one architecture"},
    {"architectures", {"LlamaForCausalLM", "MistralForCausalLM"}, "an array of one architecture"},
    {"architectures", {7}, "a string"},
    {"architectures", {"Qwen2ForCausalLM"}, "\"Qwen2ForCausalLM\""},
    {"architectures", {"GPT2LMHeadModel"}, "n_embd is missing"},
    {"architectures", {"MistralForCausalLM"}, "sliding_window is missing"},
    {"vocab_size", "512", "is \"512\"; expected an integer"},
    {"vocab_size", 0, "expected an integer in [1, "},
    {"vocab_size", -1, "expected an integer"},
    {"vocab_size", 512.0, "expected an integer"},
    {"vocab_size", uint64_t{1} << 63, "expected an integer"},
    {"vocab_size", int64_t{1} << 40, "expected an integer"},
    {"hidden_size", nullptr, "expected an integer"},
    {"hidden_size", {64}, "is an array of 1; expected an integer"},
    {"hidden_size", 66, "num_attention_heads (4) times an even number"},
    {"hidden_size", 12, "num_attention_heads (4) times an even number"},
    {"hidden_size", 8192, "times an even number up to 256"},
    {"intermediate_size", true, "is true; expected an integer"},
    {"intermediate_size", int64_t{1} << 31, "expected an integer"},
    {"num_hidden_layers", 0, "expected an integer"},
    {"num_hidden_layers", 1000000, "expected an integer"},
    {"num_attention_heads", -4, "expected an integer"},
    {"num_attention_heads", 1 << 20, "expected an integer"},
    {"num_key_value_heads", 3, "a divisor of num_attention_heads, 4"},
    {"num_key_value_heads", 8, "a divisor of num_attention_heads, 4"},
    {"num_key_value_heads", 0, "expected an integer"},
    {"head_dim", 15, "an even number"},
    {"head_dim", 1 << 20, "expected an integer"},
    {"max_position_embeddings", 1, "expected an integer"},
    {"max_position_embeddings", int64_t{1} << 40, "expected an integer"},
    {"rms_norm_eps", "1e-5", "expected a number"},
    {"rms_norm_eps", 0, "expected a number"},
    {"rms_norm_eps", 2.0, "expected a number"},
    {"rope_theta", -1.0, "expected a number"},
    {"rope_theta", 1e300, "expected a number"},
    {"tie_word_embeddings", 1, "true or false"},
    {"attention_bias", "yes", "true or false"},
    {"mlp_bias", json::object(), "true or false"},
    {"hidden_act", "gelu", "\"silu\""},
    {"hidden_act", 3, "a string"},
    {"pretraining_tp", 2, "an integer in [1, 1]"},
    {"partial_rotary_factor", 0.5, "a number in [1.0, 1.0]"},
    {"sliding_window", 1024, "max_position_embeddings (2048)"},
    {"quantization_config", {{"quant_method", "awq"}}, "weights must be bfloat16"},
    {"bos_token_id", 512, "an integer in [0, 511]"},
    {"eos_token_id", "</s>", "expected an integer"},
    {"eos_token_id", -1, "expected an integer"},
    {"eos_token_id", {1, 512}, "eos_token_id[1] is 512"},
    {"eos_token_id", std::vector<int>(65, 1), "at most 64 ids"},
    {"rope_scaling", 8, "an object"},
    {"rope_scaling", {{"factor", 8}}, "rope_scaling.rope_type is missing"},
    {"rope_scaling", {{"type", "linear"}, {"factor", 8}}, "rope_scaling.type is \"linear\""},
    {"rope_scaling", {{"rope_type", "yarn"}}, "rope_scaling.rope_type is \"yarn\""},
    {"rope_scaling", {{"rope_type", "llama3"}}, "rope_scaling.factor is missing"},
    {"rope_scaling", {{"rope_type", 3}}, "a string"},
    {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", "x"}}, "rope_theta is \"x\""},
};

TEST(ModelConfig, RefusesBadFields) {
  for (const BadField& bad : kBadFields) {
    SCOPED_TRACE(std::string(bad.field) + ": " + bad.value.dump());
    const bool names_another = std::string(bad.expected).find("is missing") != std::string::npos;
    expect_one_line_error({"config.json: ", names_another ? "" : bad.field, bad.expected},
                          [&] { load_with(bad.field, bad.value); });
  }
}

const BadField kBadGpt2Fields[] = {
    {"n_embd", 0, "expected an integer"},
    {"n_embd", 770, "n_head (12) times an even number up to 256"},
    {"n_embd", 12 * 63, "n_head (12) times an even number up to 256"},
    {"n_embd", 12 * 258, "n_head (12) times an even number up to 256"},
    {"n_layer", -1, "expected an integer"},
    {"n_head", "12", "expected an integer"},
    {"n_head", 7, "n_head (7) times an even number"},
    {"n_positions", 0, "expected an integer"},
    {"n_inner", 0, "expected an integer"},
    {"layer_norm_epsilon", 0, "expected a number"},
    {"tie_word_embeddings", 1, "true or false"},
    {"activation_function", "gelu", "\"gelu_new\""},
    {"activation_function", "relu", "\"gelu_new\""},
    {"scale_attn_weights", false, "expected true"},
    {"scale_attn_by_inverse_layer_idx", true, "expected false"},
    {"scale_attn_by_inverse_layer_idx", 1, "true or false"},
    {"reorder_and_upcast_attn", true, "expected false"},
    {"add_cross_attention", true, "expected false"},
    {"quantization_config", {{"quant_method", "awq"}}, "weights must be bfloat16"},
    {"eos_token_id", 50257, "expected an integer"},
};

TEST(ModelConfig, RefusesBadGpt2Fields) {
  for (const BadField& bad : kBadGpt2Fields) {
    SCOPED_TRACE(std::string(bad.field) + ": " + bad.value.dump());
    json config = gpt2_config();
    config[bad.field] = bad.value;
    const bool heads = std::string(bad.field) == "n_head" && bad.value.is_number();
    expect_one_line_error({"config.json: ", heads ? "n_embd" : bad.field, bad.expected},
                          [&] { load(config); });
  }
  for (const char* field : {"vocab_size", "n_embd", "n_layer", "n_head", "n_positions",
                            "layer_norm_epsilon", "architectures"}) {
    json config = gpt2_config();
    config.erase(field);
    expect_one_line_error({"config.json: " + std::string(field) + " is missing"},
                          [&] { load(config); });
  }
}

TEST(ModelConfig, RefusesMissingFields) {
  const json base = base_config();
  for (const auto& [key, value] : base.items()) {
    if (key == "num_key_value_heads") continue;  // has a default
    json config = base;
    config.erase(key);
    expect_one_line_error({"config.json: " + key + " is missing"}, [&] { load(config); });
  }
}

TEST(ModelConfig, RefusesBadLlama3Scaling) {
  for (const auto& [key, value] : {std::pair<std::string, json>{"factor", 0.5},
                                   {"low_freq_factor", 0},
                                   {"high_freq_factor", 1.0},
                                   {"original_max_position_embeddings", 0},
                                   {"original_max_position_embeddings", 64.5},
                                   {"partial_rotary_factor", 0.25}}) {
    json scaling = llama3_scaling();
    scaling[key] = value;
    expect_one_line_error({"config.json: rope_scaling." + key + " is"},
                          [&] { load_with("rope_scaling", scaling); });
  }
}

TEST(ModelConfig, RefusesContradictions) {
  json scaled = base_config();
  scaled["rope_scaling"] = llama3_scaling();
  scaled["original_max_position_embeddings"] = 64;
  EXPECT_EQ(load(scaled).rope_scaling->original_max_position_embeddings, 64);
  scaled["original_max_position_embeddings"] = 32;
  expect_one_line_error({"config.json: original_max_position_embeddings is 32", "64"},
                        [&] { load(scaled); });

  json config = base_config();
  config["rope_scaling"] = llama3_scaling();
  config["rope_parameters"] = {{"rope_type", "default"}};
  expect_one_line_error({"rope_scaling", "null beside rope_parameters"}, [&] { load(config); });

  config = base_config();
  config["rope_theta"] = 10000;
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 20000}};
  expect_one_line_error({"rope_parameters.rope_theta is 20000", "10000"}, [&] { load(config); });

  // No field turns Mistral's window off but its own.
  config = base_config();
  config["architectures"] = {"MistralForCausalLM"};
  config["sliding_window"] = 1024;
  config["use_sliding_window"] = false;
  expect_one_line_error({"sliding_window is 1024"}, [&] { load(config); });

  for (const char* bias : {"attention_bias", "mlp_bias"}) {
    config = base_config();
    config["architectures"] = {"MistralForCausalLM"};
    config["sliding_window"] = nullptr;
    config[bias] = true;
    expect_one_line_error({bias, "false for Mistral"}, [&] { load(config); });
  }
}

TEST(ModelConfig, RefusesBadGenerationConfig) {
  for (const char* text : {"{", "[]", R"({"eos_token_id": "x"})", R"({"eos_token_id": [512]})"}) {
    expect_one_line_error({"generation_config.json: "}, [&] { load(base_config(), text); });
  }
}

struct BadText {
  std::string text;
  const char* expected;
};

TEST(ModelConfig, RefusesBadJson) {
  const std::string deep(100000, '[');
  const BadText kBadTexts[] = {
      {"", "expected JSON, found an error at byte"},
      {"{", "expected JSON"},
      {"null", "a JSON object"},
      {"[1, 2]", "a JSON object, found an array of 2"},
      {"{\"vocab_size\": 512,}", "expected JSON"},
      {"{\"vocab_size\": NaN}", "expected JSON"},
      {"{\"vocab_size\": 1e999}", "out of range"},
      {"{\"vocab_size\": \"\xff\"}", "expected JSON"},
      {"{\"vocab_size\": 1, \"vocab_size\": 2}", "\"vocab_size\" stands twice"},
      {"{\"a\": " + deep, "nested deeper than 16"},
      {"{} {}", "expected JSON"},
      {std::string((1 << 20) + 1, ' '), "expected at most 1048576"},
      {std::string("{\"a\0b\": 1}", 10), "expected JSON"},
  };
  for (const BadText& bad : kBadTexts) {
    SCOPED_TRACE(bad.text.substr(0, 40));
    const TemporaryDirectory directory;
    directory.write("config.json", bad.text);
    expect_one_line_error({"config.json: ", bad.expected},
                          [&] { ModelConfig::load(directory.path()); });
  }
}

TEST(ModelConfig, RefusesWhatIsNoFile) {
  const TemporaryDirectory directory;
  expect_one_line_error({": holds no config.json"}, [&] { ModelConfig::load(directory.path()); });
  std::filesystem::create_directory(directory.path() / "config.json");
  expect_one_line_error({"config.json: ", "regular file"},
                        [&] { ModelConfig::load(directory.path()); });
}

TEST(ModelConfig, ATrimmedHeadNamesItsTokens) {
  EXPECT_THAT(load_with("draft_token_ids", nullptr).draft_token_ids, IsEmpty());
  EXPECT_THAT(load_with("draft_token_ids", {0, 7, 511}).draft_token_ids, ElementsAre(0, 7, 511));
  const auto refuse = [](const json& ids, const std::vector<std::string>& parts) {
    expect_one_line_error(parts, [&] { load_with("draft_token_ids", ids); });
  };
  refuse(json::array(), {"draft_token_ids", "expected an array of token ids"});
  refuse(7, {"draft_token_ids is 7", "expected an array of token ids"});
  refuse({0, 512}, {"draft_token_ids[1] is 512", "[0, 511]"});
  refuse({-1}, {"draft_token_ids[0] is -1", "[0, 511]"});
  refuse({1.5}, {"draft_token_ids[0] is 1.5", "an integer"});
  refuse({3, 3}, {"draft_token_ids[1] is 3", "more than the one before it, 3"});
  refuse({5, 4}, {"draft_token_ids[1] is 4", "more than the one before it, 5"});
  json tied = base_config();
  tied["draft_token_ids"] = {1, 2};
  tied["tie_word_embeddings"] = true;
  expect_one_line_error({"draft_token_ids", "none beside tie_word_embeddings"},
                        [&] { load(tied); });
}

}  // namespace
}  // namespace outrider
