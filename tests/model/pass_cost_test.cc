// What a plan counts of a pass is what the pass asks its backend and communicator for.
#include "model/pass_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "comm/thread_communicator.h"
#include "model/transformer.h"
#include "model/weights.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/metering_backend.h"

namespace outrider {
namespace {

constexpr int64_t kMaxRows = 80;

void expect_equal(const OperationCost& found, const OperationCost& expected) {
  EXPECT_EQ(found.weight_bytes, expected.weight_bytes);
  EXPECT_EQ(found.kv_bytes, expected.kv_bytes);
  EXPECT_EQ(found.activation_bytes, expected.activation_bytes);
  EXPECT_EQ(found.flops, expected.flops);
  EXPECT_EQ(found.launches, expected.launches);
}

// A pass of `shape` on a metering backend.
void run_pass(Transformer& model, Backend& backend, const PassShape& shape) {
  const AttendingRows& rows = shape.rows;
  KvCache cache = model.make_kv_cache(rows.sequences * (rows.context + rows.each), rows.sequences);
  Stream stream;
  cache.deal_pages(stream);
  std::vector<int32_t> positions, slots;
  for (int64_t s = 0; s < rows.sequences; ++s) {
    for (int64_t i = 0; i < rows.each; ++i) {
      positions.push_back(static_cast<int32_t>(rows.context + i));
      slots.push_back(static_cast<int32_t>(s));
    }
  }
  positions.resize(rows.rows(), -1);
  slots.resize(rows.rows(), 0);
  std::vector<int32_t> tokens(rows.rows(), 1), logit_rows(shape.num_logits, 0);
  const int64_t vocab = model.shard().vocab.size();
  const Buffer logits = backend.allocate((shape.num_logits + 1) * vocab * sizeof(float));
  const auto view = [](std::vector<int32_t>& values) {
    return TensorView(values.data(), DType::i32, {static_cast<int64_t>(values.size())});
  };
  model.forward({view(tokens), view(positions), view(slots), view(logit_rows)}, cache,
                logits.view(DType::f32, {shape.num_logits, vocab}), stream);
}

class PassCostTest : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(PassCostTest, IsWhatAPassAsksFor) {
  const auto& [name, ranks] = GetParam();
  const auto directory = test_checkpoint(name);
  const PassShape shapes[] = {{{1, 1, 0, 0}, 1},   {{1, 1, 300, 0}, 1},
                              {{1, 5, 300, 3}, 8}, {{3, 4, 17, 0}, 12},
                              {{2, 9, 255, 0}, 2}, {{1, 32, 0, 0}, 0},  // a chunk of a prompt
                              {{5, 16, 17, 0}, 80}};
  run_thread_ranks(ranks, [&](Communicator& communicator) {
    for (const Numerics numerics : {Numerics::exact, Numerics::fast}) {
      MeteringBackend backend(numerics);
      MeteringCommunicator metering(communicator, numerics);
      Transformer model(directory, backend, metering, kMaxRows, 0);
      for (PassShape shape : shapes) {
        shape.max_positions = model.config().max_position_embeddings;
        shape.numerics = numerics;
        backend.forget_costs();
        metering.forget_costs();
        run_pass(model, backend, shape);
        const PassCost cost = pass_cost(model.config(), model.shard(), shape);
        SCOPED_TRACE(std::to_string(shape.rows.rows()) + " rows, " + numerics_name(numerics));
        expect_equal(cost.operations, backend.cost());
        EXPECT_EQ(cost.exchanges, metering.cost());
      }
    }
  });
}

TEST_P(PassCostTest, MemoryIsWhatLoadingTakes) {
  const auto& [name, ranks] = GetParam();
  const auto directory = test_checkpoint(name);
  run_thread_ranks(ranks, [&](Communicator& communicator) {
    for (const Numerics numerics : {Numerics::exact, Numerics::fast}) {
      MeteringBackend backend(numerics);
      const Transformer model(directory, backend, communicator, kMaxRows, 0);
      const int64_t positions = model.config().max_position_embeddings;
      const int64_t ffn_in = model.config().num_ffn_in() * model.shard().intermediate.size();
      const int64_t planned =
          cuda_weight_bytes(model.config(), model.shard()) +
          transformer_workspace_bytes(model.config(), model.shard(), kMaxRows, positions) +
          cuda_activation_scratch_bytes(kMaxRows, ffn_in, numerics) +
          cuda_attention_scratch_bytes(kMaxRows, positions, model.shard().attention);
      const int64_t taken = backend.allocated_bytes() + backend.packed_bytes();
      // What a pass writes is aligned, view by view: some KiB that no plan counts.
      EXPECT_LE(planned, taken);
      EXPECT_GE(planned, taken - 8 * 64);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, PassCostTest,
                         ::testing::Combine(::testing::Values("tiny", "tiny-odd", "tiny-llama3",
                                                              "tiny-gpt2", "tiny-gpt2-odd"),
                                            ::testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + "_" + std::to_string(std::get<1>(info.param));
                         });

INSTANTIATE_TEST_SUITE_P(ATrimmedHead, PassCostTest,
                         ::testing::Values(std::tuple("tiny-trimmed", 1)));

// Where nothing has to be padded, a pass of one row reads every weight once but for the embedding's
// other rows.
TEST(PassCost, ReadsTheWeightsOnce) {
  const ModelConfig target = ModelConfig::load(real_model());
  const ModelConfig draft = ModelConfig::load_draft(real_model());
  const Shard shard = Shard::of(target, 0, 1);
  for (const ModelConfig& config : {target, draft}) {
    const PassShape shape = {{1, 1, 100, 0}, 1, config.max_position_embeddings};
    const int64_t bytes = pass_cost(config, shard, shape).operations.weight_bytes;
    EXPECT_EQ(bytes, weight_bytes(config, shard).read_each_pass + 2 * config.hidden_size);
    EXPECT_EQ(cuda_weight_bytes(config, shard), weight_bytes(config, shard).held);
  }
  // 30 layers' matrices, of 106,168,320 numbers and 5,184 outputs each, lose a byte a number and
  // gain a scale an output; its LM head is the embedding.
  EXPECT_EQ(weight_bytes(target, shard).read_each_pass - weight_bytes(draft, shard).read_each_pass,
            106'168'320 - 30 * 5'184 * 4);
}

}  // namespace
}  // namespace outrider
