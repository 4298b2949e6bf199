// Where an answer of the engine ends, and that nothing behind its end counts.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/utf8.h"
#include "testing/checkpoints.h"
#include "testing/edited_checkpoint.h"
#include "testing/engine_harness.h"

namespace outrider {
namespace {

// A draft equal to the target accepts all, so that with K = 8 a stop lies inside a block. K is cut
// to what an answer still lacks: its greatest length is a block's end.
TEST(Engine, EndsInsideAnAcceptedBlock) {
  const Int8Checkpoint model(test_checkpoint("tiny"));
  const EngineOptions options{.model = model.path(), .draft = model.path()};
  const auto whole = run_requests(options, 1, {greedy_request(20, 2, 40, 0, "model")})[0];
  ASSERT_EQ(whole.token_ids.size(), 40u);

  std::vector<Request> requests;
  for (const int k : {0, 1, 8}) {
    for (int max_tokens : {1, 2, 5, 9, 10}) {
      requests.push_back(greedy_request(20, 2, max_tokens, k, "model"));
    }
    Request stop_id = greedy_request(20, 2, 40, k, "model");
    stop_id.sampling.stop_token_ids = {whole.token_ids[6]};
    requests.push_back(stop_id);
  }
  const auto answers = run_requests(options, 1, requests);
  for (size_t i = 0; i < answers.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(answers[i].completion) << answers[i].status;
    const auto& ids = answers[i].token_ids;
    EXPECT_EQ(answers[i].completion->completion_tokens, static_cast<int64_t>(ids.size()));
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), whole.token_ids.begin()));
    const SpeculationStats& stats = answers[i].completion->speculation;
    EXPECT_LE(stats.num_accepted_draft_tokens, static_cast<int64_t>(ids.size()));
    EXPECT_LE(stats.num_accepted_draft_tokens, stats.num_draft_tokens);
    EXPECT_EQ(answers[i].text, answers[i % 6].text);  // the same request at K = 0
    EXPECT_EQ(ids, answers[i % 6].token_ids);
    if (i % 6 < 5) {
      EXPECT_EQ(answers[i].completion->finish_reason, FinishReason::length);
      EXPECT_EQ(static_cast<int>(ids.size()), *requests[i].sampling.max_tokens);
    } else {
      EXPECT_EQ(answers[i].completion->finish_reason, FinishReason::stop);
      EXPECT_EQ(ids.back(), whole.token_ids[6]);
    }
  }
}

// By the answer, and by the server. The draft is the target: all that it drafts is accepted.
TEST(Engine, CountsNoDraftsBehindAnEnd) {
  const Int8Checkpoint model(test_checkpoint("tiny"));
  const EngineOptions options{.model = model.path(), .draft = model.path()};
  for (const float temperature : {0.0f, 1.0f}) {
    for (const VerifyMode mode : {VerifyMode::coupled, VerifyMode::rejection}) {
      Request request = greedy_request(20, 2, 40, 8, "model");
      request.sampling.temperature = temperature;
      if (temperature > 0) request.speculation.mode = mode;
      if (temperature == 0 && mode == VerifyMode::rejection) request.speculation.lenience = 0.5f;
      request.sampling.seed = 4;
      const auto whole = run_requests(options, 1, {request})[0];
      ASSERT_EQ(whole.token_ids.size(), 40u);
      request.sampling.stop_token_ids = {whole.token_ids[4]};  // amid a block
      EngineStats stats;
      const auto answer = run_requests(options, 1, {request}, {}, &stats)[0];
      ASSERT_TRUE(answer.completion) << answer.status;
      const auto length = static_cast<int64_t>(answer.token_ids.size());
      ASSERT_EQ(answer.token_ids.back(), whole.token_ids[4]);
      ASSERT_LE(length, 5);
      const SpeculationStats& own = answer.completion->speculation;
      const DrafterReport& drafter = stats.drafters[static_cast<int>(DrafterKind::model)];
      EXPECT_EQ(own.num_draft_tokens, length);
      EXPECT_EQ(own.num_accepted_draft_tokens, length);
      EXPECT_EQ(own.mean_acceptance_length(), static_cast<double>(length));
      EXPECT_NEAR(own.alpha(), 1.0, 1e-6);  // the draft is the target
      EXPECT_EQ(own.alpha_rows, length);
      EXPECT_EQ(drafter.num_draft_tokens, length);
      EXPECT_EQ(drafter.num_accepted_draft_tokens, length);
      EXPECT_EQ(drafter.alpha, own.alpha());
    }
  }
}

