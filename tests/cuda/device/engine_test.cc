// The engine on the CUDA backend: drafts, the target and verification on the device, replayed as
// graphs. Speculation must not show, nor what else is in the batch.
#include "engine/engine.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "backend/backend.h"
#include "comm/nccl/nccl_communicator.h"
#include "testing/checkpoints.h"
#include "testing/engine_harness.h"
#include "testing/every_drafter.h"
#include "testing/gpus.h"

namespace outrider {
namespace {

std::unique_ptr<Backend> make_device(int rank) { return make_cuda_backend(gpu_of_thread(rank)); }

EngineOptions options(const std::string& draft = "tiny-draft") {
  EngineOptions options = with_every_drafter({.model = test_checkpoint("tiny")});
  options.draft = test_checkpoint(draft);
  // Whatever it costs: nobody waits, and measuring takes long here.
  options.prefill_beside = 16;
  options.lookahead = *parse_lookahead("fixed:4");
  return options;
}

std::vector<CollectedAnswer> run(const EngineOptions& options, const std::vector<Request>& requests,
                                 int ranks = 1, EngineStats* stats = nullptr) {
  const std::string id = make_nccl_id();
  const auto make_communicator = [&](int rank, int size) {
    return make_nccl_communicator(rank, size, id);
  };
  return run_requests(options, ranks, requests, {}, stats, {make_device, make_communicator});
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
  const std::map<std::string, std::vector<std::string>> drafters_of = {
      {"tiny-draft", {kEveryDrafter.begin(), kEveryDrafter.end()}},
      {"tiny", {"model"}},
      {"tiny-trimmed", {"model"}}};
  for (const auto& [draft, drafters] : drafters_of) {
    EngineOptions with_draft = options(draft);
    with_draft.prefill_chunk = 15;
    std::vector<Request> requests;
    for (const int length : {1, 20}) {
      requests.push_back(greedy_request(length, length, 12, 0, "model"));
      for (const std::string& drafter : drafters) {
        for (const int k : {2, 8}) {
          requests.push_back(greedy_request(length, length, 12, k, drafter));
        }
      }
    }
    collect(requests, with_draft);
    collect({requests[0]}, with_draft);  // alone
    collect({greedy_request(20, 20, 12, 8, "model")}, with_draft);
  }
  ASSERT_EQ(distinct.size(), 2u);
  for (const auto& [length, outputs] : distinct) {
    EXPECT_EQ(outputs.size(), 1u) << "prompt of " << length;
  }
  EXPECT_GT(accepted, 50);
}

// A target and a draft with learned positions, over two ranks.
TEST(CudaEngine, AGpt2sGreedyAnswerDoesNotDependOnSpeculation) {
  NEED_GPUS(2);
  EngineOptions gpt2 = options("tiny-gpt2-draft");
  gpt2.model = test_checkpoint("tiny-gpt2");
  gpt2.draft_head.reset();
  std::vector<Request> requests;
  for (const int k : {0, 2, 8}) {
    for (const std::string drafter : {"model", "prompt_lookup"}) {
      requests.push_back(greedy_request(20, 1, 12, k, drafter));
    }
  }
  const auto answers = run(gpt2, requests, 2);
  for (const CollectedAnswer& answer : answers) {
    ASSERT_TRUE(answer.completion) << answer.status;
    EXPECT_EQ(answer.token_ids, answers[0].token_ids);
  }
  ASSERT_EQ(answers[0].token_ids.size(), 12u);
}

// A rank that gives up while it records its third pass or a later one.
class GivesUp final : public Communicator {
 public:
  explicit GivesUp(Communicator& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  bool is_near() const override { return inner_.is_near(); }
  void reserve_sum(int64_t max_elements) override { inner_.reserve_sum(max_elements); }
  void all_reduce_sum(TensorView x, Stream& stream) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.handle), &status);
    constexpr int kSumsOfAPass = 4;  // of two layers
    if (status == cudaStreamCaptureStatusActive && ++num_recorded_ > 2 * kSumsOfAPass) {
      throw Error("had enough");
    }
    inner_.all_reduce_sum(x, stream);
  }
  void all_gather(TensorView mine, TensorView all, Stream& stream) override {
    inner_.all_gather(mine, all, stream);
  }
  void broadcast(TensorView x, int root, Stream& stream) override {
    inner_.broadcast(x, root, stream);
  }

