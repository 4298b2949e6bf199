// Sampled tokens through the whole engine against the target's exact distribution: a request with
// speculation draws from the distribution of one without (Chen et al. 2023, Theorem 1), a coupled
// one too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/model_runner.h"
#include "testing/checkpoints.h"
#include "testing/count_file.h"
#include "testing/engine_harness.h"
#include "testing/g_test.h"
#include "testing/temporary_directory.h"

namespace outrider {
namespace {

constexpr int kVocab = 64;
constexpr int64_t kRequests = 5'000;         // of each arm
constexpr int64_t kManyRequests = 100'000;   // by which a bias of a hundredth is seen
constexpr int64_t kRequestsAtOnce = 10'000;  // of all arms
// A phrase that recurs, so that prompt_lookup drafts from the first step on.
const std::vector<int32_t> kPrompt = {9, 17, 33, 5, 9, 17, 33, 5, 9, 17};

// The definitions of bias, penalties and min_tokens behind kPrompt and `output`.
Logits edit(Logits logits, const SamplingParams& sampling, const std::vector<int32_t>& output,
            const std::vector<int32_t>& eos) {
  for (const auto& [token, bias] : sampling.logit_bias) logits[token] += bias;
  for (int32_t v = 0; v < kVocab; ++v) {
    const auto count = std::count(output.begin(), output.end(), v);
    if (count > 0 || std::count(kPrompt.begin(), kPrompt.end(), v) > 0) {
      logits[v] = logits[v] > 0 ? logits[v] / sampling.repetition_penalty
                                : logits[v] * sampling.repetition_penalty;
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

// The definition: temperature, then what is likely enough beside the best (min_p), then the top_k
// most likely, then the fewest of them that hold top_p.
std::vector<double> distribution(const Logits& logits, const SamplingParams& sampling) {
  std::vector<int> order(kVocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  const auto ratio = [&](int v) {
    return std::exp((double{logits[v]} - logits[order[0]]) / sampling.temperature);
  };
  while (ratio(order.back()) < sampling.min_p) order.pop_back();
  if (sampling.top_k > 0) order.resize(std::min<size_t>(order.size(), sampling.top_k));
  std::vector<double> weights;
  for (const int v : order) {
    weights.push_back(ratio(v));
  }
  const double needed = sampling.top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  std::vector<double> p(kVocab, 0.0);
  for (size_t i = 0; i < order.size() && (sampling.top_p == 1.0f || sum < needed); ++i) {
    sum += p[order[i]] = weights[i];
  }
  for (double& x : p) x /= sum;
  return p;
}

// Of the first three tokens behind kPrompt, in lexicographic order; from plain forward passes.
std::vector<double> exact_triples(const SamplingParams& sampling) {
  const auto self = make_self_communicator();
  ModelRunner target(test_checkpoint("tiny-v64"), *self);
  const auto length = static_cast<int32_t>(kPrompt.size());
  const auto after = [&](int32_t position, int32_t token, const std::vector<int32_t>& output) {
    return distribution(edit(target.forward({{0, position, token}})[0], sampling, output,
                             target.model().config().eos_token_ids),
                        sampling);
  };
  target.feed(0, {kPrompt.begin(), kPrompt.end() - 1}, length);
  std::vector<double> triples;
  const auto first = after(length - 1, kPrompt.back(), {});
  for (int a = 0; a < kVocab; ++a) {
    const auto second = after(length, a, {a});
    for (int b = 0; b < kVocab; ++b) {
      const auto third = after(length + 1, b, {a, b});
      for (int c = 0; c < kVocab; ++c) triples.push_back(first[a] * second[b] * third[c]);
    }
  }
  return triples;
}

// Sums over the tokens that `cell` does not tell apart; cell: of (a, b, c).
template <typename Number, typename Cell>
std::vector<Number> merge(const std::vector<Number>& triples, int num_cells, Cell cell) {
  std::vector<Number> merged(num_cells, 0);
  for (size_t i = 0; i < triples.size(); ++i) {
    const int index = static_cast<int>(i);
    merged[cell(index / kVocab / kVocab, index / kVocab % kVocab, index % kVocab)] += triples[i];
  }
  return merged;
}

struct Processing {
  const char* name;
  const char* draft;
  std::vector<std::string> arms;
  VerifyMode mode;
  float temperature;
  int32_t top_k;
  float top_p;
  float min_p = 0;
  bool edited = false;  // bias, penalties, min_tokens
  int ranks = 1;
  int64_t requests = kRequests;  // of each arm; OUTRIDER_SAMPLING_REQUESTS stands above it
};

int64_t requests_of_each_arm(const Processing& processing) {
  const char* const text = std::getenv("OUTRIDER_SAMPLING_REQUESTS");
  return text == nullptr ? processing.requests : std::stoll(text);
}

// What an arm's answers came to.
struct Drawn {
  std::vector<int64_t> triples = std::vector<int64_t>(kVocab * kVocab * kVocab);
  int64_t drafted = 0, accepted = 0;

  void add(const CollectedAnswer& answer) {
    const auto& ids = answer.token_ids;
    ++triples[(ids[0] * kVocab + ids[1]) * kVocab + ids[2]];
    drafted += answer.completion->speculation.num_draft_tokens;
    accepted += answer.completion->speculation.num_accepted_draft_tokens;
  }
};

class EngineSampling : public ::testing::TestWithParam<Processing> {};

TEST_P(EngineSampling, DrawsFromTheTargetsDistribution) {
  Request request;
  request.prompt = kPrompt;
  request.sampling.temperature = GetParam().temperature;
  request.sampling.top_k = GetParam().top_k;
  request.sampling.top_p = GetParam().top_p;
  request.sampling.min_p = GetParam().min_p;
  if (GetParam().edited) {
    request.sampling.logit_bias = {{9, 1.5f}, {5, -0.5f}, {40, 1.0f}};
    request.sampling.repetition_penalty = 1.4f;
    request.sampling.presence_penalty = 0.6f;
    request.sampling.frequency_penalty = -0.4f;
    request.sampling.min_tokens = 2;
    request.sampling.stop_token_ids = {9, 40};
  }
  request.sampling.max_tokens = 4;  // the first step may draft three
  request.sampling.ignore_eos = true;
  request.speculation.num_speculative_tokens = 3;
  request.speculation.mode = GetParam().mode;

  EngineOptions options;
  options.model = test_checkpoint("tiny-v64");
  options.draft = test_checkpoint(GetParam().draft);
  options.draft_head = test_checkpoint("tiny-v64-head");
  const TemporaryDirectory directory;
  directory.write("counts.safetensors", some_counts(kVocab));
  options.draft_counts = directory.path() / "counts.safetensors";
  options.max_positions = 64;

  const std::vector<std::string>& arms = GetParam().arms;
  const auto num_arms = static_cast<int64_t>(arms.size());
  const int64_t of_each_arm = requests_of_each_arm(GetParam());
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
      ASSERT_GE(answers[i].token_ids.size(), GetParam().edited ? 3u : 4u);
      drawn[static_cast<int64_t>(i) / now].add(answers[i]);
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
    const auto expect_cells = [&](int num_cells, auto cell, const char* what) {
      expect_distribution(merge(exact, num_cells, cell), merge(of_arm.triples, num_cells, cell),
                          what);
    };
    expect_cells(
        kVocab, [](int a, int, int) { return a; }, "first token");
    expect_cells(
        kVocab, [](int, int b, int) { return b; }, "second token");
    expect_cells(
        kVocab, [](int, int, int c) { return c; }, "third token");
    expect_cells(
        kVocab * kVocab, [](int a, int b, int) { return a * kVocab + b; },
        "second token behind the first");
    expect_cells(
        kVocab * kVocab, [](int, int b, int c) { return b * kVocab + c; },
        "third token behind the second");
    expect_distribution(exact, of_arm.triples, "the three tokens");

    // So many requests tell how often the likeliest token comes to a hundredth; a hundred times as
    // many, to a thousandth.
    const std::vector<double> first = merge(exact, kVocab, [](int a, int, int) { return a; });
    const auto likeliest = static_cast<int>(std::ranges::max_element(first) - first.begin());
    const auto is_likeliest = [likeliest](int a, int, int) { return a == likeliest ? 1 : 0; };
    expect_cells(2, is_likeliest, "the likeliest first token");
    if (of_each_arm < kManyRequests) continue;
    const double bias =
        0.01 * std::sqrt(static_cast<double>(kManyRequests) / static_cast<double>(of_each_arm));
    for (const double sign : {-1.0, 1.0}) {
      std::vector<double> biased = merge(exact, 2, is_likeliest);
      biased[0] += sign * bias;
      biased[1] -= sign * bias;
      EXPECT_FALSE(g_test(biased, merge(of_arm.triples, 2, is_likeliest)).fits());
    }
  }
}

// tiny-v64-draft is the target's first layer, so that a good part of what it drafts is accepted.
// tiny-v64-trimmed knows two thirds of the tokens.
const std::vector<std::string> kEveryArm = {"model",  "head",          "bigram", "unigram",
                                            "random", "prompt_lookup", "ngram",  "off"};
const std::vector<std::string> kCopied = {"model", "prompt_lookup"};
constexpr VerifyMode kRejection = VerifyMode::rejection, kCoupled = VerifyMode::coupled;
INSTANTIATE_TEST_SUITE_P(
    Processors, EngineSampling,
    ::testing::Values(
        Processing{"temperature_1", "tiny-v64-draft", kEveryArm, kRejection, 1.0f, 0, 1.0f},
        Processing{"top_k_and_top_p", "tiny-v64-draft", kEveryArm, kRejection, 0.8f, 20, 0.9f},
        Processing{"trimmed_draft", "tiny-v64-trimmed", {"model"}, kRejection, 1.0f, 0, 1.0f},
        Processing{"trimmed_draft_top_p", "tiny-v64-trimmed", {"model"}, kRejection, 0.8f, 0, 0.9f},
        Processing{"edited", "tiny-v64-draft", kEveryArm, kRejection, 1.2f, 0, 1.0f, 0, true},
        Processing{"trimmed_draft_edited_min_p",
                   "tiny-v64-trimmed",
                   {"model"},
                   kRejection,
                   1.4f,
                   40,
                   0.95f,
                   0.03f,
                   true},
        Processing{"coupled", "tiny-v64-draft", {"model", "head", "off"}, kCoupled, 1.0f, 0, 1.0f},
        Processing{"coupled_filtered", "tiny-v64-trimmed", kCopied, kCoupled, 0.8f, 20, 0.9f},
        Processing{"coupled_edited_min_p", "tiny-v64-trimmed", kCopied, kCoupled, 1.4f, 40, 0.95f,
                   0.03f, true},
        Processing{"two_ranks", "tiny-v64-draft", kEveryArm, kRejection, 1.0f, 0, 1.0f, 0, false,
                   2},
        Processing{"two_ranks_top_p", "tiny-v64-trimmed", kEveryArm, kRejection, 0.8f, 0, 0.9f, 0,
                   false, 2},
        Processing{"many",
                   "tiny-v64-draft",
                   {"model", "head"},
                   kRejection,
                   1.0f,
                   0,
                   1.0f,
                   0,
                   false,
                   1,
                   kManyRequests},
        Processing{"many_top_p",
                   "tiny-v64-trimmed",
                   {"model"},
                   kRejection,
                   0.8f,
                   0,
                   0.9f,
                   0,
                   false,
                   1,
                   kManyRequests}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace outrider