// Nor behind a stop string, which the answer's text has, not its tokens.
TEST(Engine, CountsNoDraftsBehindAStopString) {
  const Int8Checkpoint model(test_checkpoint("tiny"));
  const EngineOptions options{.model = model.path(), .draft = model.path()};
  Request request = greedy_request(20, 2, 40, 8, "model");
  const auto whole = run_requests(options, 1, {request})[0];
  ASSERT_EQ(whole.token_ids.size(), 40u);
  ASSERT_GT(whole.text.size(), 20u);
  size_t begin = 5;
  while (begin + 3 < whole.text.size() && !is_valid_utf8(whole.text.substr(begin, 3))) ++begin;
  const std::string stop = whole.text.substr(begin, 3);
  request.sampling.stop = {stop};
  EngineStats stats;
  const auto answer = run_requests(options, 1, {request}, {}, &stats)[0];
  ASSERT_TRUE(answer.completion) << answer.status;
  const auto length = static_cast<int64_t>(answer.token_ids.size());
  ASSERT_LT(length, 40);
  ASSERT_NE(length % 9, 0);  // amid a block of nine
  EXPECT_EQ(answer.completion->finish_reason, FinishReason::stop);
  EXPECT_EQ(answer.text, whole.text.substr(0, whole.text.find(stop)));
  const SpeculationStats& own = answer.completion->speculation;
  const DrafterReport& drafter = stats.drafters[static_cast<int>(DrafterKind::model)];
  EXPECT_GT(own.num_draft_tokens, 0);
  EXPECT_EQ(drafter.num_draft_tokens, own.num_draft_tokens);
  EXPECT_EQ(drafter.num_accepted_draft_tokens, own.num_accepted_draft_tokens);
  EXPECT_EQ(drafter.num_accepted_draft_tokens, own.num_draft_tokens);  // the draft is the target
}

// The engine and what delivers agree on where a text ends: an answer that goes on behind any of its
// tokens, several answers at once, and a stop string that comes with the last token there may be.
TEST(Engine, StopsAtTheSameStringWhereverItWentOn) {
  EngineOptions options = tiny_options();
  Request request = greedy_request(20, 2, 40, 3, "prompt_lookup");
  const auto whole = run_requests(options, 1, {request})[0];
  size_t begin = whole.text.size() / 2;
  while (begin + 4 < whole.text.size() && !is_valid_utf8(whole.text.substr(begin, 4))) ++begin;
  request.sampling.stop = {whole.text.substr(begin, 4)};
  const auto stopped = run_requests(options, 1, {request})[0];
  ASSERT_EQ(stopped.completion->finish_reason, FinishReason::stop);
  const size_t length = stopped.token_ids.size();
  ASSERT_GT(length, 4u);
  std::vector<Request> requests;
  for (size_t have = 1; have < length; ++have) {
    requests.push_back(request);
    requests.back().emitted.assign(stopped.token_ids.begin(),
                                   stopped.token_ids.begin() + static_cast<int64_t>(have));
  }
  requests.push_back(request);
  requests.back().sampling.max_tokens = static_cast<int32_t>(length);
  const auto answers = run_requests(options, 1, requests);
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].completion) << answers[i].status;
    EXPECT_EQ(answers[i].completion->finish_reason, FinishReason::stop) << i;
    EXPECT_EQ(requests[i].emitted.size() + answers[i].token_ids.size(), length) << i;
  }
  request.sampling.n = 3;
  const auto several = run_requests(options, 1, {request})[0];
  ASSERT_TRUE(several.completion) << several.status;
}

// Every text that the answer holds, as a stop string: the answer ends before its first occurrence,
// wherever that lies among tokens and blocks.
TEST(Engine, StopsAtAStringInsideAnAcceptedBlock) {
  const Int8Checkpoint model(test_checkpoint("tiny"));
  const EngineOptions options{.model = model.path(), .draft = model.path()};
  const auto whole = run_requests(options, 1, {greedy_request(20, 2, 24, 0, "model")})[0];
  std::vector<Request> requests;
  std::vector<std::string> expected;
  for (size_t begin = 0; begin < whole.text.size(); ++begin) {
    const std::string stop = whole.text.substr(begin, 3);
    if (!is_valid_utf8(stop)) continue;
    for (const int k : {0, 3, 8}) {
      requests.push_back(greedy_request(20, 2, 24, k, "model"));
      requests.back().sampling.stop = {"no such text", stop};
      expected.push_back(whole.text.substr(0, whole.text.find(stop)));
    }
  }
  ASSERT_GE(requests.size(), 30u);
  const auto answers = run_requests(options, 1, requests);
  for (size_t i = 0; i < answers.size(); ++i) {
    SCOPED_TRACE(requests[i].sampling.stop[1]);
    ASSERT_TRUE(answers[i].completion) << answers[i].status;
    EXPECT_EQ(answers[i].completion->finish_reason, FinishReason::stop);
    EXPECT_EQ(answers[i].text, expected[i]);
    const auto& ids = answers[i].token_ids;
    EXPECT_EQ(answers[i].completion->completion_tokens, static_cast<int64_t>(ids.size()));
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), whole.token_ids.begin()));
    EXPECT_EQ(ids, answers[i / 3 * 3].token_ids);  // the same stop at K = 0
  }
}

}  // namespace
}  // namespace outrider
