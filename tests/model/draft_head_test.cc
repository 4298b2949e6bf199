// DraftHead against its formula in plain loops, and what it refuses.
#include "model/draft_head.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <tuple>

#include "comm/self_communicator.h"
#include "comm/thread_communicator.h"
#include "core/float_environment.h"
#include "kernels/distribution.h"
#include "testing/checkpoints.h"
#include "testing/one_line_error.h"
#include "testing/read_file.h"
#include "testing/temporary_directory.h"

namespace outrider {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

Matrix matrix(const Checkpoint& checkpoint, const std::string& name) {
  const StoredTensor& tensor = *checkpoint.find(name);
  const auto* data = static_cast<const bf16*>(tensor.data);
  const int64_t width = tensor.shape.back();
  Matrix rows(tensor.size() / width, Vector(width));
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t j = 0; j < width; ++j) {
      rows[i][j] = to_float(data[static_cast<int64_t>(i) * width + j]);
    }
  }
  return rows;
}

Vector times(const Matrix& a, const Vector& x) {
  Vector y(a.size(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < x.size(); ++j) y[i] += a[i][j] * x[j];
  }
  return y;
}

Vector sum(Vector a, const Vector& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

Vector normed(const Vector& x, const Vector& weight) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  Vector y = x;
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] *= weight[i] / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
  }
  return y;
}

// The state guessed behind `state`, `aux` (where the head takes any) and `token`, in double.
Vector next_state(const Checkpoint& head, const Vector& embedding, const Vector& state,
                  const Vector& aux) {
  const auto weight = [&](const char* name) { return matrix(head, std::string(name) + ".weight"); };
  Vector x = sum(times(weight("embed_proj"), normed(embedding, weight("embed_norm")[0])),
                 times(weight("state_proj"), state));
  if (!aux.empty()) x = sum(x, times(weight("aux_proj"), aux));
  const Vector in = normed(x, weight("ffn_norm")[0]);
  Vector gate = times(weight("gate_proj"), in);
  const Vector up = times(weight("up_proj"), in);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
  return normed(sum(x, times(weight("down_proj"), gate)), weight("norm")[0]);
}

std::vector<std::vector<bf16>> random_states(size_t rows, size_t width = 64) {
  std::mt19937 random(width);
  std::normal_distribution<float> normal;
  std::vector<std::vector<bf16>> states(rows, std::vector<bf16>(width));
  for (auto& state : states) {
    for (bf16& x : state) x = to_bf16(normal(random));
  }
  return states;
}

Vector in_double(const std::vector<bf16>& x) {
  Vector y;
  for (const bf16 v : x) y.push_back(to_float(v));
  return y;
}

// The head on one rank of several, or alone.
class RankHead {
 public:
  RankHead(const std::string& name, Communicator& communicator)
      : head_(test_checkpoint(name), test_checkpoint("tiny"), *backend_, communicator, 8) {}

  const DraftHead& head() const { return head_; }

  // Logits of each row, whose states are replaced. aux: one for each row.
  std::vector<std::vector<float>> forward(std::vector<std::vector<bf16>>& states,
                                          const std::vector<std::vector<bf16>>& aux,
                                          const std::vector<int32_t>& tokens) {
    const auto rows = static_cast<int64_t>(tokens.size());
    const int64_t hidden = head_.config().hidden_size, vocab = head_.config().vocab_size;
    const Buffer state_memory = backend_->allocate(rows * hidden * sizeof(bf16));
    const int64_t aux_width = head_.config().aux_width();
    const Buffer aux_memory = backend_->allocate(rows * aux_width * sizeof(bf16));
    const Buffer carried_memory = backend_->allocate(rows * hidden * sizeof(float));
    const Buffer token_memory = backend_->allocate(rows * sizeof(int32_t));
    const Buffer logit_memory = backend_->allocate(rows * vocab * sizeof(float));
    const TensorView on_device = state_memory.view(DType::bf16, {rows, hidden});
    const TensorView aux_states = aux_memory.view(DType::bf16, {rows, aux_width});
    const bool takes_aux = aux_width > 0;
    const TensorView carried =
        takes_aux ? carried_memory.view(DType::f32, {rows, hidden}) : TensorView();
    const TensorView ids = token_memory.view(DType::i32, {rows});
    const TensorView logits = logit_memory.view(DType::f32, {rows, vocab});
    for (int64_t i = 0; i < rows; ++i) {
      backend_->copy_from_host(on_device.rows(i, i + 1), states[i].data(), stream_);
      backend_->copy_from_host(aux_states.rows(i, i + 1), aux[i].data(), stream_);
    }
    backend_->copy_from_host(ids, tokens.data(), stream_);
    if (takes_aux) head_.project(aux_states, carried, stream_);
    head_.forward(on_device, carried, ids, logits, stream_);
    std::vector<std::vector<float>> result(rows, std::vector<float>(vocab));
    for (int64_t i = 0; i < rows; ++i) {
      backend_->copy_to_host(result[i].data(), logits.rows(i, i + 1), stream_);
      backend_->copy_to_host(states[i].data(), on_device.rows(i, i + 1), stream_);
    }
    backend_->synchronize(stream_);
    return result;
  }