 private:
  Communicator& inner_;
  int num_recorded_ = 0;
};

// NCCL would wait for the graphs for ever.
TEST(CudaEngine, AStartThatFailsForgetsWhatItHasRecorded) {
  NEED_GPUS(2);
  EngineOptions measured = options();
  measured.prefill_beside = 0;
  measured.max_sequences = 1;
  measured.max_rows = measured.prefill_chunk = 4;
  const std::string id = make_nccl_id();
  run_thread_ranks(2, [&](Communicator& threads) {
    const auto backend = make_device(threads.rank());
    try {
      const auto communicator = make_nccl_communicator(threads.rank(), 2, id);
      GivesUp gives_up(*communicator);
      const Executor executor(measured, *backend, gives_up);
      ADD_FAILURE() << "it has started";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "had enough");
    }
  });
}

// Every option that edits or cuts logits, in the graphs; beside those who ask for none.
std::vector<Request> edited_requests(const std::vector<std::string>& drafters) {
  std::vector<Request> requests;
  for (const int k : {0, 3}) {
    for (const std::string& drafter : drafters) {
      Request request = greedy_request(8, 1, 12, k, drafter);
      request.sampling.logit_bias = {{100, 2.0f}, {313, -4.0f}, {7, 1.0f}};
      request.sampling.repetition_penalty = 1.3f;
      request.sampling.presence_penalty = 0.8f;
      request.sampling.frequency_penalty = 0.5f;
      request.sampling.min_tokens = 6;
      request.sampling.stop_token_ids = {7};
      requests.push_back(request);
      requests.push_back(greedy_request(8, 1, 12, k, drafter));
    }
  }
  return requests;
}

void expect_two_answers(const std::vector<CollectedAnswer>& answers) {
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].completion) << answers[i].status;
    EXPECT_EQ(answers[i].token_ids, answers[i % 2].token_ids) << i;
  }
  EXPECT_NE(answers[0].token_ids, answers[1].token_ids);
}

// As TokensAreTheCpus.
TEST(CudaEngine, EditedAnswersAreTheCpusWhateverIsDrafted) {
  const auto requests = edited_requests({kEveryDrafter.begin(), kEveryDrafter.end()});
  const auto device = run(options(), requests);
  expect_two_answers(device);
  const auto cpu = run_requests(options(), 1, {requests[0], requests[1]});
  for (size_t i = 0; i < cpu.size(); ++i) EXPECT_EQ(device[i].token_ids, cpu[i].token_ids);
}

// Sharded: sums and exchanges over NCCL, in the graphs. Filtered sampling on a vocabulary of which
// the candidates do not cover the nucleus, so that rows are gathered too.
class CudaEngineRanks : public testing::TestWithParam<int> {};

TEST_P(CudaEngineRanks, AgreeAndSpeculationDoesNotShow) {
  const int ranks = GetParam();
  NEED_GPUS(ranks);
  std::vector<Request> requests;
  for (const int k : {0, 1, 4}) requests.push_back(greedy_request(6, 1, 12, k, "model"));
  Request sampled = greedy_request(6, 2, 12, 3, "model");
  sampled.sampling.temperature = 1.5f;
  sampled.sampling.top_p = 0.9f;
  sampled.sampling.seed = 5;
  sampled.speculation.mode = VerifyMode::rejection;
  requests.insert(requests.end(), 2, sampled);
  sampled.speculation.mode = VerifyMode::coupled;
  for (const int k : {0, 2, 5}) {
    requests.push_back(sampled);
    requests.back().speculation.num_speculative_tokens = k;
  }
  const auto answers = run(options(), requests, ranks);
  for (const CollectedAnswer& answer : answers) {
    ASSERT_TRUE(answer.completion) << answer.status;
    ASSERT_EQ(answer.token_ids.size(), 12u);
  }
  EXPECT_EQ(answers[1].token_ids, answers[0].token_ids);
  EXPECT_EQ(answers[2].token_ids, answers[0].token_ids);
  EXPECT_EQ(answers[4].token_ids, answers[3].token_ids);
  EXPECT_EQ(answers[6].token_ids, answers[5].token_ids);
  EXPECT_EQ(answers[7].token_ids, answers[5].token_ids);
}

