#include "model/random_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "backend/backend.h"
#include "comm/self_communicator.h"
#include "model/transformer.h"

namespace outrider {
namespace {

ModelConfig shape(const std::string& name) {
  const std::string shapes = OUTRIDER_SOURCE_DIR "/tests/testing/checkpoints/";
  return ModelConfig::load_shape(shapes + name + ".json");
}

bool same_bytes(const PackedWeight& a, const PackedWeight& b) {
  return a.n == b.n && a.k == b.k && a.data.bytes() == b.data.bytes() &&
         std::memcmp(a.data.data(), b.data.data(), a.data.bytes()) == 0;
}

TEST(RandomWeights, AreTheSeeds) {
  const auto backend = make_cpu_backend();
  const ModelConfig config = shape("tiny");
  const Shard shard = Shard::of(config, 0, 1);
  const Weights a = random_weights(config, shard, *backend, 1);
  const Weights b = random_weights(config, shard, *backend, 1);
  const Weights c = random_weights(config, shard, *backend, 2);
  ASSERT_EQ(a.layers.size(), 2u);
  EXPECT_EQ(a.layers[0].ffn_in.n, 2 * config.intermediate_size);
  EXPECT_EQ(a.layers[0].ffn_out.k, config.intermediate_size);
  EXPECT_TRUE(same_bytes(a.layers[1].ffn_out, b.layers[1].ffn_out));
  EXPECT_FALSE(same_bytes(a.layers[1].ffn_out, c.layers[1].ffn_out));
  EXPECT_FALSE(same_bytes(a.layers[0].ffn_out, a.layers[1].ffn_out));
}

// Large matrices are made in pieces, each from another place.
TEST(RandomWeights, PiecesDiffer) {
  const auto backend = make_cpu_backend();
  RandomMatrices random(1);
  constexpr int64_t kK = 4096, kPieceRows = 1024;
  const PackedWeight weight = random.make(2 * kPieceRows, kK, *backend);
  const std::vector<int32_t> tokens = {0, kPieceRows};
  std::vector<float> rows(2 * kK);
  Stream stream = backend->make_stream();
  backend->embed(weight, TensorView(const_cast<int32_t*>(tokens.data()), DType::i32, {2}), 0,
                 TensorView(rows.data(), DType::f32, {2, kK}), stream);
  int equal = 0;
  for (int64_t i = 0; i < kK; ++i) {
    EXPECT_LE(std::abs(rows[i]), 1.0f / 64);
    equal += rows[i] == rows[kK + i];
  }
  EXPECT_LT(equal, 100);
}

class RandomModels : public ::testing::TestWithParam<const char*> {};

TEST_P(RandomModels, Compute) {
  const auto backend = make_cpu_backend();
  const auto self = make_self_communicator();
  Transformer model(
      shape(GetParam()), [](auto&... of) { return random_weights(of..., 1); }, *backend, *self, 2,
      32);
  KvCache cache = model.make_kv_cache(4, 1);
  Stream stream = backend->make_stream();
  cache.deal_pages(stream);
  std::vector<int32_t> columns = {3, 7, 0, 1, 0, 0, 0, 1};  // tokens, positions, slots, logit rows
  const auto column = [&](int64_t i) { return TensorView(&columns[2 * i], DType::i32, {2}); };
  std::vector<float> logits(2 * model.config().vocab_size);
  model.forward({column(0), column(1), column(2), column(3)}, cache,
                TensorView(logits.data(), DType::f32, {2, model.config().vocab_size}), stream);
  double sum = 0;
  for (float logit : logits) sum += double{logit} * logit;
  EXPECT_TRUE(std::isfinite(sum));
  EXPECT_GT(sum, 0);
}

INSTANTIATE_TEST_SUITE_P(RandomWeights, RandomModels,
                         ::testing::Values("tiny", "tiny-gpt2", "tiny-trimmed"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace outrider
