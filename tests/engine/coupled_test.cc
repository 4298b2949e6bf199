// Coupled answers, bit for bit: one distinct output for a prompt and seed within one number of
// ranks, whatever drafts, how much, beside whom, after a preemption, or continued.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "testing/checkpoints.h"
#include "testing/engine_harness.h"

namespace outrider {
namespace {

using Tokens = std::vector<int32_t>;

// tests/run -L long asks for a thousand.
int num_prompts() {
  const char* const wanted = std::getenv("OUTRIDER_COUPLED_PROMPTS");
  return wanted == nullptr ? 6 : std::atoi(wanted);
}

// "tiny" with a draft that knows nothing of it, or "tiny-v64" with its own first layer.
EngineOptions options_of(const std::string& model) {
  return {.model = test_checkpoint(model),
          .draft = test_checkpoint(model + "-draft"),
          .prefill_beside = 8};
}
EngineOptions tiny_options() { return options_of("tiny"); }

// Plain, by candidates, and with a nucleus that candidates seldom cover, so that rows are gathered.
Request seeded_request(int prompt) {
  const int lengths[] = {1, 17, 40, 130};
  Request request = greedy_request(lengths[prompt % 4], prompt, 12 + 5 * (prompt % 3), 0, "model");
  request.sampling.temperature = prompt % 2 == 0 ? 0.9f : 0.4f;
  request.sampling.top_k = prompt % 3 == 1 ? 20 : 0;
  request.sampling.top_p = prompt % 3 == 2 ? 0.9f : 1.0f;
  request.sampling.seed = 7 + prompt;
  return request;
}

// With K = 0 … 8 of every drafter, with the server's policy, and without any.
std::vector<Request> every_way(const Request& request) {
  std::vector<Request> ways;
  for (const char* drafter : {"model", "random", "prompt_lookup"}) {
    for (int k = 0; k <= 8; ++k) {
      ways.push_back(request);
      ways.back().speculation.num_speculative_tokens = k;
      ways.back().speculation.drafter = drafter;
    }
  }
  ways.push_back(request);
  ways.back().speculation.num_speculative_tokens.reset();
  ways.push_back(request);
  ways.back().speculation = {};
  ways.back().speculation.off = true;
  return ways;
}

struct Counts {
  int64_t drafted = 0, accepted = 0;
};

// The distinct outputs of answers [begin, end).
std::set<Tokens> distinct(const std::vector<CollectedAnswer>& answers, size_t begin, size_t end,
                          Counts* counts = nullptr) {
  std::set<Tokens> outputs;
  for (size_t i = begin; i < end; ++i) {
    EXPECT_TRUE(answers[i].completion) << answers[i].status;
    outputs.insert(answers[i].token_ids);
    if (!answers[i].completion || counts == nullptr) continue;
    counts->drafted += answers[i].completion->speculation.num_draft_tokens;
    counts->accepted += answers[i].completion->speculation.num_accepted_draft_tokens;
  }
  return outputs;
}

class Coupled : public testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }

  // One after the other, without drafts: what all the others must give.
  Tokens alone(Request request) const {
    request.speculation = {};
    request.speculation.off = true;
    return run_requests(tiny_options(), ranks(), {request})[0].token_ids;
  }
};

// Sixteen at a time, and one at a time.
TEST_P(Coupled, OneOutputForEveryDrafterKAndCompany) {
  for (const std::string model : {"tiny", "tiny-v64"}) {
    SCOPED_TRACE(model);
    if (model == "tiny-v64" && ranks() > 2) continue;  // it has two heads
    const int prompts = (num_prompts() + 1) / 2;
    std::vector<Request> requests;
    for (int i = 0; i < prompts; ++i) {
      Request request = seeded_request(i);
      if (model == "tiny-v64") {
        for (int32_t& token : request.prompt) token %= 64;
      }
      for (const Request& way : every_way(request)) requests.push_back(way);
    }
    const size_t ways = requests.size() / prompts;
    std::vector<std::set<Tokens>> outputs(prompts);
    Counts counts;
    for (const int together : {16, 1}) {
      EngineOptions options = options_of(model);
      options.max_sequences = together;
      options.prefix_cache = together > 1;
      const auto answers = run_requests(options, ranks(), requests);
      for (int i = 0; i < prompts; ++i) {
        outputs[i].merge(distinct(answers, i * ways, (i + 1) * ways, &counts));
      }
    }
    std::set<Tokens> different;
    for (int i = 0; i < prompts; ++i) {
      EXPECT_EQ(outputs[i].size(), 1u) << "prompt " << i;
      different.insert(outputs[i].begin(), outputs[i].end());
    }
    EXPECT_EQ(different.size(), static_cast<size_t>(prompts));
    EXPECT_GT(counts.accepted, model == "tiny" ? 0 : counts.drafted / 20);
    EXPECT_LT(counts.accepted, counts.drafted);
  }
}

