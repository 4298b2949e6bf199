// Coupled answers, bit for bit: one distinct output for a prompt and seed within one number of
// ranks, whatever drafts, how much, beside whom, after a preemption, or continued.
#include <absl/strings/str_replace.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "testing/checkpoints.h"
#include "testing/engine_harness.h"
#include "testing/every_drafter.h"

namespace outrider {
namespace {

using Tokens = std::vector<int32_t>;

// Small models, or one that tests/run -L long names with what drafts for it.
std::vector<std::string> models() {
  const char* const named = std::getenv("OUTRIDER_COUPLED_MODEL");
  return named == nullptr ? std::vector<std::string>{"tiny", "tiny-v64"}
                          : std::vector<std::string>{named};
}

// Of each model. tests/run -L long asks for a thousand.
int num_all_prompts() {
  const char* const wanted = std::getenv("OUTRIDER_COUPLED_PROMPTS");
  return wanted == nullptr ? 4 : std::atoi(wanted);
}

// Some of them, which are asked together: an engine looks through all that wait before each step.
struct Prompts {
  int first, end;

  int size() const { return end - first; }
};

// With every drafter: "tiny" with a draft that knows nothing of it, or "tiny-v64" with its own
// first layer.
EngineOptions options_of(const std::string& model) {
  EngineOptions options;
  if (model.starts_with("tiny")) {
    options.model = test_checkpoint(model);
    options = with_every_drafter(options);
  } else {
    options.model = model;
    options.draft = std::getenv("OUTRIDER_COUPLED_DRAFT");
    options.draft_head = std::getenv("OUTRIDER_COUPLED_HEAD");
    options.draft_counts = std::getenv("OUTRIDER_COUPLED_COUNTS");
  }
  options.prefill_beside = 8;
  return options;
}

// Pages for about three of what these tests ask for: the others are preempted, and computed again.
EngineOptions scarce_options_of(const std::string& model) {
  EngineOptions options = options_of(model);
  options.max_positions = 400;
  options.kv_cache_tokens = 448;
  options.prefix_cache = false;
  return options;
}

// Tokens, or text for a model that was trained.
std::vector<int32_t> prompt_of(int prompt, const Request& request) {
  if (models().front().starts_with("tiny")) return request.prompt;
  static const Tokenizer tokenizer = Tokenizer::load(models().front());
  const std::string texts[] = {"Write a short poem about the number %d.",
                               "def multiply_by_%d(x):\n    \"\"\"",
                               "In the year 18%d a railway was built between the two towns, and in "
                               "the year 18%d, which few remember, the",
                               "%d, 2, 3, 4, 5, 6, 7, %d, 2, 3, 4, 5, 6, 7, %d, 2, 3, 4, 5,"};
  return tokenizer.encode(
      absl::StrReplaceAll(texts[prompt % 4], {{"%d", std::to_string(10 + prompt)}}));
}

// Plain, by candidates, and with a nucleus that candidates seldom cover, so that rows are gathered;
// some with edited logits.
Request seeded_request(const std::string& model, int prompt) {
  const int lengths[] = {1, 17, 40, 130};
  const int num_tokens = prompt % 8 == 5 ? 64 : 12 + 5 * (prompt % 3);
  Request request = greedy_request(lengths[prompt % 4], prompt, num_tokens, 0, "model");
  request.prompt = prompt_of(prompt, request);
  if (model == "tiny-v64") {
    for (int32_t& token : request.prompt) token %= 64;
  }
  request.sampling.temperature = prompt % 2 == 0 ? 0.9f : 0.4f;
  request.sampling.top_k = prompt % 3 == 1 ? 20 : 0;
  request.sampling.top_p = prompt % 3 == 2 ? 0.9f : 1.0f;
  request.sampling.seed = 7 + prompt;
  if (prompt % 5 == 3) {
    request.sampling.min_p = 0.02f;
    request.sampling.logit_bias = {{11, 1.0f}, {13, -100.0f}};
    request.sampling.repetition_penalty = 1.1f;
    request.sampling.presence_penalty = 0.2f;
    request.sampling.frequency_penalty = 0.1f;
    request.sampling.min_tokens = 6;
  }
  return request;
}

Request with(Request request, const std::string& drafter, int k) {
  request.speculation.num_speculative_tokens = k;
  request.speculation.num_alternatives = k == 0 ? 0 : k * 3 % (kMaxAlternatives + 1);
  request.speculation.drafter = drafter;
  return request;
}

// With every drafter and K = 0 … 8 (with three of them fewer K, but in the long form), with the
// server's K, with its drafter too, and without any.
std::vector<Request> every_way(const Request& request) {
  std::vector<Request> ways;
  for (const std::string drafter : kEveryDrafter) {
    const int step = drafter.ends_with("gram") && num_all_prompts() < 20 ? 4 : 1;
    for (int k = 0; k <= 8; k += step) ways.push_back(with(request, drafter, k));
  }
  ways.push_back(request);
  ways.back().speculation.num_speculative_tokens.reset();
  ways.push_back(request);
  ways.back().speculation = {};
  ways.push_back(ways.back());
  ways.back().speculation.off = true;
  return ways;
}

struct Counts {
  int64_t drafted = 0, accepted = 0, alternatives = 0;  // the last accepted
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
    counts->alternatives += answers[i].completion->speculation.num_accepted_alternatives;
  }
  return outputs;
}

class Coupled : public testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }

  // Those that so many ranks can share.
  std::vector<std::string> shared_models() const {
    std::vector<std::string> shared = models();
    if (ranks() > 2) std::erase(shared, "tiny-v64");  // it has two heads
    return shared;
  }

  // Calls test(model, prompts) until it was all of them.
  template <typename Test>
  void for_each_group(const Test& test) const {
    constexpr int kTogether = 20;
    for (const std::string& model : shared_models()) {
      for (int first = 0; first < num_all_prompts(); first += kTogether) {
        const Prompts prompts{first, std::min(first + kTogether, num_all_prompts())};
        SCOPED_TRACE(model + ", prompts from " + std::to_string(first) + " on");
        test(model, prompts);
      }
    }
  }

  // One after the other, without drafts: what all the others must give. Of so many requests that
  // are alike but for their drafts, one answer.
  std::vector<Tokens> alone(const std::string& model, const std::vector<Request>& requests,
                            size_t alike = kEveryDrafter.size()) const {
    std::vector<Request> plain;
    for (size_t i = 0; i < requests.size(); i += alike) {
      plain.push_back(requests[i]);
      plain.back().speculation = {};
      plain.back().speculation.off = true;
    }
    EngineOptions options = options_of(model);
    options.max_sequences = 1;
    std::vector<Tokens> tokens;
    for (const auto& answer : run_requests(options, ranks(), plain)) {
      tokens.push_back(answer.token_ids);
    }
    return tokens;
  }
};

