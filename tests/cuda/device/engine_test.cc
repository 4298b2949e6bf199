// The engine on the CUDA backend: drafts, the target and verification on the device, replayed as
// graphs. Speculation must not show, nor what else is in the batch.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "backend/backend.h"
#include "comm/nccl/nccl_communicator.h"
#include "testing/checkpoints.h"
#include "testing/engine_harness.h"
#include "testing/gpus.h"

namespace outrider {
namespace {

std::unique_ptr<Backend> make_device(int rank) { return make_cuda_backend(gpu_of_thread(rank)); }

EngineOptions options(const char* draft = "tiny-draft") {
  EngineOptions options{.model = test_checkpoint("tiny"), .draft = test_checkpoint(draft)};
  // Whatever it costs: nobody waits, and measuring takes long here.
  options.prefill_beside = 16;
  options.lookahead = *parse_lookahead("fixed:4");
  return options;
}

std::vector<CollectedAnswer> run(const EngineOptions& options, const std::vector<Request>& requests,
                                 int ranks = 1) {
  const std::string id = make_nccl_id();
  const auto make_communicator = [&](int rank, int size) {
    return make_nccl_communicator(rank, size, id);
  };
  return run_requests(options, ranks, requests, {}, nullptr, {make_device, make_communicator});
}

TEST(CudaEngine, GreedyDoesNotDependOnSpeculation) {
  std::map<size_t, std::set<std::vector<int32_t>>> distinct;  // by the prompt's length
  int64_t accepted = 0;
  const auto collect = [&](const std::vector<Request>& requests, const EngineOptions& options) {
    const auto answers = run(options, requests);
    for (size_t i = 0; i < answers.size(); ++i) {
      ASSERT_TRUE(answers[i].completion) << answers[i].status;
      ASSERT_EQ(answers[i].token_ids.size(), 12u);
      distinct[requests[i].prompt.size()].insert(answers[i].token_ids);
      accepted += answers[i].completion->speculation.num_accepted_draft_tokens;
    }
  };
  for (const char* draft : {"tiny-draft", "tiny", "tiny-trimmed"}) {
    EngineOptions with_draft = options(draft);
    with_draft.prefill_chunk = 30;
    std::vector<Request> requests;
    for (const int k : {0, 2, 8}) {
      for (const std::string drafter : {"model", "random", "prompt_lookup"}) {
        for (const int length : {1, 40}) {
          requests.push_back(greedy_request(length, length, 12, k, drafter));
        }
      }
    }
    collect(requests, with_draft);
    collect({requests[0]}, with_draft);   // alone
    collect({requests[13]}, with_draft);  // the long prompt, K = 8, the model's drafts
  }
  ASSERT_EQ(distinct.size(), 2u);
  for (const auto& [length, outputs] : distinct) {
    EXPECT_EQ(outputs.size(), 1u) << "prompt of " << length;
  }
  EXPECT_GT(accepted, 50);
}

// Sharded: sums and exchanges over NCCL, in the graphs. Filtered sampling on a vocabulary of which
// the candidates do not cover the nucleus, so that rows are gathered too.
class CudaEngineRanks : public testing::TestWithParam<int> {};

TEST_P(CudaEngineRanks, AgreeAndSpeculationDoesNotShow) {
  const int ranks = GetParam();
  NEED_GPUS(ranks);
  std::vector<Request> requests;
  for (const int k : {0, 1, 4}) requests.push_back(greedy_request(20, 1, 12, k, "model"));
  for (int repeat = 0; repeat < 2; ++repeat) {
    Request sampled = greedy_request(20, 2, 12, 3, "model");
    sampled.sampling.temperature = 1.5f;
    sampled.sampling.top_p = 0.9f;
    sampled.sampling.seed = 5;
    requests.push_back(sampled);
  }
  const auto answers = run(options(), requests, ranks);
  for (const CollectedAnswer& answer : answers) {
    ASSERT_TRUE(answer.completion) << answer.status;
    ASSERT_EQ(answer.token_ids.size(), 12u);
  }
  EXPECT_EQ(answers[1].token_ids, answers[0].token_ids);
  EXPECT_EQ(answers[2].token_ids, answers[0].token_ids);
  EXPECT_EQ(answers[4].token_ids, answers[3].token_ids);
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaEngineRanks, testing::Values(2, 3));

TEST(CudaEngine, SampledAnswersRepeat) {
  std::vector<Request> requests;
  for (const std::string drafter : {"model", "random", "prompt_lookup"}) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      Request request = greedy_request(20, 3, 16, 3, drafter);
      request.sampling.temperature = 0.9f;
      request.sampling.top_k = 200;
      request.sampling.top_p = 0.97f;
      request.sampling.seed = 11;
      requests.push_back(request);
    }
  }
  const auto answers = run(options(), requests);
  for (size_t i = 0; i < answers.size(); i += 2) {
    ASSERT_TRUE(answers[i].completion) << answers[i].status;
    EXPECT_EQ(answers[i].token_ids, answers[i + 1].token_ids);
  }
}

// Every token the CPU's, as long as no logits tie within what the two sides' rounding differs by:
// on this checkpoint, these prompts, none does.
TEST(CudaEngine, TokensAreTheCpus) {
  std::vector<Request> requests;
  for (const int length : {1, 9, 33}) {
    requests.push_back(greedy_request(length, length, 24, 3, "model"));
  }
  const auto device = run(options(), requests);
  const auto cpu = run_requests(options(), 1, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(device[i].completion) << device[i].status;
    EXPECT_EQ(device[i].token_ids, cpu[i].token_ids);
  }
}

}  // namespace
}  // namespace outrider