 private:
  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  Stream stream_ = backend_->make_stream();
  DraftHead head_;
};

// By number of ranks, which split it: 96 columns and 171 tokens, of which the last of 40 have none;
// with auxiliary states, and without.
class DraftHeadTest : public testing::TestWithParam<std::tuple<int, std::string>> {
 protected:
  static int ranks() { return std::get<0>(GetParam()); }
  static std::filesystem::path directory() { return test_checkpoint(std::get<1>(GetParam())); }
  static size_t aux_width() { return DraftHeadConfig::load(directory()).aux_width(); }
  static void on_ranks(const std::function<void(RankHead&)>& body) {
    run_thread_ranks(ranks(), [&](Communicator& communicator) {
      set_float_environment();
      RankHead head(std::get<1>(GetParam()), communicator);
      body(head);
    });
  }
};
std::string head_name(const testing::TestParamInfo<std::tuple<int, std::string>>& info) {
  const std::string kind = std::get<1>(info.param) == "tiny-head" ? "Aux" : "Plain";
  return kind + std::to_string(std::get<0>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Heads, DraftHeadTest,
                         testing::Combine(testing::Values(1, 2, 3, 5, 40),
                                          testing::Values("tiny-head", "tiny-plain-head")),
                         head_name);

TEST_P(DraftHeadTest, ComputesItsFormula) {
  const Checkpoint weights(directory()), target(test_checkpoint("tiny"));
  const Matrix embedding = matrix(target, "model.embed_tokens.weight");
  const std::vector<int32_t> tokens = {7, 0, 511};
  on_ranks([&](RankHead& rank) {
    auto states = random_states(3);
    const auto before = states, aux = random_states(3, aux_width());
    const auto logits = rank.forward(states, aux, tokens);
    const std::vector<int32_t>& ids = rank.head().config().draft_token_ids;
    for (size_t row = 0; row < 3; ++row) {
      const Vector expected =
          next_state(weights, embedding[tokens[row]], in_double(before[row]), in_double(aux[row]));
      // Four roundings to bf16 (2^-9 each) on the way, of sums of a few times their size.
      for (size_t i = 0; i < 64; ++i) EXPECT_NEAR(to_float(states[row][i]), expected[i], 0.05);
      size_t scored = 0;
      for (int32_t token = 0; token < 512; ++token) {
        if (scored < ids.size() && ids[scored] == token) {
          ++scored;
          double dot = 0;
          for (size_t i = 0; i < 64; ++i) dot += expected[i] * embedding[token][i];
          EXPECT_NEAR(logits[row][token], dot, 0.25) << "token " << token;
        } else {
          EXPECT_EQ(logits[row][token], kUnscoredLogit) << "token " << token;
        }
      }
      EXPECT_EQ(scored, ids.size());
    }
  });
}

TEST_P(DraftHeadTest, ARowDoesNotDependOnTheOthersAndIsThatOfEveryRank) {
  const std::vector<int32_t> tokens = {7, 0, 511, 44, 45};
  std::mutex mutex;
  std::vector<std::vector<std::vector<float>>> of_ranks;
  on_ranks([&](RankHead& rank) {
    auto together = random_states(5);
    const auto aux = random_states(5, aux_width());
    const auto logits = rank.forward(together, aux, tokens);
    for (size_t row = 0; row < 5; ++row) {
      std::vector<std::vector<bf16>> alone = {random_states(5)[row]};
      const auto own = rank.forward(alone, {aux[row]}, {tokens[row]});
      EXPECT_EQ(std::memcmp(own[0].data(), logits[row].data(), 512 * sizeof(float)), 0) << row;
      EXPECT_EQ(std::memcmp(alone[0].data(), together[row].data(), 64 * sizeof(bf16)), 0) << row;
    }
    const std::lock_guard lock(mutex);
    of_ranks.push_back(logits);
  });
  for (const auto& logits : of_ranks) EXPECT_EQ(logits, of_ranks.front());
}

// What near ranks read together is the head once, and the two projections on each.
TEST_P(DraftHeadTest, IsSplitOverRanksThatAreNear) {
  const int64_t hidden = 64, ffn = 96, ids = 171, scale = 4;
  const int64_t most_columns = (ffn / 8 + ranks() - 1) / ranks() * 8;
  const int64_t most_ids = (ids + ranks() - 1) / ranks();
  const int64_t on_each = 2 * 3 * hidden + 2 * hidden * (hidden + scale);
  const int64_t most_of_rank =
      (2 * most_columns + most_ids) * (hidden + scale) + hidden * (most_columns + scale);
  on_ranks([&](RankHead& rank) {
    EXPECT_LE(rank.head().weight_bytes(), on_each + most_of_rank);
    EXPECT_GE(rank.head().weight_bytes(), on_each + most_ids * (hidden + scale));
  });
}

TEST(DraftHeadFiles, NameWhatDoesNotFit) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  const std::unique_ptr<Communicator> self = make_self_communicator();
  const TemporaryDirectory directory;
  const auto source = test_checkpoint("tiny-head");
  std::filesystem::copy(source / "model.safetensors", directory.path() / "model.safetensors");
  const struct {
    const char *field, *value, *expected;
  } cases[] = {
      {"model_type", "\"llama\"", "model_type is \"llama\"; expected \"outrider_draft_head\""},
      {"hidden_size", "32", "hidden_size is 32; expected the target's, 64"},
      {"vocab_size", "1024", "vocab_size is 1024; expected the target's, 512"},
      {"intermediate_size", "95", "gate_proj.weight has shape"},
      {"draft_token_ids", "[3, 3]", "draft_token_ids[1] is 3; expected more than"},
      {"draft_token_ids", "[512]", "draft_token_ids[0] is 512"},
      {"rms_norm_eps", "null", "rms_norm_eps"},
      {"aux_hidden_state_layers", "[]",
       "aux_hidden_state_layers is an array of 0; expected an array of layers"},
      {"aux_hidden_state_layers", "[1, 0]", "aux_hidden_state_layers[1] is 0; expected more than"},
      {"aux_hidden_state_layers", "[0, 2]",
       "aux_hidden_state_layers has 2; expected layers of the target, 0 to 1"},
      {"aux_hidden_state_layers", "[1]", "aux_proj.weight has shape"},
      {"aux_hidden_state_layers", "null", "aux_proj.weight"},
  };
  for (const auto& c : cases) {
    nlohmann::json config = nlohmann::json::parse(read_file(source / "config.json"));
    config[c.field] = nlohmann::json::parse(c.value);
    directory.write("config.json", config.dump());
    expect_one_line_error({directory.path().string(), c.expected}, [&] {
      DraftHead(directory.path(), test_checkpoint("tiny"), *backend, *self, 8);
    });
    expect_one_line_error({directory.path().string(), c.expected},
                          [&] { check_draft_head(directory.path(), test_checkpoint("tiny")); });
  }
}

