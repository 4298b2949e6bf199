// Many requests at once, on tiny random models: an answer is the same whoever runs beside it,
// whether its pages were found, taken away or computed anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "testing/checkpoints.h"
#include "testing/engine_harness.h"

namespace outrider {
namespace {

EngineOptions options_with_head() {
  return {.model = test_checkpoint("tiny"),
          .draft = test_checkpoint("tiny-draft"),
          .draft_head = test_checkpoint("tiny-head"),
          .prefill_beside = 8};
}

// Every kind beside every other: drafters, exact K and the server's, greedy and sampled, prompts of
// one token and of several chunks, several of which begin alike.
std::vector<Request> mixed_requests(int count) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    const char* drafters[] = {"model", "prompt_lookup", "random"};
    const int lengths[] = {1, 17, 40, 130, 300};
    Request request =
        greedy_request(lengths[i % 5], i % 4, 10 + 7 * (i % 6), i % 5, drafters[i % 3]);
    // What a head drafts of a preempted sequence begins a step later, which a sample shows.
    if (i % 4 != 3 && i % 5 == 4) request.speculation.drafter = "head";
    if (i % 4 == 3) {
      request.sampling.temperature = 0.9f;
      request.sampling.top_p = i % 8 == 3 ? 0.8f : 1.0f;
      request.sampling.seed = i;
    }
    requests.push_back(request);
  }
  return requests;
}

std::vector<std::vector<int32_t>> tokens_of(const std::vector<CollectedAnswer>& answers) {
  std::vector<std::vector<int32_t>> tokens;
  for (const CollectedAnswer& answer : answers) {
    EXPECT_TRUE(answer.completion) << answer.status;
    tokens.push_back(answer.token_ids);
  }
  return tokens;
}

std::vector<std::vector<int32_t>> one_by_one(EngineOptions options, int ranks,
                                             const std::vector<Request>& requests) {
  options.max_sequences = 1;
  options.prefix_cache = false;
  return tokens_of(run_requests(options, ranks, requests));
}

TEST(Batching, AnAnswerDoesNotDependOnItsNeighbours) {
  const auto requests = mixed_requests(60);
  for (const int ranks : {1, 2, 3}) {
    const auto alone = one_by_one(options_with_head(), ranks, requests);
    EXPECT_EQ(tokens_of(run_requests(options_with_head(), ranks, requests)), alone) << ranks;
    EngineOptions narrow = options_with_head();
    narrow.max_sequences = 7;
    narrow.max_rows = 19;
    narrow.prefill_chunk = 5;
    narrow.prefill_beside = 2;
    EXPECT_EQ(tokens_of(run_requests(narrow, ranks, requests)), alone) << ranks;
  }
}

// Pages for about three of them: the others are preempted, and computed again.
TEST(Batching, APreemptedAnswerGoesOnAsIfNothingHadHappened) {
  std::vector<Request> requests = mixed_requests(30);
  EngineOptions options = options_with_head();
  options.max_positions = 400;
  options.kv_cache_tokens = 448;
  const auto alone = one_by_one(options, 2, requests);
  EngineStats stats;
  EXPECT_EQ(tokens_of(run_requests(options, 2, requests, {}, &stats)), alone);
  EXPECT_GT(stats.num_preemptions, 0);
  EXPECT_EQ(stats.kv_pages_used, 0);
  EXPECT_EQ(stats.num_requests_finished, 30);
}

TEST(Batching, APromptThatBeginsAlikeIsFound) {
  std::vector<Request> requests(3, greedy_request(100, 1, 20, 2, "model"));
  requests[1].prompt.resize(50);
  EngineOptions options = options_with_head();
  options.max_sequences = 1;  // one after the other
  const auto alone = one_by_one(options, 2, requests);
  const auto answers = run_requests(options, 2, requests);
  EXPECT_EQ(tokens_of(answers), alone);
  EXPECT_EQ(answers[0].completion->cached_tokens, 0);
  EXPECT_EQ(answers[1].completion->cached_tokens, 48);  // 3 pages of the first one's
  EXPECT_EQ(answers[2].completion->cached_tokens, 96);  // all whole pages before the last token
  // An answer's pages serve the prompt that quotes it.
  std::vector<Request> chat(2, requests[0]);
  chat[1].prompt.insert(chat[1].prompt.end(), alone[0].begin(), alone[0].end());
  EXPECT_EQ(run_requests(options, 2, chat)[1].completion->cached_tokens, 112);
}