// That drafts were taken where the model has any worth taking, and that not all were.
void expect_some_accepted(const std::string& model, const Counts& counts) {
  EXPECT_GT(counts.accepted, model == "tiny" ? 0 : counts.drafted / 40);
  EXPECT_LT(counts.accepted, counts.drafted);
  EXPECT_GT(counts.alternatives, model == "tiny" ? 0 : counts.accepted / 20);
}

// Beside sixteen others, of other prompts most of them, and alone.
TEST_P(Coupled, OneOutputForEveryDrafterKAndCompany) {
  for_each_group([&](const std::string& model, const Prompts& asked) {
    std::vector<std::vector<Request>> ways;  // [prompts]
    for (int i = asked.first; i < asked.end; ++i) {
      ways.push_back(every_way(seeded_request(model, i)));
    }
    std::vector<Request> requests;
    std::vector<int> prompts;  // [requests]
    for (size_t way = 0; way < ways.front().size(); ++way) {
      for (int i = 0; i < asked.size(); ++i) {
        requests.push_back(ways[i][way]);
        prompts.push_back(i);
      }
    }
    std::vector<std::set<Tokens>> outputs(asked.size());
    Counts counts;
    for (const int together : {17, 1}) {
      EngineOptions options = options_of(model);
      options.max_sequences = together;
      options.prefix_cache = together > 1;
      options.prefill_chunk = together > 1 ? 7 : 64;
      const auto answers = run_requests(options, ranks(), requests);
      for (size_t i = 0; i < answers.size(); ++i) {
        outputs[prompts[i]].merge(distinct(answers, i, i + 1, &counts));
      }
    }
    std::set<Tokens> different;
    for (int i = 0; i < asked.size(); ++i) {
      EXPECT_EQ(outputs[i].size(), 1u) << "prompt " << asked.first + i;
      different.insert(outputs[i].begin(), outputs[i].end());
    }
    // Short answers may be alike by chance.
    EXPECT_GE(static_cast<int>(different.size()), asked.size() - asked.size() / 20);
    expect_some_accepted(model, counts);
  });
}