// Pages for about three of them: the others are preempted, and computed again.
TEST_P(Coupled, OneOutputAfterPreemption) {
  Request request = seeded_request(2);
  request.sampling.max_tokens = 120;
  const Tokens expected = alone(request);
  EngineOptions options = tiny_options();
  options.max_positions = 400;
  options.kv_cache_tokens = 448;
  options.prefix_cache = false;
  EngineStats stats;
  const auto requests = every_way(request);
  const auto answers = run_requests(options, ranks(), requests, {}, &stats);
  EXPECT_GT(stats.num_preemptions, 0);
  EXPECT_EQ(distinct(answers, 0, answers.size()), std::set<Tokens>{expected});
}

TEST_P(Coupled, ContinuedBehindWhatWasEmitted) {
  const Request request = seeded_request(2);
  const Tokens whole = alone(request);
  std::vector<Request> rest;
  for (size_t have = 1; have < whole.size(); ++have) {
    rest.push_back(request);
    rest.back().emitted.assign(whole.begin(), whole.begin() + static_cast<int64_t>(have));
    rest.back().speculation.num_speculative_tokens = static_cast<int32_t>(have % 9);
  }
  const auto answers = run_requests(tiny_options(), ranks(), rest);
  for (size_t i = 0; i < rest.size(); ++i) {
    Tokens joined = rest[i].emitted;
    joined.insert(joined.end(), answers[i].token_ids.begin(), answers[i].token_ids.end());
    EXPECT_EQ(joined, whole);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Coupled, testing::Values(1, 2, 3));

// The default with a seed, and with none to draft; rejection by name stays.
TEST(CoupledMode, IsWhatASeedAsksFor) {
  Request request = seeded_request(0);
  request.speculation.num_speculative_tokens = 3;
  EXPECT_EQ(verify_mode(request), VerifyMode::coupled);
  request.speculation.mode = VerifyMode::rejection;
  EXPECT_EQ(verify_mode(request), VerifyMode::rejection);
  request.sampling.seed.reset();
  request.speculation.mode.reset();
  EXPECT_EQ(verify_mode(request), VerifyMode::rejection);
  request.speculation.mode = VerifyMode::coupled;
  EXPECT_EQ(verify_mode(request), VerifyMode::coupled);
  request.speculation = {};
  request.speculation.off = true;
  EXPECT_EQ(verify_mode(request), VerifyMode::coupled);
  request.sampling.temperature = 0;
  EXPECT_EQ(verify_mode(request), VerifyMode::greedy);

  std::vector<Request> requests(3, seeded_request(0));
  requests[0].speculation.num_speculative_tokens = 2;
  requests[1].speculation.num_speculative_tokens = 2;
  requests[1].speculation.mode = VerifyMode::rejection;
  requests[2].speculation.off = true;
  const auto answers = run_requests(tiny_options(), 1, requests);
  EXPECT_EQ(answers[0].completion->mode, SpeculationMode::coupled);
  EXPECT_EQ(answers[1].completion->mode, SpeculationMode::rejection);
  EXPECT_EQ(answers[2].completion->mode, SpeculationMode::off);
  EXPECT_EQ(answers[0].token_ids, answers[2].token_ids);
  // alpha is the accepted ones' share of what was accepted or refused.
  const SpeculationStats& stats = answers[0].completion->speculation;
  EXPECT_EQ(stats.alpha_sum, static_cast<double>(stats.num_accepted_draft_tokens));
  EXPECT_EQ(stats.lenience_shift(), 0.0);
}

// A seed that the server drew gives the answer again.
TEST(CoupledMode, RepeatsWithTheSeedThatWasReturned) {
  Request request = seeded_request(1);
  request.sampling.seed.reset();
  request.speculation.mode = VerifyMode::coupled;
  request.speculation.num_speculative_tokens = 4;
  const auto first = run_requests(tiny_options(), 1, {request})[0];
  request.sampling.seed = first.completion->seed;
  request.speculation = {};
  request.speculation.num_speculative_tokens = 1;
  EXPECT_EQ(run_requests(tiny_options(), 1, {request})[0].token_ids, first.token_ids);
}

// Choices draw by themselves, each the same for every K.
TEST(CoupledMode, ChoicesHaveNoiseOfTheirOwn) {
  Request request = seeded_request(0);
  request.sampling.n = 4;
  std::vector<Request> requests(2, request);
  requests[1].speculation.num_speculative_tokens = 5;
  const auto answers = run_requests(tiny_options(), 2, requests);
  EXPECT_EQ(answers[0].choices, answers[1].choices);
  std::set<Tokens> outputs;
  for (const auto& [index, tokens] : answers[0].choices) outputs.insert(tokens);
  EXPECT_EQ(outputs.size(), 4u);
}

}  // namespace
}  // namespace outrider
