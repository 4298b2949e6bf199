#include "model/transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/distribution.h"
#include "model/safetensors.h"
#include "model/weights.h"
#include "tests/model/model_runner.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/edited_checkpoint.h"
#include "tests/testing/one_line_error.h"
#include "tests/testing/read_file.h"
#include "tests/testing/temporary_directory.h"

namespace outrider {
namespace {

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
  return tokens;
}

// Fails where a bit differs.
void expect_same_bits(const std::vector<Logits>& found, const std::vector<Logits>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t row = 0; row < found.size(); ++row) {
    ASSERT_EQ(found[row].size(), expected[row].size());
    EXPECT_EQ(
        std::memcmp(found[row].data(), expected[row].data(), found[row].size() * sizeof(float)), 0)
        << "row " << row;
  }
}

// How logits do not depend on what else is in a pass (row invariance), on each shape of model and
// over one, two and three ranks.
class RowInvariance : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  template <typename Body>
  std::vector<Logits> run(Body body) {
    const auto& [name, ranks] = GetParam();
    return run_ranks(test_checkpoint(name), ranks, body);
  }
  static std::vector<int32_t> prompt() { return random_tokens(100, 300, 1); }
  static std::vector<Logits> last(std::vector<Logits> rows, size_t count) {
    return {rows.end() - static_cast<std::ptrdiff_t>(count), rows.end()};
  }
};

TEST_P(RowInvariance, ChunksOfAPrompt) {
  const auto whole = run([](ModelRunner& runner) { return runner.feed(0, prompt(), 100); });
  for (const int64_t chunk : {1, 7, 64}) {
    SCOPED_TRACE(chunk);
    expect_same_bits(run([chunk](ModelRunner& runner) { return runner.feed(0, prompt(), chunk); }),
                     whole);
  }
}

// Passes that mix rows of four sequences, in any order and with whatever each has left, give each
// sequence the logits that it has alone.
TEST_P(RowInvariance, SequencesSideBySide) {
  const std::vector<std::vector<int32_t>> sequences = {
      random_tokens(60, 300, 2), random_tokens(33, 300, 3), random_tokens(1, 300, 4),
      random_tokens(47, 300, 5)};
  const auto alone = run([&](ModelRunner& runner) {
    std::vector<Logits> all;
    for (const auto& tokens : sequences) {
      for (Logits& row : runner.feed(0, tokens, 100)) all.push_back(std::move(row));
    }
    return all;
  });
  const auto mixed = run([&](ModelRunner& runner) {
    std::mt19937 random(6);
    std::vector<int32_t> next(sequences.size(), 0);
    std::vector<std::vector<Logits>> by_sequence(sequences.size());
    for (int left = 60 + 33 + 1 + 47; left > 0;) {
      std::vector<Row> rows;
      for (int count = std::min(left, 1 + static_cast<int>(random() % 20)); count > 0;) {
        const auto slot = static_cast<int32_t>(random() % sequences.size());
        if (next[slot] == static_cast<int32_t>(sequences[slot].size())) continue;
        rows.push_back({slot, next[slot], sequences[slot][next[slot]]});
        ++next[slot];
        --count;
        --left;
      }
      const auto logits = runner.forward(rows);
      for (size_t i = 0; i < rows.size(); ++i) by_sequence[rows[i].slot].push_back(logits[i]);
    }
    std::vector<Logits> all;
    for (auto& rows : by_sequence) all.insert(all.end(), rows.begin(), rows.end());
    return all;
  });
  expect_same_bits(mixed, alone);
}

// K + 1 rows that verify K drafted tokens are the K + 1 steps of one row.
TEST_P(RowInvariance, VerifyingIsDecoding) {
  const auto decode = run([](ModelRunner& runner) { return runner.feed(0, prompt(), 1); });
  for (const int64_t drafted : {1, 4, 15}) {
    SCOPED_TRACE(drafted);
    const auto verify = run([&](ModelRunner& runner) {
      const std::vector<int32_t> tokens = prompt();
      const auto begin = static_cast<int32_t>(tokens.size()) - static_cast<int32_t>(drafted) - 1;
      runner.feed(0, {tokens.begin(), tokens.begin() + begin}, 64);
      return runner.feed(0, {tokens.begin() + begin, tokens.end()}, drafted + 1, begin);
    });
    expect_same_bits(verify, last(decode, static_cast<size_t>(drafted) + 1));
  }
}