TEST_P(Coupled, OneOutputAfterPreemption) {
  for_each_group([&](const std::string& model, const Prompts& asked) {
    const EngineOptions options = scarce_options_of(model);
    std::vector<Request> requests;
    for (int prompt = asked.first; prompt < asked.end; ++prompt) {
      Request request = seeded_request(model, prompt);
      request.sampling.max_tokens = 120;
      for (size_t d = 0; d < kEveryDrafter.size(); ++d) {
        requests.push_back(with(request, kEveryDrafter[d], (prompt + static_cast<int>(d)) % 9));
      }
    }
    const std::vector<Tokens> expected = alone(model, requests);
    EngineStats stats;
    const auto answers = run_requests(options, ranks(), requests, {}, &stats);
    EXPECT_GT(stats.num_preemptions, asked.size() / 2);
    Counts counts;
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(distinct(answers, i, i + 1, &counts), std::set{expected[i / kEveryDrafter.size()]})
          << i;
    }
    expect_some_accepted(model, counts);
  });
}

// The server's K and drafter: by the adaptive policy a draft head and copies in turns, by a table
// the head alone. With as few rows, a preempted sequence may be asked for drafts before the head
// can go on from it.
TEST_P(Coupled, OneOutputAfterPreemptionWithTheServersDrafts) {
  constexpr size_t kAlike = 3;
  for_each_group([&](const std::string& model, const Prompts& asked) {
    EngineOptions options = scarce_options_of(model);
    options.max_rows = 18;
    options.prefill_beside = 18;
    std::vector<Request> requests;
    for (int prompt = asked.first; prompt < asked.end; ++prompt) {
      Request request = seeded_request(model, prompt);
      request.sampling.max_tokens = 120;
      request.speculation = {};
      requests.insert(requests.end(), kAlike, request);
    }
    const std::vector<Tokens> expected = alone(model, requests, kAlike);
    for (const std::string lookahead : {"adaptive", "table:1=4,3=2"}) {
      SCOPED_TRACE(lookahead);
      options.lookahead = *parse_lookahead(lookahead);
      EngineStats stats;
      const auto answers = run_requests(options, ranks(), requests, {}, &stats);
      EXPECT_GT(stats.num_preemptions, asked.size() / 2);
      for (size_t i = 0; i < answers.size(); ++i) {
        EXPECT_EQ(distinct(answers, i, i + 1), std::set{expected[i / kAlike]}) << i;
      }
      const auto drafted = [&](DrafterKind kind) {
        return stats.drafters[static_cast<int>(kind)].num_draft_tokens;
      };
      EXPECT_GT(drafted(DrafterKind::head), 0);
      if (lookahead == "adaptive") {
        EXPECT_GT(drafted(DrafterKind::prompt_lookup), 0);
      }
    }
  });
}