TEST_P(CudaEngineRanks, AgreeOnEditedAnswers) {
  NEED_GPUS(GetParam());
  std::vector<Request> requests = edited_requests({"model"});
  expect_two_answers(run(options(), requests, GetParam()));
  for (Request& request : requests) {  // rows that are gathered, and log-probabilities
    request.speculation.num_speculative_tokens = 3;
    request.sampling.temperature = 1.5f;
    request.sampling.min_p = 0.001f;
    request.sampling.top_p = 0.9f;
    request.sampling.seed = 5;
    request.sampling.logprobs = 1;
  }
  const auto sampled = run(options(), {requests[0], requests[2]}, GetParam());
  EXPECT_EQ(sampled[0].token_ids, sampled[1].token_ids);
  for (size_t i = 0; i < sampled[0].logprobs.size(); ++i) {
    EXPECT_EQ(sampled[0].logprobs[i].token.token, sampled[0].token_ids[i]);
    EXPECT_EQ(sampled[0].logprobs[i].token.logprob, sampled[1].logprobs[i].token.logprob);
    EXPECT_LT(sampled[0].logprobs[i].token.logprob, 0.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaEngineRanks, testing::Values(2, 3));

// In one engine, whose graphs are as large for each: what is accepted is what the CPU's accept.
TEST(CudaEngine, EachDrafterHasGraphsOfItsOwn) {
  std::vector<Request> requests;
  for (const std::string drafter : kEveryDrafter) {
    requests.push_back(greedy_request(20, 3, 24, 3, drafter));
    requests.back().sampling.temperature = 1.0f;
    requests.back().sampling.seed = 5;
    requests.back().speculation.mode = VerifyMode::rejection;
  }
  EngineOptions one_by_one = options();
  one_by_one.max_sequences = 1;
  const auto answers = run(one_by_one, requests);
  const auto expected = run_requests(one_by_one, 1, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(answers[i].completion) << answers[i].status;
    ASSERT_TRUE(expected[i].completion) << expected[i].status;
    EXPECT_NEAR(answers[i].completion->speculation.alpha(),
                expected[i].completion->speculation.alpha(), 2e-3)
        << *requests[i].speculation.drafter;
  }
}

TEST(CudaEngine, SampledAnswersRepeat) {
  std::vector<Request> requests;
  for (const std::string drafter : kEveryDrafter) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      Request request = greedy_request(20, 3, 16, 3, drafter);
      request.sampling.temperature = 0.9f;
      request.sampling.top_k = 200;
      request.sampling.top_p = 0.97f;
      request.sampling.seed = 11;
      request.speculation.mode = VerifyMode::rejection;
      requests.push_back(request);
    }
  }
  const auto answers = run(options(), requests);
  for (size_t i = 0; i < answers.size(); i += 2) {
    ASSERT_TRUE(answers[i].completion) << answers[i].status;
    EXPECT_EQ(answers[i].token_ids, answers[i + 1].token_ids);
  }
}