// Rejected drafts leave no trace: truncated and fed again, also on other pages, is fresh.
TEST_P(RowInvariance, TruncatedIsFresh) {
  const auto fresh = run([](ModelRunner& runner) { return runner.feed(0, prompt(), 100); });
  const auto again = run([](ModelRunner& runner) {
    const std::vector<int32_t> tokens = prompt();
    runner.feed(1, random_tokens(20, 300, 8), 20);
    std::vector<int32_t> wrong(tokens.begin(), tokens.begin() + 50);
    const auto drafted = random_tokens(30, 300, 7);
    wrong.insert(wrong.end(), drafted.begin(), drafted.end());
    runner.feed(0, wrong, 100);
    runner.feed(2, random_tokens(40, 300, 9), 40);  // takes some of the pages given back
    return runner.feed(0, {tokens.begin() + 50, tokens.end()}, 100, 50);
  });
  expect_same_bits(again, last(fresh, 50));
}

// Which rows' logits are wanted changes neither theirs nor what the cache holds.
TEST_P(RowInvariance, UnwantedLogits) {
  const auto all = run([](ModelRunner& runner) { return runner.feed(0, prompt(), 100); });
  const auto some = run([](ModelRunner& runner) {
    const std::vector<int32_t> tokens = prompt();
    std::vector<Row> chunk, rest;
    for (int32_t i = 0; i < 60; ++i) chunk.push_back({0, i, tokens[i], false});
    for (int32_t i = 60; i < 100; ++i) rest.push_back({0, i, tokens[i], i % 3 == 0});
    EXPECT_TRUE(runner.forward(chunk).empty());
    return runner.forward(rest);
  });
  std::vector<Logits> expected;
  for (size_t i = 60; i < 100; i += 3) expected.push_back(all[i]);
  expect_same_bits(some, expected);
}

TEST_P(RowInvariance, AnEmptyPassDoesNothing) {
  const auto whole = run([](ModelRunner& runner) { return runner.feed(0, prompt(), 100); });
  const auto with_empty = run([](ModelRunner& runner) {
    const std::vector<int32_t> tokens = prompt();
    auto logits = runner.feed(0, {tokens.begin(), tokens.begin() + 50}, 50);
    EXPECT_TRUE(runner.forward({}).empty());
    for (Logits& row : runner.feed(0, {tokens.begin() + 50, tokens.end()}, 50, 50)) {
      logits.push_back(std::move(row));
    }
    return logits;
  });
  expect_same_bits(with_empty, whole);
}

INSTANTIATE_TEST_SUITE_P(Models, RowInvariance,
                         ::testing::Combine(::testing::Values("tiny", "tiny-odd", "tiny-llama3",
                                                              "tiny-gpt2", "tiny-gpt2-odd"),
                                            ::testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::erase(name, '-');
                           return name + "_" + std::to_string(std::get<1>(info.param)) + "_ranks";
                         });

TEST(Transformer, LoadsThisRanksShareAndSaysHowFar) {
  set_float_environment();
  const auto self = make_self_communicator();
  const auto backend = make_cpu_backend();
  std::vector<double> heard;
  const Transformer model(test_checkpoint("tiny"), *backend, *self, 8, 0,
                          [&](double done) { heard.push_back(done); });
  EXPECT_TRUE(std::is_sorted(heard.begin(), heard.end()));
  ASSERT_FALSE(heard.empty());
  EXPECT_GT(heard.front(), 0.0);
  EXPECT_EQ(heard.back(), 1.0);
  // Tied: the embedding is read as the LM head.
  const int64_t layer = 2 * 64 + 64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 160;
  EXPECT_EQ(model.weight_bytes(), 2 * (2 * layer + 64 + 512 * 64));
}