TEST_P(Coupled, ContinuedBehindWhatWasEmitted) {
  for_each_group([&](const std::string& model, const Prompts& asked) {
    std::vector<Request> requests;
    for (int prompt = asked.first; prompt < asked.end; ++prompt) {
      for (const char* drafter : kEveryDrafter)
        requests.push_back(with(seeded_request(model, prompt), drafter, 0));
    }
    const std::vector<Tokens> wholes = alone(model, requests);
    std::vector<Request> rest;
    std::vector<size_t> of;  // the answer that each is the rest of
    for (size_t i = 0; i < requests.size(); ++i) {
      const Tokens& whole = wholes[i / kEveryDrafter.size()];
      // Everywhere in the first ones, at one place each in the others.
      const size_t step = i < kEveryDrafter.size() ? 1 : whole.size();
      const size_t first = i < kEveryDrafter.size() ? 1 : 1 + i % (whole.size() - 1);
      for (size_t have = first; have < whole.size(); have += step) {
        rest.push_back(requests[i]);
        rest.back().emitted.assign(whole.begin(), whole.begin() + static_cast<int64_t>(have));
        rest.back().speculation.num_speculative_tokens = static_cast<int32_t>((i + have) % 9);
        rest.back().speculation.num_alternatives = static_cast<int32_t>(have % 7);
        of.push_back(i / kEveryDrafter.size());
      }
    }
    const auto answers = run_requests(options_of(model), ranks(), rest);
    Counts counts;
    for (size_t i = 0; i < rest.size(); ++i) {
      EXPECT_EQ(distinct(answers, i, i + 1, &counts).size(), 1u);
      Tokens joined = rest[i].emitted;
      joined.insert(joined.end(), answers[i].token_ids.begin(), answers[i].token_ids.end());
      EXPECT_EQ(joined, wholes[of[i]]);
    }
    expect_some_accepted(model, counts);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Coupled, testing::Values(1, 2, 3));

// The default with a seed, and with none to draft; rejection by name stays.
TEST(CoupledMode, IsWhatASeedAsksFor) {
  Request request = seeded_request(models().front(), 0);
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
  request.sampling.temperature = 1e-5f;
  EXPECT_EQ(verify_mode(request), VerifyMode::coupled);
  for (const float temperature : {9.9e-6f, 0.0f}) {
    request.sampling.temperature = temperature;
    EXPECT_EQ(verify_mode(request), VerifyMode::greedy);
  }

  std::vector<Request> requests(3, seeded_request(models().front(), 0));
  requests[0].speculation.num_speculative_tokens = 2;
  requests[1].speculation.num_speculative_tokens = 2;
  requests[1].speculation.mode = VerifyMode::rejection;
  requests[2].speculation.off = true;
  const auto answers = run_requests(options_of("tiny"), 1, requests);
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
  Request request = seeded_request(models().front(), 1);
  request.sampling.seed.reset();
  request.speculation.mode = VerifyMode::coupled;
  request.speculation.num_speculative_tokens = 4;
  const auto first = run_requests(options_of("tiny"), 1, {request})[0];
  request.sampling.seed = first.completion->seed;
  request.speculation = {};
  request.speculation.num_speculative_tokens = 1;
  EXPECT_EQ(run_requests(options_of("tiny"), 1, {request})[0].token_ids, first.token_ids);
}

// Choices draw by themselves, each the same for every K.
TEST(CoupledMode, ChoicesHaveNoiseOfTheirOwn) {
  Request request = seeded_request(models().front(), 0);
  request.sampling.n = 4;
  std::vector<Request> requests(2, request);
  requests[1].speculation.num_speculative_tokens = 5;
  const auto answers = run_requests(options_of("tiny"), 2, requests);
  EXPECT_EQ(answers[0].choices, answers[1].choices);
  std::set<Tokens> outputs;
  for (const auto& [index, tokens] : answers[0].choices) outputs.insert(tokens);
  EXPECT_EQ(outputs.size(), 4u);
}

}  // namespace
}  // namespace outrider