// Whatever drafts, and how much; with filters, without, and without drafts. Times of a race are the
// CPU's bit for bit where logits are; here they differ by rounding, which decides no race.
TEST(CudaEngine, CoupledDoesNotDependOnSpeculation) {
  for (const bool filtered : {false, true}) {
    std::vector<Request> requests;
    for (const std::string drafter : kEveryDrafter) {
      for (const int k : {0, 1, 5}) {
        if (k != 5 && drafter != "model" && drafter != "random") continue;
        Request request = greedy_request(20, 3, 16, k, drafter);
        request.sampling.temperature = 0.9f;
        request.sampling.top_k = filtered ? 50 : 0;
        request.sampling.top_p = filtered ? 0.97f : 1.0f;
        request.sampling.seed = 11;
        requests.push_back(request);
      }
    }
    const auto answers = run(options("tiny"), requests);
    int64_t accepted = 0;
    for (const CollectedAnswer& answer : answers) {
      ASSERT_TRUE(answer.completion) << answer.status;
      EXPECT_EQ(answer.token_ids, answers[0].token_ids);
      accepted += answer.completion->speculation.num_accepted_draft_tokens;
    }
    EXPECT_GT(accepted, 10);
    EXPECT_EQ(answers[0].token_ids, run_requests(options("tiny"), 1, {requests[0]})[0].token_ids);
  }
}

// Candidates beside the first drafted token: segments of the pass, places of the cache that hold
// another's key until they are fed again, draws from what was masked. Of 64 tokens one is now and
// then right. (By rejection, answers without a seed are nobody's to compare.)
TEST(CudaEngine, AlternativesDoNotShow) {
  EngineOptions few_tokens = with_every_drafter({.model = test_checkpoint("tiny-v64")});
  few_tokens.draft = test_checkpoint("tiny-v64-draft");
  few_tokens.prefill_beside = 16;
  few_tokens.lookahead = *parse_lookahead("fixed:2");
  for (const bool sampled : {false, true}) {
    std::vector<Request> requests;
    for (const int alternatives : {0, 1, 6}) {
      for (const std::string drafter : {"model", "head"}) {
        if (alternatives == 0 && drafter != "model") continue;
        requests.push_back(greedy_request(8, 3, 40, alternatives == 0 ? 0 : 2, drafter));
        Request& request = requests.back();
        if (alternatives > 0) request.speculation.num_alternatives = alternatives;
        if (!sampled) continue;
        request.sampling.temperature = 0.9f;
        request.sampling.top_p = 0.97f;
        request.sampling.seed = 11;
      }
    }
    std::vector<Request> all = requests;
    if (sampled) {
      all.push_back(requests.back());
      all.back().sampling.seed.reset();
      all.back().speculation.mode = VerifyMode::rejection;
    }
    const auto answers = run(few_tokens, all);
    int64_t accepted = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      ASSERT_TRUE(answers[i].completion) << answers[i].status;
      ASSERT_EQ(answers[i].token_ids.size(), 40u);
      if (i < requests.size()) {
        EXPECT_EQ(answers[i].token_ids, answers[0].token_ids) << i;
      }
      accepted += answers[i].completion->speculation.num_accepted_alternatives;
    }
    EXPECT_GT(accepted, 3) << sampled;
  }
}

// Costs are measured on the device, and K follows them: whatever it comes to, nothing shows.
TEST(CudaEngine, AdaptiveAnswersAreThePlainOnes) {
  EngineOptions adaptive = options("tiny");
  adaptive.prefill_beside = 0;
  adaptive.lookahead = *parse_lookahead("adaptive");
  adaptive.max_rows = 18;
  adaptive.max_sequences = 2;
  adaptive.prefill_chunk = 8;
  adaptive.max_positions = 64;
  std::vector<Request> requests;
  for (const std::string drafter : kEveryDrafter) {
    requests.push_back(greedy_request(20, 3, 16, 0, drafter));
    requests.push_back(requests.back());
    requests.back().speculation.num_speculative_tokens.reset();
  }
  EngineStats stats;
  const auto answers = run(adaptive, requests, 1, &stats);
  for (const CollectedAnswer& answer : answers) {
    ASSERT_TRUE(answer.completion) << answer.status;
    EXPECT_EQ(answer.token_ids, answers[0].token_ids);
  }
  EXPECT_GT(stats.drafters[static_cast<int>(DrafterKind::model)].draft_cost.value(), 0);
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
