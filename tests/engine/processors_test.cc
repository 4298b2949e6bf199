// Bias, penalties, min_tokens and min_p through the whole engine: greedy answers against a plain
// loop over the model, and the same answers whatever drafts, however far, beside whom, over how
// many ranks, and wherever an answer was interrupted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/model_runner.h"
#include "testing/checkpoints.h"
#include "testing/edited_checkpoint.h"
#include "testing/engine_harness.h"
#include "testing/every_drafter.h"

namespace outrider {
namespace {

constexpr int32_t kStop = 7;  // a token that ends answers

EngineOptions options_with_every_drafter() {
  return with_every_drafter(
      {.model = test_checkpoint("tiny"), .max_positions = 512, .prefill_beside = 8});
}

Request with_everything(int prompt_length, int seed, int max_tokens, int k,
                        const std::string& drafter) {
  Request request = greedy_request(prompt_length, seed, max_tokens, k, drafter);
  SamplingParams& sampling = request.sampling;
  sampling.logit_bias = {{100, 0.5f}, {102, -0.75f}, {kStop, 0.25f}, {300, -100.0f}};
  sampling.repetition_penalty = 1.15f;
  sampling.presence_penalty = 0.3f;
  sampling.frequency_penalty = 0.2f;
  sampling.min_tokens = max_tokens / 2;
  sampling.stop_token_ids = {kStop};
  return request;
}

// What the definitions make of a row.
std::vector<float> edited(const SamplingParams& sampling, std::vector<float> logits,
                          const std::vector<int32_t>& prompt, const std::vector<int32_t>& output,
                          const std::vector<int32_t>& eos) {
  for (const auto& [token, bias] : sampling.logit_bias) logits[token] += bias;
  for (size_t v = 0; v < logits.size(); ++v) {
    const auto token = static_cast<int32_t>(v);
    const auto count = std::count(output.begin(), output.end(), token);
    if (count > 0 || std::find(prompt.begin(), prompt.end(), token) != prompt.end()) {
      if (logits[v] > 0) {
        logits[v] /= sampling.repetition_penalty;
      } else {
        logits[v] *= sampling.repetition_penalty;
      }
    }
    logits[v] -= sampling.frequency_penalty * static_cast<float>(count);
    if (count > 0) logits[v] -= sampling.presence_penalty;
  }
  if (static_cast<int>(output.size()) < sampling.min_tokens) {
    for (const int32_t token : sampling.stop_token_ids) logits[token] = -INFINITY;
    for (const int32_t token : eos) logits[token] = -INFINITY;
  }
  return logits;
}

// choose: the next token, of the edited logits.
template <typename Choose>
std::vector<int32_t> answer_by(ModelRunner& model, const Request& request, const Choose& choose) {
  const std::vector<int32_t>& prompt = request.prompt;
  std::vector<int32_t> output;
  std::vector<float> logits = model.feed(0, prompt, 64).back();
  while (static_cast<int>(output.size()) < *request.sampling.max_tokens) {
    output.push_back(choose(
        edited(request.sampling, logits, prompt, output, model.model().config().eos_token_ids)));
    const auto& ends = request.sampling.stop_token_ids;
    if (std::find(ends.begin(), ends.end(), output.back()) != ends.end()) break;
    const auto position = static_cast<int32_t>(prompt.size() + output.size() - 1);
    logits = model.forward({{0, position, output.back()}})[0];
  }
  return output;
}

std::vector<int32_t> plain_answer(ModelRunner& model, const Request& request) {
  return answer_by(model, request, [](const std::vector<float>& logits) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  });
}

TEST(EngineProcessors, GreedyAnswersFollowTheDefinitions) {
  std::vector<Request> requests;
  for (int seed = 0; seed < 3; ++seed) {
    const Request all = with_everything(30, seed, 40, 4, "model");
    requests.push_back(all);
    const SamplingParams& everything = all.sampling;
    Request plain = greedy_request(30, seed, 40, 4, "model");
    for (int rule = 0; rule < 5; ++rule) {
      Request request = plain;
      SamplingParams& sampling = request.sampling;
      if (rule == 0) sampling.logit_bias = everything.logit_bias;
      if (rule == 1) sampling.repetition_penalty = 1.3f;
      if (rule == 2) sampling.presence_penalty = 0.8f;
      if (rule == 3) sampling.frequency_penalty = 0.4f;
      if (rule == 4) {
        sampling.logit_bias = {{kStop, 100.0f}};
        sampling.stop_token_ids = {kStop};
        sampling.min_tokens = 13;
      }
      requests.push_back(request);
    }
    requests.push_back(plain);
  }
  const auto self = make_self_communicator();
  ModelRunner model(options_with_every_drafter().model, *self);
  const auto answers = run_requests(options_with_every_drafter(), 1, requests);
  std::vector<int> changed(7, 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(answers[i].token_ids, plain_answer(model, requests[i])) << i;
    changed[i % 7] += answers[i].token_ids != answers[i - i % 7 + 6].token_ids ? 1 : 0;
  }
  for (int rule = 0; rule < 6; ++rule) EXPECT_GT(changed[rule], 0) << rule;  // it does something
}

// Greedy lenience looks at edited logits: what it keeps is near their largest, and never masked.
TEST(EngineProcessors, LenienceKeepsWhatComesNearTheEditedArgMax) {
  const auto self = make_self_communicator();
  ModelRunner model(options_with_every_drafter().model, *self);
  const float lenience = 0.4f;
  int lenient = 0;
  for (int seed = 0; seed < 4; ++seed) {
    Request request = with_everything(40, seed, 40, 4, "model");
    request.speculation.lenience = lenience;
    request.sampling.stop_token_ids.clear();  // it ends with a whole step
    const auto answer = run_requests(options_with_every_drafter(), 2, {request})[0];
    ASSERT_TRUE(answer.completion) << answer.status;
    size_t next = 0;
    int own_lenient = 0;
    answer_by(model, request, [&](const std::vector<float>& logits) {
      const float most = *std::max_element(logits.begin(), logits.end());
      const int32_t token = answer.token_ids.at(next);
      // A few roundings of edits to numbers below 16.
      EXPECT_GE(logits[token], most + std::log(lenience) - 1e-4f) << seed << " " << next;
      EXPECT_TRUE(logits[token] == most || answer.origins[next] == TokenOrigin::drafted);
      own_lenient += logits[token] < most ? 1 : 0;
      ++next;
      return token;
    });
    EXPECT_EQ(next, answer.token_ids.size());
    EXPECT_EQ(answer.completion->speculation.lenience_shift() > 0, own_lenient > 0);
    lenient += own_lenient;
  }
  EXPECT_GT(lenient, 0);
}

class EngineProcessorsBy : public testing::TestWithParam<VerifyMode> {};

// K = 0 … 8, each drafter, alone, in a crowd, and in a crowd that must share too few pages.
TEST_P(EngineProcessorsBy, OneAnswerWhateverIsDraftedBesideWhomever) {
  const auto edited_request = [](int k, const std::string& drafter) {
    Request request = with_everything(40, 1, 60, k, drafter);
    if (GetParam() == VerifyMode::greedy) return request;
    request.sampling.temperature = 0.7f;
    request.sampling.min_p = 0.02f;
    request.sampling.top_k = 60;
    request.sampling.top_p = 0.95f;
    request.sampling.seed = 6;
    return request;
  };
  std::vector<Request> requests;
  for (const char* drafter : kEveryDrafter) {
    for (int k = 0; k <= 8; ++k) {
      requests.push_back(edited_request(k, drafter));
      requests.push_back(greedy_request(60 + 10 * k, k, 40, k, drafter));  // who asks for nothing
    }
  }
  EngineOptions crowded = options_with_every_drafter();
  crowded.max_positions = 400;
  crowded.kv_cache_tokens = 448;
  for (const int ranks : {1, 2, 3}) {
    EngineOptions one = options_with_every_drafter();
    one.max_sequences = 1;
    const auto alone = run_requests(one, ranks, {edited_request(0, "random")})[0];
    EXPECT_GE(alone.token_ids.size(), 31u);  // min_tokens, and what ends it
    EngineStats stats;
    const auto beside = run_requests(options_with_every_drafter(), ranks, requests);
    const auto preempted = run_requests(crowded, ranks, requests, {}, &stats);
    EXPECT_GT(stats.num_preemptions, 0);
    int64_t accepted = 0;  // of edited drafts
    for (size_t i = 0; i < requests.size(); ++i) {
      if (i % 2 == 0) {
        EXPECT_EQ(beside[i].token_ids, alone.token_ids) << ranks << " ranks, request " << i;
        ASSERT_TRUE(beside[i].completion);
        accepted += beside[i].completion->speculation.num_accepted_draft_tokens;
      }
      EXPECT_EQ(preempted[i].token_ids, beside[i].token_ids) << ranks << " ranks, request " << i;
    }
    EXPECT_GT(accepted, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, EngineProcessorsBy,
                         testing::Values(VerifyMode::greedy, VerifyMode::coupled));

TEST(EngineProcessors, AnInterruptedAnswerCountsWhatWasDelivered) {
  const Request whole = with_everything(30, 3, 40, 3, "model");
  const auto full = run_requests(options_with_every_drafter(), 2, {whole})[0].token_ids;
  std::vector<Request> rest;
  for (size_t have = 1; have < full.size(); ++have) {
    rest.push_back(whole);
    rest.back().emitted.assign(full.begin(), full.begin() + have);
  }
  const auto answers = run_requests(options_with_every_drafter(), 2, rest);
  for (size_t i = 0; i < answers.size(); ++i) {
    std::vector<int32_t> joined = rest[i].emitted;
    joined.insert(joined.end(), answers[i].token_ids.begin(), answers[i].token_ids.end());
    EXPECT_EQ(joined, full) << i;
  }
}

TEST(EngineProcessors, EachChoiceCountsItsOwnOutput) {
  Request request = with_everything(30, 3, 40, 3, "model");
  const auto alone = run_requests(options_with_every_drafter(), 2, {request})[0].token_ids;
  request.sampling.n = 4;
  const auto answer = run_requests(options_with_every_drafter(), 2, {request})[0];
  ASSERT_EQ(answer.choices.size(), 4u);
  for (const auto& [index, tokens] : answer.choices) EXPECT_EQ(tokens, alone) << index;
}

// A token that everything speaks for comes as soon as min_tokens lets it, and not before.
TEST(EngineProcessors, MinTokensIsExact) {
  std::vector<Request> requests;
  for (const char* drafter : kEveryDrafter) {
    for (int k = 0; k <= 8; ++k) {
      Request request = greedy_request(20, 2, 30, k, drafter);
      request.prompt.insert(request.prompt.end(), {kStop, kStop, kStop, kStop, kStop, kStop});
      request.sampling.logit_bias = {{kStop, 100.0f}};
      request.sampling.stop_token_ids = {kStop};
      request.sampling.min_tokens = 11;
      requests.push_back(request);
    }
  }
  for (const auto& answer : run_requests(options_with_every_drafter(), 2, requests)) {
    ASSERT_EQ(answer.token_ids.size(), 12u);
    EXPECT_EQ(std::count(answer.token_ids.begin(), answer.token_ids.end(), kStop), 1);
    EXPECT_EQ(answer.token_ids.back(), kStop);
    EXPECT_EQ(answer.completion->finish_reason, FinishReason::stop);
  }
}

// At no temperature that a request may ask for.
TEST(EngineProcessors, WhatIsMaskedNeverComes) {
  Request request = greedy_request(20, 2, 30, 3, "random");
  request.sampling.n = 16;
  request.sampling.seed = 1;
  request.sampling.min_tokens = 30;
  for (int32_t token = 0; token < 64; ++token) request.sampling.stop_token_ids.push_back(8 * token);
  for (const float temperature : {1e-4f, 1.0f, 1e20f, 3e38f}) {
    request.sampling.temperature = temperature;
    const auto answer = run_requests(options_with_every_drafter(), 1, {request})[0];
    ASSERT_EQ(answer.token_ids.size(), 16u * 30);
    for (const int32_t token : answer.token_ids) EXPECT_NE(token % 8, 0) << temperature;
  }
}

// The same logits, edited alike and drawn from alike, whatever was drafted before them.
TEST(EngineProcessors, ADraftThatIsTheTargetIsAlwaysAccepted) {
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(with_everything(40, i, 40, 5, "model"));
    SamplingParams& sampling = requests.back().sampling;
    sampling.min_tokens = 40;
    if (i % 2 == 1) {
      sampling.temperature = 1.1f;
      sampling.seed = i;
      sampling.min_p = i == 3 ? 0.05f : 0.0f;
      sampling.top_p = i == 5 ? 0.9f : 1.0f;
    }
  }
  EngineOptions options = options_with_every_drafter();
  const Int8Checkpoint model(options.model);
  options.model = model.path();
  options.draft = model.path();
  for (const CollectedAnswer& answer : run_requests(options, 1, requests)) {
    ASSERT_TRUE(answer.completion);
    const SpeculationStats& stats = answer.completion->speculation;
    EXPECT_GT(stats.num_draft_tokens, 30);
    EXPECT_EQ(stats.num_accepted_draft_tokens, stats.num_draft_tokens);
  }
}

TEST(EngineProcessors, WhatIsMaskedIsNotProposed) {
  Request request = greedy_request(20, 2, 2, 4, "prompt_lookup");  // one token can be drafted
  request.prompt.insert(request.prompt.end(), 6, kStop);
  Request masked = request, banned = request;
  masked.sampling.stop_token_ids = {kStop};
  masked.sampling.min_tokens = 2;
  banned.sampling.logit_bias = {{kStop, -100.0f}};
  const auto answers = run_requests(options_with_every_drafter(), 1, {request, masked, banned});
  EXPECT_EQ(answers[0].completion->speculation.num_draft_tokens, 1);
  EXPECT_EQ(answers[1].completion->speculation.num_draft_tokens, 0);
  EXPECT_EQ(answers[2].completion->speculation.num_draft_tokens, 0);
}

void expect_same(const TokenLogprobs& made, const TokenLogprobs& read) {
  EXPECT_EQ(made.token.token, read.token.token);
  EXPECT_EQ(made.token.logprob, read.token.logprob);
  for (int j = 0; j < 3; ++j) {
    EXPECT_EQ(made.top[j].token, read.top[j].token);
    EXPECT_EQ(made.top[j].logprob, read.top[j].logprob);
  }
}

// They are the model's own, of drafted and of extra tokens alike, whoever drafts and however that
// is verified: those of a prompt that quotes the answer.
TEST(EngineProcessors, LogprobsAreTheModelsOwn) {
  for (const int ranks : {1, 3}) {
    for (const auto mode : {VerifyMode::greedy, VerifyMode::coupled, VerifyMode::rejection}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, mode " << static_cast<int>(mode));
      std::vector<Request> requests = {with_everything(50, 4, 30, 0, "random")};
      for (const std::string drafter : kEveryDrafter) {
        requests.push_back(with_everything(50, 4, 30, 4, drafter));
      }
      for (Request& request : requests) {
        // Colder, or this draft's guesses would hardly ever be accepted.
        const bool rejection = mode == VerifyMode::rejection;
        request.sampling.temperature = mode == VerifyMode::greedy ? 0.0f : rejection ? 0.1f : 0.8f;
        if (mode != VerifyMode::greedy) request.speculation.mode = mode;
        request.sampling.min_p = 0.02f;
        request.sampling.seed = 5;
        request.sampling.logprobs = 3;
      }
      const auto answers = run_requests(options_with_every_drafter(), ranks, requests);
      std::vector<Request> quotes;
      for (const auto& answer : answers) {
        Request& quote = quotes.emplace_back(greedy_request(50, 4, 1, 0, "random"));
        quote.prompt.insert(quote.prompt.end(), answer.token_ids.begin(), answer.token_ids.end());
        quote.sampling.prompt_logprobs = 3;
      }
      const auto quoted = run_requests(options_with_every_drafter(), ranks, quotes);
      int unlikely = 0;
      int64_t accepted = 0;
      for (size_t a = 0; a < answers.size(); ++a) {
        const auto& answer = answers[a];
        accepted += answer.completion->speculation.num_accepted_draft_tokens;
        SCOPED_TRACE(drafter_name(answer.completion->speculation.drafter));
        ASSERT_EQ(answer.logprobs.size(), answer.token_ids.size());
        for (size_t i = 0; i < answer.logprobs.size(); ++i) {
          EXPECT_EQ(answer.logprobs[i].token.token, answer.token_ids[i]);
          unlikely += answer.token_ids[i] != answer.logprobs[i].top[0].token ? 1 : 0;
          expect_same(answer.logprobs[i],
                      quoted[a].prompt_logprobs[requests[a].prompt.size() - 1 + i]);
        }
      }
      if (mode == VerifyMode::greedy) {
        EXPECT_GT(unlikely, 0);  // the edits decided
      }
      EXPECT_GT(accepted, 0);
    }
  }
}

// Nobody's answer changes because a neighbour's logits are edited, and the sampled ones are those
// that they are alone.
TEST(EngineProcessors, SampledAnswersDoNotDependOnTheirNeighbours) {
  std::vector<Request> requests;
  for (int i = 0; i < 24; ++i) {
    const char* drafters[] = {"model", "prompt_lookup", "random"};
    Request request = i % 3 == 0 ? greedy_request(40, i, 30, i % 5, drafters[i % 3])
                                 : with_everything(40, i, 30, i % 5, drafters[i % 3]);
    request.sampling.temperature = 0.9f;
    request.sampling.seed = i;
    request.sampling.min_p = i % 2 == 0 ? 0.1f : 0.0f;
    request.sampling.top_p = i % 4 == 0 ? 0.8f : 1.0f;
    if (i % 5 == 0) request.sampling.logprobs = 1;
    requests.push_back(request);
  }
  EngineOptions one = options_with_every_drafter();
  one.max_sequences = 1;
  one.prefix_cache = false;
  for (const int ranks : {1, 2}) {
    const auto alone = run_requests(one, ranks, requests);
    const auto beside = run_requests(options_with_every_drafter(), ranks, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_FALSE(alone[i].token_ids.empty());
      EXPECT_EQ(beside[i].token_ids, alone[i].token_ids) << i;
    }
  }
}

}  // namespace
}  // namespace outrider
