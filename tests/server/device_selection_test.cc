// Which device a rank computes on, and what it plans its memory for.
#include "launcher/device_selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>

#include "engine/kv_pool.h"
#include "launcher/device_memory.h"
#include "model/kv_cache.h"
#include "model/model_config.h"
#include "model/shard.h"
#include "model/weights.h"
#include "spec/step_cost.h"
#include "testing/checkpoints.h"
#include "testing/one_line_error.h"
#include "testing/temporary_directory.h"

namespace outrider {
namespace {

using Device = DeviceOptions::Device;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

const VisibleGpus kTwoGpus = {{{"one", 90, "a"}, {"two", 90, "b"}}, ""};
const VisibleGpus kNoGpus = {{}, "no driver"};

DeviceOptions asked_for(Device device) {
  DeviceOptions options;
  options.device = device;
  return options;
}

TEST(DeviceSelection, AGpuForEachRankOfAHost) {
  for (const Device device : {Device::automatic, Device::cuda}) {
    const DeviceChoice choice = choose_device(asked_for(device), {1, 2}, kTwoGpus);
    EXPECT_EQ(choice.gpu, 1);
    EXPECT_EQ(choice.name, "two");
    EXPECT_EQ(choice.reason, "on GPU 1 (two), UUID b");
  }
  EXPECT_FALSE(choose_device(asked_for(Device::cpu), {0, 1}, kTwoGpus).gpu);
}

TEST(DeviceSelection, WithoutAGpuOnlyWhoAsksForOneIsRefused) {
  const DeviceChoice choice = choose_device({}, {0, 1}, kNoGpus);
  EXPECT_FALSE(choice.gpu);
  EXPECT_EQ(choice.name, "cpu");
  EXPECT_THAT(choice.reason, HasSubstr("no driver"));
  expect_one_line_error({"--device cuda: no driver"}, [] {
    choose_device(asked_for(Device::cuda), {0, 1}, kNoGpus);
  });
}

TEST(DeviceSelection, GpusThatDoNotWorkAreNotPassedBy) {
  const VisibleGpus broken = {.devices = {}, .why_none = "system not ready", .broken = true};
  expect_one_line_error({"system not ready", "--device cpu"}, [&] {
    choose_device({}, {0, 1}, broken);
  });
  expect_one_line_error({"--device cuda: system not ready; expected GPUs that work"}, [&] {
    choose_device(asked_for(Device::cuda), {0, 1}, broken);
  });
  EXPECT_FALSE(choose_device(asked_for(Device::cpu), {0, 1}, broken).gpu);
}

TEST(DeviceSelection, AJobThatServedOnGpusDoesNotGoOnOnTheCpu) {
  DeviceOptions again;
  again.served_on_gpus = true;
  expect_one_line_error({"no driver", "as before"}, [&] { choose_device(again, {0, 1}, kNoGpus); });
  expect_one_line_error({"3 ranks on this host are shown 2 GPUs", "as before"}, [&] {
    choose_device(again, {0, 3}, kTwoGpus);
  });
  EXPECT_EQ(choose_device(again, {0, 2}, kTwoGpus).gpu, 0);
  again.device = Device::cpu;
  EXPECT_FALSE(choose_device(again, {0, 1}, kNoGpus).gpu);
}

TEST(DeviceSelection, FewerGpusThanRanksOfAHost) {
  expect_one_line_error({"3 ranks on this host are shown 2 GPUs", "--share-gpus"}, [] {
    choose_device(asked_for(Device::cuda), {0, 3}, kTwoGpus);
  });
  DeviceOptions shared = asked_for(Device::cuda);
  shared.share_gpus = true;
  EXPECT_EQ(choose_device(shared, {2, 3}, kTwoGpus).gpu, 0);
  EXPECT_EQ(ranks_on_gpu(0, 2, 3), 2);
  EXPECT_EQ(ranks_on_gpu(1, 2, 3), 1);
  EXPECT_EQ(ranks_on_gpu(1, 2, 2), 1);
}

TEST(DeviceSelection, RanksOfSeveralHostsShareNothing) {
  DeviceOptions shared = asked_for(Device::automatic);
  shared.share_gpus = true;
  const LocalRank elsewhere = {.rank = 0, .size = 2, .one_host = false};
  expect_one_line_error({"--share-gpus", "several hosts"},
                        [&] { choose_device(shared, elsewhere, kTwoGpus); });
  EXPECT_FALSE(choose_device(shared, elsewhere, kNoGpus).gpu);
  EXPECT_EQ(choose_device({}, elsewhere, kTwoGpus).gpu, 0);
}

TEST(DeviceSelection, RanksShareWhatTheyAreShownAlike) {
  const auto expect = [](int rank, const std::vector<std::vector<std::string>>& shown, int place,
                         int size) {
    const LocalRank local = local_rank(rank, shown);
    EXPECT_EQ(local.rank, place);
    EXPECT_EQ(local.size, size);
  };
  // Two hosts whose ranks are shown all GPUs of theirs; ranks need not be in order of hosts.
  const std::vector<std::vector<std::string>> hosts = {
      {"a", "b"}, {"c", "d"}, {"a", "b"}, {"c", "d"}};
  expect(0, hosts, 0, 2);
  expect(2, hosts, 1, 2);
  expect(3, hosts, 1, 2);
  // Each its own, as a scheduler shows them.
  expect(1, {{"a"}, {"b"}, {"c"}}, 0, 1);
  expect(1, {{}, {"b"}, {}}, 0, 1);
  expect_one_line_error({"ranks 0 and 1 are shown GPU b", "CUDA_VISIBLE_DEVICES"}, [] {
    local_rank(1, {{"a", "b"}, {"b"}});
  });
  expect_one_line_error({"ranks 0 and 1"}, [] { local_rank(0, {{"a", "b"}, {"b", "a"}}); });
}

TEST(DeviceSelection, FastNumericsAreForGpus) {
  DeviceOptions options = asked_for(Device::cpu);
  options.numerics = Numerics::fast;
  expect_one_line_error({"--numerics fast", "expected exact on the CPU"}, [&] {
    choose_device(options, {0, 1}, kTwoGpus);
  });
  options.device = Device::automatic;
  expect_one_line_error({"--numerics fast", "no driver"}, [&] {
    choose_device(options, {0, 1}, kNoGpus);
  });
  EXPECT_TRUE(choose_device(options, {0, 1}, kTwoGpus).gpu);
}

TEST(DeviceSelection, AGpuWithoutBf16) {
  expect_one_line_error({"GPU 0 (old)", "7.5", "expected 8.0 or later"}, [] {
    choose_device(asked_for(Device::cuda), {0, 1}, {{{"old", 75, "a"}}, ""});
  });
}

EngineOptions engine_options() {
  EngineOptions options{.model = test_checkpoint("tiny"), .draft = test_checkpoint("tiny-draft")};
  options.max_sequences = 4096;  // more than memory has room for
  return options;
}

TEST(DeviceMemory, ABudgetIsAShareOfWhatNobodyElseHas) {
  EXPECT_EQ(memory_budget({1000, 1000}, 0.9, 1), 900);
  EXPECT_EQ(memory_budget({700, 1000}, 0.9, 1), 600);
  EXPECT_EQ(memory_budget({700, 1000}, 0.9, 3), 200);
  EXPECT_EQ(memory_budget({50, 1000}, 0.9, 1), 0);
}

// `outrider plan` counts what CUDA's context takes, a server finds it taken.
TEST(DeviceMemory, TheCacheHasWhatPlanSays) {
  const EngineOptions options = engine_options();
  const ModelConfig model = ModelConfig::load(options.model);
  const ModelConfig draft = ModelConfig::load_draft(*options.draft);
  for (const int ranks : {1, 2}) {
    const int rank = ranks - 1;
    const MemoryCost cost = memory_cost(
        model, Shard::of(model, rank, ranks), &draft,
        {options.max_sequences, options.max_rows, longest_context(model, options.max_positions)});
    for (const int64_t total : {2400 * kMiB, 2777 * kMiB}) {
      const int64_t planned =
          kv_tokens_that_fit(cost, static_cast<int64_t>(0.9 * static_cast<double>(total)));
      const int64_t budget = memory_budget({total - cost.context, total}, 0.9, 1);
      EXPECT_EQ(plan_kv_tokens(options, Numerics::exact, rank, ranks, "GPU 0", budget), planned);
      EXPECT_GT(planned, 0);
      EXPECT_LT(planned / kPageTokens, kv_pool_limits(options, model).most);
    }
  }
}

// Weights in a second order, what the library works in, and the FFN's product that it makes.
TEST(DeviceMemory, FastNumericsTakeMore) {
  const EngineOptions options = engine_options();
  const ModelConfig model = ModelConfig::load(options.model);
  const auto cost = [&](Numerics numerics) {
    return memory_cost(model, Shard::of(model, 0, 1), nullptr,
                       {options.max_sequences, options.max_rows,
                        longest_context(model, options.max_positions), numerics});
  };
  const MemoryCost exact = cost(Numerics::exact), fast = cost(Numerics::fast);
  EXPECT_EQ(fast.weights - exact.weights, weight_bytes(model, Shard::of(model, 0, 1)).held);
  const int64_t ffn_in = model.num_ffn_in() * model.intermediate_size;
  EXPECT_EQ(fast.workspace - exact.workspace, 32 * kMiB + options.max_rows * ffn_in * 4);
  const auto tokens = [&](Numerics numerics) {
    return plan_kv_tokens(options, numerics, 0, 1, "GPU 0", 1536 * kMiB);
  };
  EXPECT_LT(tokens(Numerics::fast), tokens(Numerics::exact));
}

// A head with its own copy of the embedding, and tables of counts.
TEST(DeviceMemory, WhateverDraftsTakesItsPart) {
  EngineOptions options = engine_options();
  const auto tokens = [&] {
    return plan_kv_tokens(options, Numerics::exact, 0, 1, "GPU 0", 1536 * kMiB);
  };
  const int64_t without = tokens();
  options.draft_head = test_checkpoint("tiny-head");
  const DraftHeadConfig head = DraftHeadConfig::load(*options.draft_head);
  EXPECT_GT(cuda_weight_bytes(head), 2 * head.vocab_size * head.hidden_size);
  const int64_t with_head = tokens();
  EXPECT_LT(with_head, without);
  const TemporaryDirectory directory;
  options.draft_counts = directory.path() / "counts.safetensors";
  std::ofstream(*options.draft_counts) << std::string(16 << 20, 'x');
  EXPECT_LT(tokens(), with_head);
  options.draft_counts = directory.path() / "none";
  expect_one_line_error({"--draft-counts", "none", "No such file"}, [&] { tokens(); });
}

TEST(DeviceMemory, TheCacheHasNoMoreThanItsSlotsUse) {
  EngineOptions options = engine_options();
  options.max_sequences = 2;
  const int64_t most = kv_pool_limits(options, ModelConfig::load(options.model)).most;
  EXPECT_EQ(plan_kv_tokens(options, Numerics::exact, 0, 1, "GPU 0", 4096 * kMiB),
            most * kPageTokens);
}

// Of the least budget with room for one sequence, a byte less is refused.
TEST(DeviceMemory, RefusesLessThanOneSequence) {
  EngineOptions options = engine_options();
  options.max_sequences = 2;
  const ModelConfig model = ModelConfig::load(options.model);
  const ModelConfig draft = ModelConfig::load_draft(*options.draft);
  const auto needed = [&](int64_t pages) {
    const MemoryCost cost = memory_cost(
        model, Shard::of(model, 0, 1), &draft,
        {options.max_sequences, options.max_rows, longest_context(model, options.max_positions)});
    return fixed_bytes(cost) - cost.context + pages * cost.page_bytes;
  };
  const int64_t least = kv_pool_limits(options, model).least;
  EXPECT_EQ(plan_kv_tokens(options, Numerics::exact, 0, 1, "GPU 0", needed(least)),
            least * kPageTokens);
  for (const int64_t budget : {needed(least) - 1, int64_t{0}}) {
    expect_one_line_error(
        {"GPU 7 (x) has ", "expected at least", "for the weights", "the draft's",
         "KV cache (--max-positions)"},
        [&] { plan_kv_tokens(options, Numerics::exact, 0, 1, "GPU 7 (x)", budget); });
  }
  options.kv_cache_tokens = (least + 3) * kPageTokens;
  EXPECT_EQ(plan_kv_tokens(options, Numerics::exact, 0, 1, "GPU 0", needed(least + 3)),
            options.kv_cache_tokens);
  expect_one_line_error({"GPU 0 has ", "as --kv-cache-tokens says"}, [&] {
    plan_kv_tokens(options, Numerics::exact, 0, 1, "GPU 0", needed(least + 3) - 1);
  });
}

// What `local_ranks` of `ranks` like each other take of their host on a CPU, for so many positions.
int64_t host_bytes(const EngineOptions& options, int ranks, int local_ranks, int64_t tokens) {
  const ModelConfig model = ModelConfig::load(options.model);
  const ModelConfig draft = ModelConfig::load_draft(*options.draft);
  const Shard shard = Shard::of(model, 0, ranks), whole = Shard::of(draft, 0, 1);
  const int64_t page_bytes = KvCache::page_bytes(model.num_layers, shard.attention) +
                             KvCache::page_bytes(draft.num_layers, whole.attention);
  return weight_bytes(draft, whole).held +
         local_ranks * (weight_bytes(model, shard).held + tokens / kPageTokens * page_bytes);
}

TEST(HostMemory, HasRoomForWhatItsRanksTake) {
  EngineOptions options = engine_options();
  options.kv_cache_tokens = 1 << 20;
  for (const auto& [ranks, local_ranks] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
    const int64_t needed = host_bytes(options, ranks, local_ranks, options.kv_cache_tokens);
    for (int rank = 0; rank < ranks; ++rank) {
      check_host_memory(options, rank, ranks, local_ranks, needed);
      expect_one_line_error(
          {" of memory left for its " + std::to_string(local_ranks) + " rank", "expected at least",
           "for weights", "for 1048576 positions of KV cache, as --kv-cache-tokens says"},
          [&, local_ranks = local_ranks, ranks = ranks] {
            check_host_memory(options, rank, ranks, local_ranks, needed - 1);
          });
    }
  }
}

// SmolLM2-135M over three ranks: each holds a KV head; over four, the second holds two.
TEST(HostMemory, CountsTheLeastOfRanksThatMayBeElsewhere) {
  const EngineOptions options{.model = real_model(), .kv_cache_tokens = 1 << 20};
  const ModelConfig model = ModelConfig::load(options.model);
  const auto bytes = [&](int rank) {
    const Shard shard = Shard::of(model, rank, 4);
    return weight_bytes(model, shard).held +
           (1 << 16) * KvCache::page_bytes(model.num_layers, shard.attention);
  };
  ASSERT_GT(bytes(1), bytes(0));
  check_host_memory(options, 0, 4, 2, 2 * bytes(0));
  check_host_memory(options, 1, 4, 2, bytes(0) + bytes(1));
  expect_one_line_error({"for its 2 ranks"},
                        [&] { check_host_memory(options, 1, 4, 2, 2 * bytes(0)); });
}

// A tenth of what there is stays for what is not counted.
TEST(HostMemory, SaysWhatToGiveInstead) {
  EngineOptions options = engine_options();
  const int64_t least = kv_pool_limits(options, ModelConfig::load(options.model)).least;
  const int64_t enough = (least + 3) * kPageTokens;
  const int64_t available = host_bytes(options, 1, 1, enough) * 10 / 9 + 1;
  options.kv_cache_tokens = 1 << 24;
  expect_one_line_error({"says; " + std::to_string(enough) + " would do"},
                        [&] { check_host_memory(options, 0, 1, 1, available); });
  options.kv_cache_tokens = enough;
  check_host_memory(options, 0, 1, 1, available);
}

TEST(HostMemory, OfADefaultCacheIsNotAsked) {
  EngineOptions options = engine_options();
  options.kv_cache_tokens = 0;
  const int64_t weights = host_bytes(options, 1, 1, 0);
  check_host_memory(options, 0, 1, 1, weights);
  expect_one_line_error({"for weights"}, [&] { check_host_memory(options, 0, 1, 1, weights - 1); });
}

}  // namespace
}  // namespace outrider
