// Times of a stream, and of a step on it, which says whether they are those of steps like it.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "comm/nccl/nccl_communicator.h"
#include "core/error.h"
#include "engine/engine.h"
#include "testing/checkpoints.h"
#include "testing/engine_harness.h"
#include "testing/gpus.h"

namespace outrider {
namespace {

// The end is marked in what is replayed, the begin is not: an end that was left from the run before
// would lie before the begin.
TEST(CudaMarks, AreNotedByEveryReplay) {
  CudaBackend backend(0);
  Stream stream = backend.make_stream();
  const Buffer x = backend.allocate(sizeof(float)), y = backend.allocate(sizeof(float));
  EXPECT_THROW(backend.seconds_between(0, 1), Error);  // nothing was noted
  for (int run = 0; run < 4; ++run) {
    backend.mark(0, stream);
    backend.replay(7, stream, /*collective=*/false, [&] {
      backend.copy(x.view(DType::f32, {1}), y.view(DType::f32, {1}), stream);
      backend.mark(1, stream);
      backend.copy(x.view(DType::f32, {1}), y.view(DType::f32, {1}), stream);
      backend.mark(2, stream);
    });
    if (run < 2 && emulated_gpus()) {  // a GPU may be done already
      EXPECT_THROW(backend.seconds_between(0, 1), Error) << "nobody has waited";
    }
    backend.synchronize(stream);
    EXPECT_GT(backend.seconds_between(0, 1), 0) << run;
    EXPECT_GT(backend.seconds_between(1, 2), 0) << run;
  }
}

// Every part of a step has taken time on the device, in replayed steps as in others; the exchange
// where there is somebody to exchange with.
class CudaStepMarks : public ::testing::TestWithParam<int> {};

TEST_P(CudaStepMarks, TellWhatAStepIsMadeOf) {
  const int ranks = GetParam();
  NEED_GPUS(ranks);
  const std::string id = make_nccl_id();
  run_thread_ranks(ranks, [&](Communicator& threads) {
    CudaBackend backend(gpu_of_thread(threads.rank()));
    const auto communicator = make_nccl_communicator(threads.rank(), ranks, id);
    const ForgetReplayed forget_replayed(backend);
    constexpr int64_t kPositions = 256, kRows = 64;
    Transformer target(test_checkpoint("tiny"), backend, *communicator, kRows, kPositions);
    KvCache cache = target.make_kv_cache(kPositions / kPageTokens, 1);
    ModelDrafter drafter(test_checkpoint("tiny-draft"), backend, kPositions / kPageTokens, 1, kRows,
                         {});
    Stream stream = backend.make_stream();
    cache.deal_pages(stream);
    drafter.cache().deal_pages(stream);
    SpeculativeStep step(backend, *communicator, target, cache, 1, kRows);
    drafter.admit(0, 0);
    std::vector<SequenceState> slots(1);
    slots[0].tokens = recurring_prompt(20, 1);
    slots[0].processors.mode = VerifyMode::greedy;
    slots[0].drafter = &drafter;
    for (int i = 0; i < 4; ++i) {
      const auto length = static_cast<int64_t>(slots[0].tokens.size());
      const SlotWork work = {.prefill_end = length - 1,
                             .draft_prefill_end = length - 1,
                             .decode = true,
                             .num_draft_tokens = 2};
      step.run(slots, {&work, 1}, 0, stream);
      EXPECT_GT(step.times().draft, 0) << i;
      EXPECT_GT(step.times().target, 0) << i;
      EXPECT_GT(step.times().verify, 0) << i;
      EXPECT_EQ(step.times().exchange > 0, ranks > 1) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CudaStepMarks, ::testing::Values(1, 2));

TEST(CudaSteps, TellThatTheyRecord) {
  constexpr int64_t kPositions = 256, kRows = 64;
  CudaBackend backend(0);
  const auto alone = make_nccl_communicator(0, 1, "");
  Transformer target(test_checkpoint("tiny"), backend, *alone, kRows, kPositions);
  KvCache cache = target.make_kv_cache(kPositions / kPageTokens, 1);
  const auto make_drafter = [&] {
    return std::make_unique<ModelDrafter>(test_checkpoint("tiny-draft"), backend,
                                          kPositions / kPageTokens, 1, kRows, nullptr);
  };
  const auto one = make_drafter(), another = make_drafter();
  Stream stream = backend.make_stream();
  cache.deal_pages(stream);
  SpeculativeStep step(backend, *alone, target, cache, 1, kRows);
  std::vector<SequenceState> slots(1);
  slots[0].tokens = recurring_prompt(20, 1);
  slots[0].processors.mode = VerifyMode::greedy;
  const auto records = [&] {
    const auto length = static_cast<int64_t>(slots[0].tokens.size());
    const bool drafts = slots[0].drafter != nullptr;
    const SlotWork work = {.prefill_end = length - 1,
                           .draft_prefill_end = drafts ? length - 1 : 0,
                           .decode = true,
                           .num_draft_tokens = drafts ? 1 : 0};
    step.run(slots, {&work, 1}, 0, stream);
    return step.times().recorded;
  };
  // With the prompt, which is never recorded; as it is, recorded, and launched.
  for (const bool recorded : {false, false, true, false}) EXPECT_EQ(records(), recorded);
  const auto begin_drafting = [&](ModelDrafter& drafter) {
    drafter.cache().deal_pages(stream);
    drafter.admit(0, 0);
    slots[0].drafter = &drafter;
  };
  begin_drafting(*one);
  for (const bool recorded : {false, true, false}) EXPECT_EQ(records(), recorded);
  begin_drafting(*another);  // whose rounds are new, and nothing else
  for (const bool recorded : {false, true, false}) EXPECT_EQ(records(), recorded);
}

}  // namespace
}  // namespace outrider