TEST(Batching, ChoicesShareTheirPromptAndDrawByThemselves) {
  for (const bool cache : {true, false}) {
    Request request = greedy_request(100, 1, 20, 2, "model");
    request.sampling.n = 4;
    EngineOptions options = options_with_head();
    options.prefix_cache = cache;
    const auto greedy = run_requests(options, 2, {request})[0];
    const auto alone =
        one_by_one(options_with_head(), 2, {greedy_request(100, 1, 20, 2, "model")})[0];
    ASSERT_EQ(greedy.choices.size(), 4u);
    for (const auto& [index, tokens] : greedy.choices) EXPECT_EQ(tokens, alone);

    request.sampling.temperature = 1.0f;
    request.sampling.seed = 7;
    EngineStats stats;
    const auto sampled = run_requests(options, 2, {request}, {}, &stats)[0];
    std::set<std::vector<int32_t>> distinct;
    for (const auto& [index, tokens] : sampled.choices) distinct.insert(tokens);
    EXPECT_EQ(distinct.size(), 4u);
    EXPECT_EQ(run_requests(options, 2, {request})[0].choices, sampled.choices);
    if (cache) {
      EXPECT_EQ(stats.prefix_cache_hits, 3 * 96);
    }
    request.sampling.n = 1;  // choice 0 is what n = 1 gives
    EXPECT_EQ(run_requests(options, 2, {request})[0].token_ids, sampled.choices.at(0));
  }
}

TEST(Batching, AnInterruptedAnswerGoesOnBehindWhatWasDelivered) {
  Request whole = greedy_request(30, 3, 40, 3, "model");
  whole.sampling.prompt_logprobs = 0;
  const auto full = run_requests(options_with_head(), 2, {whole})[0];
  std::vector<Request> rest;
  for (int have = 1; have < 40; ++have) {
    rest.push_back(whole);
    rest.back().emitted.assign(full.token_ids.begin(), full.token_ids.begin() + have);
  }
  const auto answers = run_requests(options_with_head(), 2, rest);
  for (size_t i = 0; i < answers.size(); ++i) {
    std::vector<int32_t> joined = rest[i].emitted;
    joined.insert(joined.end(), answers[i].token_ids.begin(), answers[i].token_ids.end());
    EXPECT_EQ(joined, full.token_ids);
    ASSERT_TRUE(answers[i].completion);
    EXPECT_EQ(answers[i].completion->completion_tokens, 40);
    EXPECT_EQ(answers[i].completion->prompt_tokens, 30);
    EXPECT_LE(answers[i].completion->cached_tokens, 30);
    EXPECT_TRUE(answers[i].prompt_logprobs.empty());  // they had come before
  }
}

TEST(Batching, AnAnswerThatWasWholeAlreadyEndsAtOnce) {
  Request request = greedy_request(30, 3, 40, 0, "random");
  request.emitted = {9, 8};
  request.sampling.stop_token_ids = {8};
  const auto answer = run_requests(options_with_head(), 2, {request})[0];
  ASSERT_TRUE(answer.completion);
  EXPECT_EQ(answer.completion->finish_reason, FinishReason::stop);
  EXPECT_TRUE(answer.token_ids.empty());
}

