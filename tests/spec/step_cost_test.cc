// What a plan counts of a speculative step is what the step asks its backend and communicator for.
#include "spec/step_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "comm/self_communicator.h"
#include "comm/thread_communicator.h"
#include "spec/head_drafter.h"
#include "spec/speculative_step.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/metering_backend.h"

namespace outrider {
namespace {

constexpr int64_t kMaxRows = 128;
constexpr int64_t kMaxSequences = 8;

enum class Drafts { copied, model, head, plain_head };  // with auxiliary states, and without

bool is_head(Drafts drafts) { return drafts == Drafts::head || drafts == Drafts::plain_head; }

std::filesystem::path head_of(Drafts drafts) {
  return test_checkpoint(drafts == Drafts::head ? "tiny-head" : "tiny-plain-head");
}

struct Metered {
  OperationCost operations;
  ExchangeCost exchanges;
  int64_t bytes = 0;  // of memory, all but KV pages and their tables
};

// The step after a step: nothing is left to be fed to the draft but its last token.
Metered run_step(Communicator& communicator, Drafts drafts, const StepShape& shape) {
  MeteringBackend backend(shape.numerics);
  MeteringCommunicator metering(communicator, shape.numerics);
  Stream stream;
  Transformer target(test_checkpoint("tiny"), backend, metering, kMaxRows, 0);
  const int64_t before_cache = backend.allocated_bytes();
  KvCache cache = target.make_kv_cache(512, kMaxSequences);
  int64_t cache_bytes = backend.allocated_bytes() - before_cache;
  std::unique_ptr<LogitDrafter> drafter;
  if (drafts == Drafts::model) {
    auto model = std::make_unique<ModelDrafter>(test_checkpoint("tiny-draft"), backend, 512,
                                                kMaxSequences, kMaxRows, nullptr);
    model->cache().deal_pages(stream);
    MeteringBackend alone;
    const KvCache same(alone, model->config().num_layers,
                       Shard::of(model->config(), 0, 1).attention, 512, kMaxSequences,
                       model->config().max_position_embeddings);
    cache_bytes += alone.allocated_bytes();
    drafter = std::move(model);
  }
  if (is_head(drafts)) {
    auto head = std::make_unique<HeadDrafter>(head_of(drafts), test_checkpoint("tiny"), backend,
                                              metering, kMaxSequences);
    target.keep_states(head->head().config().aux_layers);
    drafter = std::move(head);
  }
  SpeculativeStep step(backend, metering, target, cache, kMaxSequences, kMaxRows);
  cache.deal_pages(stream);
  const int64_t bytes =
      backend.allocated_bytes() + backend.packed_bytes() + metering.reserved_bytes() - cache_bytes;

  const std::vector<int32_t> guesses(shape.num_draft_tokens, 1);
  std::vector<SequenceState> states(kMaxSequences);
  std::vector<SlotWork> work;
  for (int64_t slot = 0; slot < shape.sequences; ++slot) {
    SequenceState& state = states[slot];
    state.tokens.assign(shape.context + 1, 1);
    state.num_cached = shape.context;
    if (shape.sampled) state.processors.mode = VerifyMode::rejection;
    state.drafter = drafter.get();
    if (drafts == Drafts::model) drafter->admit(slot, shape.context);
    if (is_head(drafts)) {
      drafter->take_state(slot, shape.context + 1, target.states(1, 1), stream);
    }
    work.push_back({.slot = slot,
                    .prefill_end = shape.context,
                    .decode = true,
                    .num_draft_tokens = shape.num_draft_tokens,
                    .proposed = drafter ? std::span<const int32_t>() : guesses});
  }
  backend.forget_costs();
  metering.forget_costs();
  step.run(states, work, 0, stream);
  return {backend.cost(), metering.cost(), bytes};
}

void expect_as_planned(int ranks, Drafts drafts, StepShape shape) {
  SCOPED_TRACE(std::to_string(ranks) + " ranks, K " + std::to_string(shape.num_draft_tokens) +
               ", sequences " + std::to_string(shape.sequences) + ", " +
               numerics_name(shape.numerics));
  const ModelConfig target = ModelConfig::load(test_checkpoint("tiny"));
  const ModelConfig draft = ModelConfig::load_draft(test_checkpoint("tiny-draft"));
  const DraftHeadConfig head = DraftHeadConfig::load(head_of(drafts));
  shape.max_positions = target.max_position_embeddings;
  run_thread_ranks(ranks, [&](Communicator& communicator) {
    const Metered metered = run_step(communicator, drafts, shape);
    const Shard shard = Shard::of(target, communicator.rank(), ranks);
    const auto cost_of = [&](const StepShape& step) {
      return step_cost(target, shard, drafts == Drafts::model ? &draft : nullptr, step,
                       is_head(drafts) ? &head : nullptr);
    };
    const StepCost cost = cost_of(shape);
    OperationCost planned = cost.target.operations;
    planned += cost.verify.operations;
    // Round i stands i positions further on.
    for (int round = 0; round < shape.num_draft_tokens; ++round) {
      StepShape later = shape;
      later.context += round;
      planned += cost_of(later).draft.operations;
    }
    // What a copy drafter proposes goes to its place.
    if (drafts == Drafts::copied && shape.num_draft_tokens > 0) {
      planned += copy_tokens_cost(shape.sequences * shape.num_draft_tokens);
    }
    EXPECT_EQ(planned.weight_bytes, metered.operations.weight_bytes);
    EXPECT_EQ(planned.kv_bytes, metered.operations.kv_bytes);
    EXPECT_EQ(planned.activation_bytes, metered.operations.activation_bytes);
    EXPECT_EQ(planned.flops, metered.operations.flops);
    EXPECT_EQ(planned.launches, metered.operations.launches);

    ExchangeCost exchanges = cost.target.exchanges;
    exchanges += cost.verify.exchanges;
    EXPECT_EQ(exchanges, metered.exchanges);
  });
}

TEST(StepCost, IsWhatAStepAsksFor) {
  for (const int ranks : {1, 2, 3}) {
    expect_as_planned(ranks, Drafts::copied, {.sequences = 1, .context = 40});
    for (const Drafts drafts : {Drafts::copied, Drafts::model, Drafts::head, Drafts::plain_head}) {
      expect_as_planned(ranks, drafts, {.sequences = 1, .context = 40, .num_draft_tokens = 4});
    }
    for (const Drafts drafts : {Drafts::model, Drafts::head, Drafts::plain_head}) {
      expect_as_planned(ranks, drafts,
                        {.sequences = 3, .context = 300, .num_draft_tokens = 7, .sampled = true});
      // 72 rows.
      for (const Numerics numerics : {Numerics::exact, Numerics::fast}) {
        expect_as_planned(ranks, drafts,
                          {.sequences = kMaxSequences,
                           .context = 40,
                           .num_draft_tokens = 8,
                           .numerics = numerics});
      }
    }
  }
}

// The plan leaves out what is small; it may not leave out more than one part in twenty,
// of a model this small.
TEST(StepCost, MemoryIsWhatAServerTakes) {
  const ModelConfig target = ModelConfig::load(test_checkpoint("tiny"));
  const ModelConfig draft = ModelConfig::load_draft(test_checkpoint("tiny-draft"));
  const ServerShape server = {kMaxSequences, kMaxRows, target.max_position_embeddings};
  const auto expect = [&](Communicator& communicator) {
    const Shard shard = Shard::of(target, communicator.rank(), communicator.size());
    for (const bool with_draft : {false, true}) {
      const MemoryCost cost = memory_cost(target, shard, with_draft ? &draft : nullptr, server);
      const Drafts drafts = with_draft ? Drafts::model : Drafts::copied;
      const int64_t taken = run_step(communicator, drafts, {.context = 40}).bytes;
      // What weights are loaded through, a metering backend does not take.
      const int64_t own = int64_t{64} << 20;
      const int64_t planned = cost.weights + cost.draft_weights + cost.workspace - own;
      EXPECT_LE(planned, taken);
      EXPECT_GE(planned, taken - taken / 20);
    }
  };
  for (const int ranks : {2, 3}) run_thread_ranks(ranks, expect);
}

// Of three ranks and more, added in the order of ranks: all parts of a small sum, or of a block.
TEST(StepCost, SumsOfManyRanksTakeScratch) {
  constexpr int64_t kSmall = kGatherMaxFloats, kLarge = 8 * kGatherMaxFloats;
  EXPECT_EQ(sum_scratch_bytes(2, kLarge, Numerics::exact), 0);
  EXPECT_EQ(sum_scratch_bytes(4, kLarge, Numerics::fast), 0);
  EXPECT_EQ(sum_scratch_bytes(4, 100, Numerics::exact), 4 * 4 * 100);
  EXPECT_EQ(sum_scratch_bytes(4, kSmall, Numerics::exact), 4 * 4 * kSmall);
  EXPECT_EQ(sum_scratch_bytes(4, kSmall + 1, Numerics::exact), 4 * 4 * kSmall);  // smaller ones too
  EXPECT_EQ(sum_scratch_bytes(4, kLarge, Numerics::exact), 4 * kLarge);
  EXPECT_EQ(sum_scratch_bytes(3, kLarge, Numerics::exact), 4 * 3 * 349524);
  const ModelConfig target = ModelConfig::load(test_checkpoint("tiny"));
  const auto workspace = [&](Numerics numerics) {
    return memory_cost(target, Shard::of(target, 2, 3), nullptr, {1, 8192, 64, numerics}).workspace;
  };
  const int64_t ffn_in = target.num_ffn_in() * Shard::of(target, 2, 3).intermediate.size();
  EXPECT_EQ(workspace(Numerics::exact) - workspace(Numerics::fast) + kFastLinearWorkspaceBytes +
                cuda_activation_scratch_bytes(8192, ffn_in, Numerics::fast),
            sum_scratch_bytes(3, 8192 * target.hidden_size, Numerics::exact));
}

// What embeds a second time: matrices of 8 bits are nothing for cuBLASLt.
TEST(StepCost, FastNumericsHoldADraftsTablesTwice) {
  const ModelConfig target = ModelConfig::load(test_checkpoint("tiny"));
  for (const auto& [name, rows] : {std::pair("tiny-draft", 512), {"tiny-gpt2-draft", 512 + 192}}) {
    const ModelConfig draft = ModelConfig::load_draft(test_checkpoint(name));
    const auto weights = [&](Numerics numerics) {
      return memory_cost(target, Shard::of(target, 0, 1), &draft,
                         {kMaxSequences, kMaxRows, 64, numerics})
          .draft_weights;
    };
    EXPECT_EQ(weights(Numerics::fast) - weights(Numerics::exact), 2 * rows * draft.hidden_size)
        << name;
  }
}

class StepCostOfHead : public testing::TestWithParam<Drafts> {};
INSTANTIATE_TEST_SUITE_P(Heads, StepCostOfHead, testing::Values(Drafts::head, Drafts::plain_head),
                         [](const auto& info) {
                           return std::string(info.param == Drafts::head ? "Aux" : "Plain");
                         });

TEST_P(StepCostOfHead, MemoryIsWhatItTakes) {
  const ModelConfig target = ModelConfig::load(test_checkpoint("tiny"));
  const DraftHeadConfig head = DraftHeadConfig::load(head_of(GetParam()));
  MeteringBackend backend;
  const auto self = make_self_communicator();
  Transformer model(test_checkpoint("tiny"), backend, *self, kMaxRows, 0);
  const auto bytes = [&] { return backend.allocated_bytes() + backend.packed_bytes(); };
  const int64_t before = bytes();
  const HeadDrafter drafter(head_of(GetParam()), test_checkpoint("tiny"), backend, *self,
                            kMaxSequences);
  model.keep_states(head.aux_layers);
  const int64_t taken = bytes() - before;
  const auto planned = [&](Numerics numerics, const DraftHeadConfig* with) {
    return fixed_bytes(memory_cost(target, Shard::of(target, 0, 1), nullptr,
                                   {kMaxSequences, kMaxRows, 64, numerics}, with));
  };
  const int64_t exact = planned(Numerics::exact, &head) - planned(Numerics::exact, nullptr);
  EXPECT_LE(exact, taken);
  EXPECT_GE(exact, taken - taken / 20);
  // The embedding a second time: matrices of 8 bits are nothing for cuBLASLt.
  const int64_t fast = planned(Numerics::fast, &head) - planned(Numerics::fast, nullptr);
  EXPECT_EQ(fast - exact, 2 * head.hidden_size * head.vocab_size);
}

TEST(StepCost, KvTokensAreWhatIsLeft) {
  MemoryCost cost;
  cost.weights = 1000;
  cost.draft_weights = 100;
  cost.workspace = 50;
  cost.reserved = 10;
  cost.page_bytes = 32;
  EXPECT_EQ(kv_tokens_that_fit(cost, 1160), 0);
  EXPECT_EQ(kv_tokens_that_fit(cost, 1160 + 63), kPageTokens);
  EXPECT_EQ(kv_tokens_that_fit(cost, 1159), -1);
}

}  // namespace
}  // namespace outrider
