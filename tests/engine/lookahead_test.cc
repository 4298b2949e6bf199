// The policies of Lookahead on a whole engine, with tiny random models: K decides when tokens come,
// never which.
#include "spec/lookahead.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "backend/cpu/cpu_backend.h"
#include "testing/checkpoints.h"
#include "testing/engine_harness.h"

namespace outrider {
namespace {

EngineOptions options_with(const std::string& lookahead) {
  return {.model = test_checkpoint("tiny"),
          .draft = test_checkpoint("tiny-draft"),
          .lookahead = *parse_lookahead(lookahead)};
}

Request policy_request(int seed, const std::string& drafter) {
  Request request = greedy_request(20 + 30 * (seed % 4), seed, 60 + 20 * (seed % 3), 0, drafter);
  request.speculation.num_speculative_tokens.reset();
  return request;
}

std::vector<std::vector<int32_t>> tokens_of(const std::vector<CollectedAnswer>& answers) {
  std::vector<std::vector<int32_t>> tokens;
  for (const CollectedAnswer& answer : answers) {
    EXPECT_TRUE(answer.completion) << answer.status;
    tokens.push_back(answer.token_ids);
  }
  return tokens;
}

TEST(EngineLookahead, GreedyAnswersAreThoseWithoutDrafts) {
  std::vector<Request> requests;
  for (int i = 0; i < 18; ++i) {
    const char* drafters[] = {"model", "prompt_lookup", "random"};
    requests.push_back(policy_request(i, drafters[i % 3]));
  }
  for (const int ranks : {1, 2}) {
    const auto plain = tokens_of(run_requests(options_with("fixed:0"), ranks, requests));
    for (const char* lookahead : {"adaptive", "table:1=5,3=2,8=0", "fixed:3"}) {
      EngineStats stats;
      EXPECT_EQ(tokens_of(run_requests(options_with(lookahead), ranks, requests, {}, &stats)),
                plain)
          << lookahead << ", " << ranks << " ranks";
      EXPECT_GT(stats.num_draft_tokens, 0) << lookahead;
    }
  }
}

TEST(EngineLookahead, RequestsThatNameNoDrafterCopyAndDraw) {
  EngineOptions options{.model = test_checkpoint("tiny"),
                        .draft_head = test_checkpoint("tiny-head"),
                        .lookahead = *parse_lookahead("adaptive")};
  std::vector<Request> requests;
  for (int i = 0; i < 16; ++i) {
    requests.push_back(
        policy_request(i / 2 * 2, ""));  // pairs: the second finds its prompt's pages
    requests.back().speculation.drafter.reset();
    if (i % 4 < 2) continue;
    requests.back().sampling.temperature = 0.7f;
    requests.back().sampling.seed = 40 + i;  // coupled
  }
  for (const int ranks : {1, 2}) {
    options.lookahead = *parse_lookahead("fixed:0");
    const auto plain = tokens_of(run_requests(options, ranks, requests));
    options.lookahead = *parse_lookahead("adaptive");
    EngineStats stats;
    const auto answers = run_requests(options, ranks, requests, {}, &stats);
    EXPECT_EQ(tokens_of(answers), plain) << ranks << " ranks";
    int64_t copied = 0, drafted = 0;
    for (const CollectedAnswer& answer : answers) {
      copied += answer.completion->speculation.num_copied_draft_tokens;
      drafted += answer.completion->speculation.num_draft_tokens;
      EXPECT_EQ(answer.completion->speculation.drafter, DrafterKind::head);
    }
    const auto report = [&](DrafterKind kind) { return stats.drafters[static_cast<int>(kind)]; };
    EXPECT_EQ(report(DrafterKind::prompt_lookup).num_draft_tokens, copied);
    EXPECT_EQ(report(DrafterKind::head).num_draft_tokens, drafted - copied);
    EXPECT_GT(copied, 0);
    EXPECT_GT(drafted, copied);
  }
}

// Whoever names a drafter, be it the server, gets no other's drafts; nor does a request that asks
// for a K of its own.
TEST(EngineLookahead, NothingIsCopiedWhereADrafterIsNamedOrKIsExact) {
  EngineOptions options{.model = test_checkpoint("tiny"),
                        .draft_head = test_checkpoint("tiny-head"),
                        .lookahead = *parse_lookahead("adaptive")};
  Request request = policy_request(0, "");
  request.sampling.max_tokens = 300;
  request.speculation.drafter.reset();
  const auto copied = [&] {
    const auto answer = run_requests(options, 1, {request})[0];
    EXPECT_GT(answer.completion->speculation.num_draft_tokens, 0);
    EXPECT_EQ(answer.completion->speculation.drafter, DrafterKind::head);
    return answer.completion->speculation.num_copied_draft_tokens;
  };
  EXPECT_GT(copied(), 0);
  const Request plain = request;
  request.speculation.drafter = "head";
  EXPECT_EQ(copied(), 0);
  request = plain;
  options.drafter = DrafterKind::head;
  EXPECT_EQ(copied(), 0);
  options.drafter.reset();
  request.speculation.num_speculative_tokens = 3;
  EXPECT_EQ(copied(), 0);
}

// One at a time, so that steps are alike: a drafter that is right is used, one that is not is not.
TEST(EngineLookahead, ADrafterThatGuessesNothingIsPutAside) {
  Request request = policy_request(1, "random");
  request.sampling.max_tokens = 400;
  EngineStats stats;
  const auto answers = run_requests(options_with("adaptive"), 1, {request}, {}, &stats);
  const SpeculationStats& speculation = answers[0].completion->speculation;
  EXPECT_GT(speculation.num_spec_steps, 0);
  EXPECT_LT(speculation.num_spec_steps, 200);
  const DrafterReport& report = stats.drafters[static_cast<int>(DrafterKind::random)];
  EXPECT_EQ(report.num_drafts, speculation.num_spec_steps);
  EXPECT_EQ(report.num_draft_tokens, speculation.num_draft_tokens);
  EXPECT_GT(report.draft_cost.value(), 0);
}

TEST(EngineLookahead, AnExplicitKIsExact) {
  std::vector<Request> requests;
  for (const int k : {0, 1, 3, 15}) {
    requests.push_back(greedy_request(40, k, 60, k, "random"));
  }
  const auto answers = run_requests(options_with("adaptive"), 1, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const int k = *requests[i].speculation.num_speculative_tokens;
    const SpeculationStats& stats = answers[i].completion->speculation;
    // Each step drafts K, but for the last ones, where fewer can be emitted.
    EXPECT_GE(stats.num_draft_tokens, k * (stats.num_decode_steps - k)) << k;
    EXPECT_LE(stats.num_draft_tokens, k * stats.num_decode_steps) << k;
  }
}

// What a seed draws depends on K: with the server's fixed one it repeats.
TEST(EngineLookahead, SeededSamplesRepeat) {
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(policy_request(i, i % 2 == 0 ? "model" : "random"));
    requests.back().sampling.temperature = 0.9f;
    requests.back().sampling.seed = i;
    requests.back().speculation.mode = VerifyMode::rejection;
  }
  const auto once = tokens_of(run_requests(options_with("adaptive"), 1, requests));
  EXPECT_EQ(tokens_of(run_requests(options_with("adaptive"), 1, requests)), once);
  EXPECT_EQ(tokens_of(run_requests(options_with("fixed:4"), 1, requests)), once);
}

TEST(EngineLookahead, AnObjectiveThatIsMissedIsAnsweredAllTheSame) {
  std::vector<Request> requests(3, policy_request(2, "prompt_lookup"));
  requests[1].speculation.tpot_slo_ms = 1e-6;
  requests[2].speculation.tpot_slo_ms = 1e6;
  const auto answers = run_requests(options_with("adaptive"), 1, requests);
  EXPECT_EQ(answers[1].token_ids, answers[0].token_ids);
  EXPECT_EQ(answers[2].token_ids, answers[0].token_ids);
  EXPECT_EQ(answers[0].completion->speculation.tpot_slo_ms, 0);
  EXPECT_FALSE(answers[0].completion->speculation.tpot_slo_missed);
  EXPECT_EQ(answers[1].completion->speculation.tpot_slo_ms, 1e-6);
  EXPECT_TRUE(answers[1].completion->speculation.tpot_slo_missed);
  EXPECT_FALSE(answers[2].completion->speculation.tpot_slo_missed);
  EngineOptions options = options_with("adaptive");
  options.tpot_slo_ms = 1e-6;
  EXPECT_TRUE(run_requests(options, 1, {requests[0]})[0].completion->speculation.tpot_slo_missed);
}

TEST(EngineLookahead, StepsAreCountedByWhatTheyDrafted) {
  const auto answers = run_requests(options_with("fixed:2"), 1, {policy_request(5, "model")});
  const SpeculationStats& stats = answers[0].completion->speculation;
  const auto& steps = stats.speedup.steps;
  EXPECT_GT(steps[2], 0);
  EXPECT_EQ(std::accumulate(steps.begin() + 3, steps.end(), int64_t{0}), 0);
  EXPECT_LE(std::accumulate(steps.begin(), steps.end(), int64_t{0}), stats.num_decode_steps);
  EXPECT_TRUE(stats.speedup.predicted(stats.alpha()));
  EXPECT_TRUE(stats.speedup.measured());
}

// Where the start measures nothing nobody is told of costs: not that there are none.
TEST(EngineLookahead, WhatWasNotMeasuredIsNotTold) {
  for (const int prefill_beside : {0, 16}) {
    EngineOptions options = options_with("fixed:2");
    options.prefill_beside = prefill_beside;
    const bool measured = prefill_beside == 0;
    EngineStats engine;
    const auto answers = run_requests(options, 1, {policy_request(5, "model")}, {}, &engine);
    const SpeculationStats& answer = answers[0].completion->speculation;
    EXPECT_GT(answer.num_draft_tokens, 0);
    EXPECT_EQ(answer.draft_cost().has_value(), measured);
    EXPECT_EQ(answer.speedup.measured().has_value(), measured);
    const DrafterReport& report = engine.drafters[static_cast<int>(DrafterKind::model)];
    EXPECT_GT(report.num_draft_tokens, 0);
    EXPECT_EQ(report.draft_cost.has_value(), measured);
    EXPECT_EQ(report.predicted_speedup.has_value(), measured);
    EXPECT_EQ(report.measured_speedup.has_value(), measured);
  }
}

// Records whatever it is asked to replay, from when it is told to.
class RecordingBackend final : public CpuBackend {
 public:
  RecordingBackend() : CpuBackend(cpu::select_isa()) {}
  bool replay(uint64_t, Stream&, bool, const std::function<void()>& enqueue) override {
    enqueue();
    return records;
  }
  bool records = false;
};

// Steps that take longer since they record something are compared with no others.
TEST(EngineLookahead, StepsThatRecordAreNotTimed) {
  for (const bool records : {false, true}) {
    RecordingBackend backend;
    const auto self = make_self_communicator();
    Executor executor(options_with("fixed:2"), backend, *self);
    backend.records = records;
    EngineStats engine;
    const auto answers =
        lead_requests(executor, nullptr, {policy_request(5, "model")}, {}, &engine);
    const SpeculationStats& answer = answers[0].completion->speculation;
    EXPECT_GT(answer.num_draft_tokens, 0);
    EXPECT_EQ(answer.speedup.measured().has_value(), !records);
    const DrafterReport& report = engine.drafters[static_cast<int>(DrafterKind::model)];
    EXPECT_EQ(report.num_draft_tokens, answer.num_draft_tokens);
    EXPECT_EQ(report.measured_speedup.has_value(), !records);
  }
}

}  // namespace
}  // namespace outrider