// Two ways to the same numbers: the answer's log-probabilities as it is made, speculating, and
// those of the same tokens as a prompt. They are the same rows of logits, bit for bit; the
// logarithm is of a sum of shards either way.
TEST(Batching, LogprobsOfAnAnswerAreThoseOfThePromptThatQuotesIt) {
  for (const float temperature : {0.0f, 0.8f}) {
    Request request = greedy_request(50, 2, 30, 4, "model");
    request.sampling.temperature = temperature;
    request.sampling.top_k = 50;
    request.sampling.seed = 5;
    request.sampling.logprobs = 3;
    const auto answer = run_requests(options_with_head(), 2, {request})[0];
    ASSERT_EQ(answer.logprobs.size(), 30u);
    Request quote = request;
    quote.prompt.insert(quote.prompt.end(), answer.token_ids.begin(), answer.token_ids.end());
    quote.sampling.prompt_logprobs = 5;
    quote.sampling.logprobs.reset();
    const auto quoted = run_requests(options_with_head(), 2, {request, quote})[1];
    EXPECT_EQ(quoted.completion->cached_tokens, 0);
    ASSERT_EQ(quoted.prompt_logprobs.size(), quote.prompt.size() - 1);
    for (size_t i = 0; i < answer.logprobs.size(); ++i) {
      const TokenLogprobs& made = answer.logprobs[i];
      const TokenLogprobs& read = quoted.prompt_logprobs[request.prompt.size() - 1 + i];
      EXPECT_EQ(made.token.token, answer.token_ids[i]);
      EXPECT_EQ(made.token.token, read.token.token);
      EXPECT_EQ(made.token.logprob, read.token.logprob);
      ASSERT_EQ(made.top.size(), 3u);
      ASSERT_EQ(read.top.size(), 5u);
      for (int j = 0; j < 3; ++j) {
        EXPECT_EQ(made.top[j].token, read.top[j].token);
        EXPECT_EQ(made.top[j].logprob, read.top[j].logprob);
      }
      EXPECT_GE(made.top[0].logprob, made.top[1].logprob);
      EXPECT_LE(made.token.logprob, made.top[0].logprob);
      if (temperature == 0) {
        EXPECT_EQ(made.token.token, made.top[0].token);
      }
    }
    EXPECT_EQ(quoted.prompt_logprobs[0].token.token, quote.prompt[1]);
  }
}

TEST(Batching, PromptLogprobsAreToldOnceWhateverIsPreempted) {
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    requests.push_back(greedy_request(150, i, 150, 2, "model"));
    requests.back().sampling.prompt_logprobs = 0;
  }
  EngineOptions options = options_with_head();
  options.max_positions = 400;
  options.kv_cache_tokens = 448;
  EngineStats stats;
  const auto answers = run_requests(options, 2, requests, {}, &stats);
  EXPECT_GT(stats.num_preemptions, 0);
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_EQ(answers[i].prompt_logprobs.size(), 149u);
    for (size_t j = 0; j < 149; ++j) {
      EXPECT_EQ(answers[i].prompt_logprobs[j].token.token, requests[i].prompt[j + 1]);
    }
  }
}

// With one slot, who comes first shows in when the answer begins.
TEST(Batching, PriorityGoesFirst) {
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(greedy_request(20, i, 10, 0, "random"));
    requests.back().priority = i;
  }
  EngineOptions options = options_with_head();
  options.max_sequences = 1;
  const auto answers = run_requests(options, 1, requests);
  for (int i = 1; i < 4; ++i) {
    EXPECT_LT(answers[i].completion->timings.queue_ms, answers[i - 1].completion->timings.queue_ms);
  }
}

// 10 s a priority: 100 s of waiting are more than 9 of them and less than 11.
TEST(Batching, WaitingMakesUpForPriority) {
  const auto now = std::chrono::steady_clock::now();
  std::vector<Request> requests(3, greedy_request(20, 1, 10, 0, "random"));
  for (Request& request : requests) request.received = now;
  requests[0].priority = 9;
  requests[1].received = now - std::chrono::seconds(100);
  requests[2].priority = 11;
  EngineOptions options = options_with_head();
  options.max_sequences = 1;
  const auto answers = run_requests(options, 1, requests);
  // When the answer begins, behind `now`.
  const auto begin_ms = [&](int i) {
    const double received_ms =
        std::chrono::duration<double, std::milli>(requests[i].received - now).count();
    return received_ms + answers[i].completion.value().timings.queue_ms;
  };
  EXPECT_LT(begin_ms(2), begin_ms(1));
  EXPECT_LT(begin_ms(1), begin_ms(0));
}

}  // namespace
}  // namespace outrider
