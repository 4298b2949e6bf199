// Scratch memory is what plans count, is there before the first step, and never grows in one.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <barrier>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/operation_cost.h"
#include "comm/nccl/nccl_communicator.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/distribution.h"
#include "kernels/cuda/launch.h"
#include "spec/drafter.h"
#include "spec/speculative_step.h"
#include "testing/checkpoints.h"
#include "testing/engine_harness.h"
#include "testing/gpus.h"
#include "testing/one_line_error.h"

namespace outrider {
namespace {

constexpr AttentionShape kShape = {
    .num_heads = 6, .num_kv_heads = 2, .head_dim = 64, .group_size = 3};

int64_t free_bytes() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return static_cast<int64_t>(free);
}

TEST(Reserve, PlansKnowWhichRowsAreFew) {
  AttentionShape shape = {
      .num_heads = 4, .num_kv_heads = 2, .head_dim = cuda::kFewMaxHeadDim, .group_size = 2};
  EXPECT_TRUE(cuda_attends_in_one(cuda::kFewRows, shape));
  EXPECT_FALSE(cuda_attends_in_one(cuda::kFewRows + 1, shape));
  shape.num_heads = cuda::kFewCounters / cuda::kFewRows;
  EXPECT_TRUE(cuda_attends_in_one(cuda::kFewRows, shape));
  shape.num_heads += 1;
  EXPECT_FALSE(cuda_attends_in_one(cuda::kFewRows, shape));
  shape = {
      .num_heads = 4, .num_kv_heads = 2, .head_dim = cuda::kFewMaxHeadDim + 16, .group_size = 2};
  EXPECT_FALSE(cuda_attends_in_one(1, shape));
}

TEST(Reserve, PlansCountWhatTheKernelsAskFor) {
  for (const int64_t positions : {1, 16, 17, 256, 257, 8192}) {
    for (const int64_t rows : {1, 5, 64}) {
      EXPECT_EQ(cuda_attention_scratch_bytes(rows, positions, kShape),
                cuda::kFewCounters * sizeof(unsigned) +
                    cuda::attention_workspace_bytes(rows, positions, kShape));
    }
  }
  for (const int64_t vocab : {1, 1021, 1022, 2045, 2046, 128256}) {
    for (const int64_t rows : {1, 64}) {
      EXPECT_EQ(cuda_verify_scratch_bytes(rows, vocab), cuda::verify_workspace_bytes(rows, vocab));
      EXPECT_EQ(cuda_verify_arrivals_bytes(rows), cuda::verify_arrivals_bytes(rows));
    }
  }
}

// A GPU hands memory out in larger pieces.
TEST(Reserve, TakesWhatPlansCountAndTheLargestOnce) {
  if (!emulated_gpus()) GTEST_SKIP() << "to the byte on the emulator alone";
  CudaBackend backend(0);
  const int64_t before = free_bytes();
  const int64_t attention = cuda_attention_scratch_bytes(8, 4096, kShape);
  backend.reserve_attention(8, 4096, kShape);
  EXPECT_EQ(before - free_bytes(), attention);
  backend.reserve_attention(4, 4096, kShape);  // a smaller model
  EXPECT_EQ(before - free_bytes(), attention);
  const int64_t verification =
      cuda_verify_scratch_bytes(16, 50000) + cuda_verify_arrivals_bytes(16);
  backend.reserve_verification(4, 50000);
  backend.reserve_verification(16, 50000);
  EXPECT_EQ(before - free_bytes(), attention + verification);
}

// A product is kept where cuBLASLt makes it: the exact kernel activates what it has in registers.
TEST(Reserve, ActivationsTakeWhatPlansCount) {
  if (!emulated_gpus()) GTEST_SKIP() << "to the byte on the emulator alone";
  for (const Numerics numerics : {Numerics::exact, Numerics::fast}) {
    CudaBackend backend(0, numerics);
    const int64_t before = free_bytes();
    for (const int64_t rows : {kFastLinearMinRows - 1, kFastLinearMinRows}) {
      backend.reserve_activation(rows, 1000);
      const bool kept = numerics == Numerics::fast && rows == kFastLinearMinRows;
      EXPECT_EQ(before - free_bytes(), kept ? rows * 1000 * 4 : 0);
      EXPECT_EQ(before - free_bytes(), cuda_activation_scratch_bytes(rows, 1000, numerics));
    }
  }
}

TEST(ReserveDeathTest, WhatWasNotReservedIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  CudaBackend backend(0);
  Stream stream = backend.make_stream();
  const Buffer logits = backend.allocate(2 * 100 * sizeof(float));
  const TensorView view = logits.view(DType::f32, {2, 100});
  backend.reserve_verification(1, 100);
  EXPECT_DEATH(backend.sample_drafts(view, nullptr, 2, true, nullptr, nullptr, nullptr, stream),
               "CHECK failed");
}

TEST(ReserveDeathTest, AProductThatWasNotReservedIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr int64_t kRows = kFastLinearMinRows;
  CudaBackend backend(0, Numerics::fast);
  Stream stream = backend.make_stream();
  std::vector<bf16> values(32 * 32);
  const TensorView rows(values.data(), DType::bf16, {32, 32});
  const PackedWeight weight = backend.pack({&rows, 1}, WeightFormat::bf16);
  const Buffer x = backend.allocate(kRows * 32 * sizeof(bf16)), y = backend.allocate(x.bytes());
  const TensorView x_view = x.view(DType::bf16, {kRows, 32}),
                   y_view = y.view(DType::bf16, {kRows, 32});
  backend.reserve_activation(kRows - 1, 32);
  EXPECT_DEATH(backend.linear_activated(weight, x_view, {}, Activation::gelu_tanh, y_view, stream),
               "CHECK failed");
}

// Sizes that configurations may have and kernels cannot count.
TEST(Reserve, WhatIsTooLargeForAKernelIsRefused) {
  CudaBackend backend(0);
  constexpr AttentionShape kMany = {
      .num_heads = 136, .num_kv_heads = 8, .head_dim = 128, .group_size = 17};
  expect_one_line_error({"1048576 positions", "136 heads of 128", "--max-positions"},
                        [&] { backend.reserve_attention(16, 1 << 20, kMany); });
  std::vector<bf16> values((1 << 20) * 2);
  const TensorView rows(values.data(), DType::bf16, {1 << 20, 2});
  expect_one_line_error({"1048576 rows", "expected at most 1048560"}, [&] {
    backend.pack({&rows, 1}, WeightFormat::bf16);
  });
}

TEST(Reserve, ADeviceThatHasFailedIsNotSaidToBeFull) {
  if (!emulated_gpus()) GTEST_SKIP() << "a GPU that has failed is of no use afterwards";
  CudaBackend backend(0);
  expect_one_line_error({"device 0 has no room for 1099511627776 bytes more"},
                        [&] { backend.allocate(size_t{1} << 40); });
  const auto fail = [](void*) { throw Error("it broke"); };
  cuda::check_cuda(cudaLaunchHostFunc(nullptr, fail, nullptr), "cudaLaunchHostFunc");
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  expect_one_line_error({"cudaMalloc failed: emulator: it broke"}, [&] { backend.allocate(1); });
  expect_one_line_error({"cudaMallocHost failed: emulator: it broke"},
                        [&] { backend.allocate_pinned(1); });
  cudaDeviceReset();
}

// Prompts, drafts and more sequences than in any step before. all_ranks: they share the emulator's
// memory, and meet before each look at it and behind it.
void expect_no_step_takes_memory(Communicator& communicator, std::barrier<>& all_ranks) {
  constexpr int64_t kPositions = 256, kRows = 64, kSlots = 4;
  constexpr int64_t kPages = kSlots * kPositions / kPageTokens;
  CudaBackend backend(gpu_of_thread(communicator.rank()));
  const ForgetReplayed forget_replayed(backend);
  Transformer target(test_checkpoint("tiny"), backend, communicator, kRows, kPositions);
  KvCache cache = target.make_kv_cache(kPages, kSlots);
  ModelDrafter drafter(test_checkpoint("tiny-draft"), backend, kPages, kSlots, kRows, {});
  SpeculativeStep step(backend, communicator, target, cache, kSlots, kRows);
  Stream stream = backend.make_stream();
  cache.deal_pages(stream);
  drafter.cache().deal_pages(stream);
  std::vector<SequenceState> slots(kSlots);
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    drafter.admit(slot, 0);
    slots[slot].tokens = recurring_prompt(14, 1);
    slots[slot].processors.mode = VerifyMode::rejection;
    slots[slot].processors.temperature = 1.0f;
    slots[slot].drafter = &drafter;
    slots[slot].top_logprobs = 2;
  }
  const auto free_together = [&] {
    all_ranks.arrive_and_wait();
    const int64_t free = free_bytes();
    all_ranks.arrive_and_wait();
    return free;
  };
  const int64_t before = free_together();
  for (const int64_t sequences : {1, 1, 2, 4, 4}) {
    std::vector<SlotWork> work;
    for (int64_t slot = 0; slot < sequences; ++slot) {
      const auto length = static_cast<int64_t>(slots[slot].tokens.size());
      work.push_back({.slot = slot,
                      .prefill_end = length - 1,
                      .draft_prefill_end = length - 1,
                      .decode = true,
                      .num_draft_tokens = 1});
    }
    step.run(slots, work, 0, stream);
    EXPECT_EQ(free_together(), before) << sequences;
  }
}

TEST(Reserve, NoStepTakesMemory) {
  if (!emulated_gpus()) GTEST_SKIP() << "a GPU's graphs take memory too";
  NEED_GPUS(3);
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const std::string id = make_nccl_id();
    std::barrier all_ranks(ranks);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        cuda::check_cuda(cudaSetDevice(gpu_of_thread(rank)), "cudaSetDevice");
        const auto communicator = make_nccl_communicator(rank, ranks, id);
        expect_no_step_takes_memory(*communicator, all_ranks);
      });
    }
  }
}

}  // namespace
}  // namespace outrider