// Tied as above; of the positions few rows are read.
TEST(Transformer, ReadsAGpt2OnceAPass) {
  const auto self = make_self_communicator();
  const auto backend = make_cpu_backend();
  const Transformer model(test_checkpoint("tiny-gpt2"), *backend, *self, 8, 0);
  const int64_t layer = 4 * 64 + 65 * 192 + 65 * 64 + 65 * 256 + 257 * 64;
  EXPECT_EQ(model.weight_bytes(), 2 * (2 * layer + 2 * 64 + 512 * 64));
}

// The same tensors under the names of a GPT2Model without its head, with the buffers that older
// files hold.
TEST(Transformer, AGpt2WithoutItsPrefixIsTheSame) {
  const auto tiny = test_checkpoint("tiny-gpt2");
  const std::string file = read_file(tiny / "model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const auto header = nlohmann::json::parse(file.substr(sizeof length, length));
  std::string data = file.substr(sizeof length + length);
  const std::string prefix = "transformer.";
  nlohmann::json renamed;
  for (const auto& [name, entry] : header.items()) {
    renamed[name.starts_with(prefix) ? name.substr(prefix.size()) : name] = entry;
  }
  for (const char* buffer : {"h.0.attn.bias", "h.1.attn.masked_bias"}) {
    const std::vector<size_t> offsets = {data.size(), data.size() + 4};
    renamed[buffer] = {{"dtype", "F32"}, {"shape", {1, 1, 1, 1}}, {"data_offsets", offsets}};
    data += "\xff\xff\xff\xff";
  }
  std::string text = renamed.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  length = text.size();
  const TemporaryDirectory bare;
  std::filesystem::copy(tiny / "config.json", bare.path());
  bare.write("model.safetensors",
             std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data);
  const auto feed = [](ModelRunner& runner) {
    return runner.feed(0, random_tokens(20, 300, 1), 20);
  };
  expect_same_bits(run_ranks(bare.path(), 2, feed), run_ranks(tiny, 2, feed));
}

TEST(Transformer, MistralWithoutAWindowIsALlama) {
  const TemporaryDirectory directory;
  const auto tiny = test_checkpoint("tiny");
  std::filesystem::copy(tiny / "model.safetensors", directory.path());
  nlohmann::json config = nlohmann::json::parse(std::ifstream(tiny / "config.json"));
  config["architectures"] = {"MistralForCausalLM"};
  config["sliding_window"] = nullptr;
  directory.write("config.json", config.dump());
  const auto feed = [](ModelRunner& runner) {
    return runner.feed(0, random_tokens(20, 300, 1), 20);
  };
  expect_same_bits(run_ranks(directory.path(), 1, feed), run_ranks(tiny, 1, feed));
}

// The same head under other names: what row i scores is the logit of the config's token i.
TEST(Transformer, ATrimmedHeadScoresItsTokensAlone) {
  const auto trimmed = test_checkpoint("tiny-trimmed");
  const auto config = ModelConfig::load(trimmed);
  const auto scored = static_cast<int32_t>(config.draft_token_ids.size());
  const TemporaryDirectory first_tokens;
  std::filesystem::copy(trimmed / "model.safetensors", first_tokens.path());
  nlohmann::json file = nlohmann::json::parse(std::ifstream(trimmed / "config.json"));
  for (int32_t row = 0; row < scored; ++row) file["draft_token_ids"][row] = row;
  first_tokens.write("config.json", file.dump());

  const auto feed = [](ModelRunner& runner) {
    return runner.feed(0, random_tokens(20, 512, 9), 7);
  };
  const auto found = run_ranks(trimmed, 1, feed);
  const auto by_row = run_ranks(first_tokens.path(), 1, feed);
  for (size_t i = 0; i < found.size(); ++i) {
    Logits expected(config.vocab_size, kUnscoredLogit);
    for (int32_t row = 0; row < scored; ++row) {
      EXPECT_LT(std::abs(by_row[i][row]), 100.0f);
      expected[config.draft_token_ids[row]] = by_row[i][row];
    }
    EXPECT_EQ(found[i], expected) << "row " << i;
  }
}

TEST(Transformer, ATrimmedHeadOfEveryTokenIsAWholeOne) {
  const auto whole = test_checkpoint("tiny-odd");
  const TemporaryDirectory every_token;
  std::filesystem::copy(whole, every_token.path(), std::filesystem::copy_options::recursive);
  nlohmann::json file = nlohmann::json::parse(std::ifstream(whole / "config.json"));
  for (int32_t token = 0; token < 331; ++token) file["draft_token_ids"].push_back(token);
  every_token.write("config.json", file.dump());
  const auto feed = [](ModelRunner& runner) {
    return runner.feed(0, random_tokens(20, 331, 9), 7);
  };
  expect_same_bits(run_ranks(every_token.path(), 1, feed), run_ranks(whole, 1, feed));
}

TEST(Transformer, RefusesWhatItCannotServe) {
  const auto self = make_self_communicator();
  const auto backend = make_cpu_backend();
  const auto load = [&](const std::filesystem::path& directory, int64_t max_positions) {
    return Transformer(directory, *backend, *self, 8, max_positions);
  };
  expect_one_line_error({"--max-positions is 2049", "max_position_embeddings, 2048"},
                        [&] { load(test_checkpoint("tiny"), 2049); });
  expect_one_line_error({"--max-positions is 257", "max_position_embeddings, 256"},
                        [&] { load(test_checkpoint("tiny-gpt2"), 257); });
  expect_one_line_error({"/nowhere: is no directory"}, [&] { load("/nowhere", 0); });
  expect_one_line_error({"5 ranks", "4 query heads"}, [&] {
    run_thread_ranks(5, [&](Communicator& communicator) {
      Transformer(test_checkpoint("tiny"), *backend, communicator, 8, 0);
    });
  });
}

// Candidates for one position of a sequence, each in a segment of its own, have the logits that
// each would have alone; the cache ends with those of the last segment.
TEST(Transformer, SeesCandidatesForOnePosition) {
  for (const char* name : {"tiny", "tiny-gpt2"}) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(std::string(name) + " on " + std::to_string(ranks));
      const std::vector<int32_t> prompt = random_tokens(37, 300, 3);
      const std::vector<int32_t> candidates = {5, 99, 7, 250};
      const auto behind = [&](int32_t candidate) {
        std::vector<int32_t> tokens = prompt;
        tokens.push_back(candidate);
        return tokens;
      };
      std::vector<Logits> expected;  // of each candidate, then of two behind the last
      for (const int32_t candidate : candidates) {
        std::vector<int32_t> tokens = behind(candidate);
        if (candidate == candidates.back()) tokens.insert(tokens.end(), {11, 12});
        const auto logits = run_ranks(test_checkpoint(name), ranks, [&](ModelRunner& runner) {
          return runner.feed(0, tokens, 64);
        });
        expected.insert(expected.end(), logits.begin() + static_cast<int64_t>(prompt.size()),
                        logits.end());
      }
      const auto found = run_ranks(test_checkpoint(name), ranks, [&](ModelRunner& runner) {
        const auto position = static_cast<int32_t>(prompt.size());
        runner.feed(0, {prompt.begin(), prompt.end() - 1}, 16);
        // The last token of the prompt in the first segment, beside another sequence's rows.
        std::vector<Row> rows = {
            {0, position - 1, prompt.back(), false}, {1, 0, 3, false}, {1, 1, 4, false}};
        std::vector<int64_t> ends = {3};
        for (const int32_t candidate : candidates) {
          rows.push_back({0, position, candidate});
          ends.push_back(ends.back() + 1);
        }
        rows.push_back({0, position + 1, 11});
        ++ends.back();
        std::vector<Logits> logits = runner.forward(rows, ends);
        logits.push_back(runner.forward({{0, position + 2, 12}})[0]);
        return logits;
      });
      EXPECT_EQ(found, expected);
    }
  }
}

