// Sampled tokens through the whole engine against the target's exact distribution: a request with
// speculation draws from the distribution of one without (Chen et al. 2023, Theorem 1), a coupled
// one too.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "testing/checkpoints.h"
#include "testing/engine_harness.h"
#include "testing/every_drafter.h"
#include "testing/exact_triples.h"

namespace outrider {
namespace {

constexpr int64_t kRequests = 5'000;         // of each arm
constexpr int64_t kRequestsAtOnce = 10'000;  // of all arms

const SamplingParams kTopKAndTopP = {.temperature = 0.8f, .top_p = 0.9f, .top_k = 20};
const SamplingParams kTopP = {.temperature = 0.8f, .top_p = 0.9f};
const SamplingParams kEdited = edited({.temperature = 1.2f});
const SamplingParams kEditedMinP =
    edited({.temperature = 1.4f, .top_p = 0.95f, .top_k = 40, .min_p = 0.03f});

struct Processing {
  const char* name;
  const char* draft;
  std::vector<std::string> arms;
  VerifyMode mode = VerifyMode::rejection;
  SamplingParams sampling = {};
  int ranks = 1;
  int64_t requests = kRequests;  // of each arm; OUTRIDER_SAMPLING_REQUESTS stands above it
};

class EngineSampling : public ::testing::TestWithParam<Processing> {};

TEST_P(EngineSampling, DrawsFromTheTargetsDistribution) {
  Request request;
  request.prompt = kPrompt;
  request.sampling = GetParam().sampling;
  request.sampling.max_tokens = 4;  // the first step may draft three
  request.sampling.ignore_eos = true;
  request.speculation.num_speculative_tokens = 3;
  request.speculation.mode = GetParam().mode;

  EngineOptions options = with_every_drafter({.model = test_checkpoint("tiny-v64")});
  options.draft = test_checkpoint(GetParam().draft);
  options.max_positions = 64;

  const std::vector<std::string>& arms = GetParam().arms;
  const auto num_arms = static_cast<int64_t>(arms.size());
  const int64_t of_each_arm = answers_to_ask_for(GetParam().requests);
  std::vector<Drawn> drawn(num_arms);
  for (int64_t done = 0; done < of_each_arm; done += kRequestsAtOnce / num_arms) {
    const int64_t now = std::min(of_each_arm - done, kRequestsAtOnce / num_arms);
    std::vector<Request> requests;
    for (int64_t arm = 0; arm < num_arms; ++arm) {
      request.speculation.off = arms[arm] == "off";
      if (arms[arm] != "off") request.speculation.drafter = arms[arm];
      for (int64_t i = 0; i < now; ++i) {
        request.sampling.seed = arm * of_each_arm + done + i;
        requests.push_back(request);
      }
    }
    const auto answers = run_requests(options, GetParam().ranks, requests);
    for (size_t i = 0; i < answers.size(); ++i) {
      ASSERT_TRUE(answers[i].completion) << answers[i].status;
      ASSERT_GE(answers[i].token_ids.size(), request.sampling.min_tokens > 0 ? 3u : 4u);
      const SpeculationStats& stats = answers[i].completion->speculation;
      drawn[static_cast<int64_t>(i) / now].add(answers[i].token_ids, stats.num_draft_tokens,
                                               stats.num_accepted_draft_tokens);
    }
  }

  const auto exact = exact_triples(request.sampling);
  for (int64_t arm = 0; arm < num_arms; ++arm) {
    SCOPED_TRACE(arms[arm]);
    const Drawn& of_arm = drawn[arm];
    if (arms[arm] == "off") {
      EXPECT_EQ(of_arm.drafted, 0);
    } else {
      EXPECT_GT(of_arm.accepted, 0);
      EXPECT_LT(of_arm.accepted, of_arm.drafted);
    }
    expect_drawn_from(exact, of_arm.triples);
  }
}

// tiny-v64-draft is the target's first layer, so that a good part of what it drafts is accepted.
// tiny-v64-trimmed knows two thirds of the tokens.
const std::vector<std::string> kEveryArm = [] {
  std::vector<std::string> arms(kEveryDrafter.begin(), kEveryDrafter.end());
  arms.emplace_back("off");
  return arms;
}();
const std::vector<std::string> kCopied = {"model", "prompt_lookup"};
constexpr VerifyMode kCoupled = VerifyMode::coupled;
INSTANTIATE_TEST_SUITE_P(
    Processors, EngineSampling,
    ::testing::Values(
        Processing{.name = "temperature_1", .draft = "tiny-v64-draft", .arms = kEveryArm},
        Processing{.name = "top_k_and_top_p",
                   .draft = "tiny-v64-draft",
                   .arms = kEveryArm,
                   .sampling = kTopKAndTopP},
        Processing{.name = "trimmed_draft", .draft = "tiny-v64-trimmed", .arms = {"model"}},
        Processing{.name = "trimmed_draft_top_p",
                   .draft = "tiny-v64-trimmed",
                   .arms = {"model"},
                   .sampling = kTopP},
        Processing{
            .name = "edited", .draft = "tiny-v64-draft", .arms = kEveryArm, .sampling = kEdited},
        Processing{.name = "trimmed_draft_edited_min_p",
                   .draft = "tiny-v64-trimmed",
                   .arms = {"model"},
                   .sampling = kEditedMinP},
        Processing{.name = "coupled",
                   .draft = "tiny-v64-draft",
                   .arms = {"model", "head", "off"},
                   .mode = kCoupled},
        Processing{.name = "coupled_filtered",
                   .draft = "tiny-v64-trimmed",
                   .arms = kCopied,
                   .mode = kCoupled,
                   .sampling = kTopKAndTopP},
        Processing{.name = "coupled_edited_min_p",
                   .draft = "tiny-v64-trimmed",
                   .arms = kCopied,
                   .mode = kCoupled,
                   .sampling = kEditedMinP},
        Processing{.name = "two_ranks", .draft = "tiny-v64-draft", .arms = kEveryArm, .ranks = 2},
        Processing{.name = "two_ranks_top_p",
                   .draft = "tiny-v64-trimmed",
                   .arms = kEveryArm,
                   .sampling = kTopP,
                   .ranks = 2},
        Processing{.name = "two_ranks_edited",
                   .draft = "tiny-v64-draft",
                   .arms = {"model", "head", "off"},
                   .sampling = kEdited,
                   .ranks = 2},
        Processing{.name = "many",
                   .draft = "tiny-v64-draft",
                   .arms = {"model", "head"},
                   .requests = kManyAnswers},
        Processing{.name = "many_top_p",
                   .draft = "tiny-v64-trimmed",
                   .arms = {"model"},
                   .sampling = kTopP,
                   .requests = kManyAnswers},
        Processing{.name = "many_coupled",
                   .draft = "tiny-v64-draft",
                   .arms = {"model"},
                   .mode = kCoupled,
                   .requests = kManyAnswers},
        Processing{.name = "many_edited_min_p",
                   .draft = "tiny-v64-trimmed",
                   .arms = {"model"},
                   .sampling = kEditedMinP,
                   .requests = kManyAnswers}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace outrider