TEST(DraftHeadFiles, SayWhatAsksForAMissingTensor) {
  const TemporaryDirectory directory;
  std::filesystem::copy(test_checkpoint("tiny-plain-head") / "model.safetensors", directory.path());
  std::filesystem::copy(test_checkpoint("tiny-head") / "config.json", directory.path());
  expect_one_line_error({"tensor aux_proj.weight is missing", "(aux_hidden_state_layers)"},
                        [&] { check_draft_head(directory.path(), test_checkpoint("tiny")); });
}

// Heads of a directory's subdirectories, made as each test needs them.
class FindDraftHead : public ::testing::Test {
 protected:
  static constexpr char kHash[] = "0123456789abcdef";

  void write(const std::string& name, const std::string& config) {
    std::filesystem::create_directory(directory_.path() / name);
    directory_.write(name + "/config.json", config);
  }
  std::string config_for(const nlohmann::json& target) {
    nlohmann::json config =
        nlohmann::json::parse(read_file(test_checkpoint("tiny-head") / "config.json"));
    config["target"] = target;
    return config.dump();
  }

  TemporaryDirectory directory_;
};

TEST_F(FindDraftHead, IsTheOneThatNamesTheModel) {
  const auto& path = directory_.path();
  EXPECT_EQ(find_draft_head(path / "none", kHash), std::nullopt);
  directory_.write("README.md", kHash);
  write("another", config_for("fedcba9876543210"));
  write("anybody's", config_for(nullptr));
  write("broken", R"({"model_type": "outrider_draft_head")");
  write("empty", "");
  write("model", R"({"model_type": "llama", "target": ")" + std::string(kHash) + "\"}");
  std::filesystem::create_directory(path / "without");
  EXPECT_EQ(find_draft_head(path, kHash), std::nullopt);
  write("mine", config_for(kHash));
  EXPECT_EQ(find_draft_head(path, kHash), path / "mine");
  EXPECT_EQ(find_draft_head(path, "fedcba9876543210"), path / "another");
}

TEST_F(FindDraftHead, NamesWhatIsBrokenOrTwice) {
  const auto refuses = [&](const std::vector<std::string>& parts) {
    expect_one_line_error(parts, [&] { find_draft_head(directory_.path(), kHash); });
  };
  write("mine", config_for(kHash) + "}");
  refuses({(directory_.path() / "mine/config.json").string()});
  nlohmann::json config = nlohmann::json::parse(config_for(kHash));
  config.erase("hidden_size");
  write("mine", config.dump());
  refuses({(directory_.path() / "mine/config.json").string(), "hidden_size"});
  write("mine", config_for(kHash));
  write("too", config_for(kHash));
  refuses({directory_.path().string(), "mine", "too", kHash, "expected one draft head"});
}

}  // namespace
}  // namespace outrider