// What enters a layer, normed, is what a model that ends there, under that layer's norm, gives its
// head.
TEST(Transformer, KeepsWhatEntersLayers) {
  const std::pair<const char*, std::vector<int32_t>> cases[] = {{"tiny-deep", {1, 5}},
                                                                {"tiny-gpt2", {1}}};
  for (const auto& [name, aux_layers] : cases) {
    const auto directory = test_checkpoint(name);
    const ModelConfig whole = ModelConfig::load(directory);
    // Of the wanted rows of a pass; of a model cut off below layer `num_layers`.
    const auto states = [&](Communicator& communicator, int64_t num_layers,
                            const std::vector<int32_t>& kept, bool all_rows) {
      const auto load = [&](const ModelConfig&, const Shard& shard, Backend& backend) {
        Weights weights = load_weights(Checkpoint(directory), whole, shard, backend, {});
        if (num_layers < whole.num_layers) {
          weights.norm = std::move(weights.layers[num_layers].input_norm);
          weights.layers.resize(num_layers);
        }
        return weights;
      };
      ModelConfig config = whole;
      config.num_layers = num_layers;
      ModelRunner runner(
          [&](Backend& to) { return Transformer(config, load, to, communicator, 32, 0); }, 32, 1,
          make_cpu_backend());
      runner.model().keep_states(kept);
      std::vector<Row> rows;
      for (const int32_t token : random_tokens(20, 300, 7)) {
        const auto position = static_cast<int32_t>(rows.size());
        rows.push_back({0, position, token, all_rows || position % 3 == 1});
      }
      const auto wanted = static_cast<int64_t>(runner.forward(rows).size());
      const TensorView view = runner.model().states(20, wanted);
      EXPECT_EQ(view.extent(1), static_cast<int64_t>(1 + kept.size()) * config.hidden_size);
      std::vector<std::vector<float>> result(wanted);
      for (int64_t i = 0; i < view.size(); ++i) {
        result[i / view.extent(1)].push_back(to_float(view.data<bf16>()[i]));
      }
      return result;
    };
    run_thread_ranks(2, [&](Communicator& communicator) {
      set_float_environment();
      for (const bool all_rows : {false, true}) {
        SCOPED_TRACE(std::string(name) + (all_rows ? ", all rows" : ", some rows"));
        auto expected = states(communicator, whole.num_layers, {}, all_rows);
        for (const int32_t layer : aux_layers) {
          const auto inputs = states(communicator, layer, {}, all_rows);
          for (size_t i = 0; i < inputs.size(); ++i) {
            expected[i].insert(expected[i].end(), inputs[i].begin(), inputs[i].end());
          }
        }
        EXPECT_EQ(expected.size(), all_rows ? 20u : 7u);
        EXPECT_EQ(states(communicator, whole.num_layers, aux_layers, all_rows), expected);
      }
    });
  }
}

TEST(TransformerInInt8, IsWhatItsNumbersAreInBf16) {
  for (const char* name : {"tiny-trimmed", "tiny", "tiny-gpt2-draft"}) {
    SCOPED_TRACE(name);
    const Int8Checkpoint copy(test_checkpoint(name));
    const auto self = make_self_communicator();
    int64_t bytes = 0;
    const auto logits = [&](const ModelConfig& config) {
      set_float_environment();
      ModelRunner runner(
          [&](Backend& to) {
            const auto load = [&](const ModelConfig& of, const Shard& shard, Backend& backend) {
              return load_weights(Checkpoint(copy.path()), of, shard, backend, {});
            };
            return Transformer(config, load, to, *self, 32, 0);
          },
          32, 1, make_cpu_backend());
      bytes = runner.model().weight_bytes();
      return runner.feed(0, random_tokens(40, 300, 7), 17);
    };
    const auto expected = logits(ModelConfig::load(copy.path()));
    const int64_t bf16_bytes = bytes;
    expect_same_bits(logits(ModelConfig::load_draft(copy.path())), expected);
    EXPECT_LT(bytes, bf16_bytes);
    float largest = 0;
    for (const float logit : expected.back()) largest = std::max(largest, logit);
    EXPECT_TRUE(std::isfinite(largest) && largest > 0);
  }
}

}  // namespace
}  // namespace outrider
