// The first three tokens of an answer to one prompt on the checkpoint tiny-v64: how likely each
// triple of them is, by definition, and whether answers were drawn so.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "model/model_runner.h"
#include "testing/checkpoints.h"
#include "testing/g_test.h"

namespace outrider {

constexpr int kVocab = 64;
// By which a bias of a hundredth is seen: the likeliest first token comes with 0.32, so a hundredth
// is ten standard deviations, and a G-test at 1e-6 misses it less than once in a million times.
constexpr int64_t kManyAnswers = 220'000;
// A phrase that recurs, so that prompt_lookup drafts from the first step on.
const std::vector<int32_t> kPrompt = {9, 17, 33, 5, 9, 17, 33, 5, 9, 17};

// Answers to ask for: `usual`, or OUTRIDER_SAMPLING_REQUESTS where that is set.
inline int64_t answers_to_ask_for(int64_t usual) {
  const char* const text = std::getenv("OUTRIDER_SAMPLING_REQUESTS");
  return text == nullptr ? usual : std::stoll(text);
}

// `sampling` with bias, penalties and min_tokens.
inline SamplingParams edited(SamplingParams sampling) {
  sampling.logit_bias = {{9, 1.5f}, {5, -0.5f}, {40, 1.0f}};
  sampling.repetition_penalty = 1.4f;
  sampling.presence_penalty = 0.6f;
  sampling.frequency_penalty = -0.4f;
  sampling.min_tokens = 2;
  sampling.stop_token_ids = {9, 40};
  return sampling;
}

// The definitions of bias, penalties and min_tokens behind kPrompt and `output`.
inline Logits edit(Logits logits, const SamplingParams& sampling,
                   const std::vector<int32_t>& output, const std::vector<int32_t>& eos) {
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
inline std::vector<double> distribution(const Logits& logits, const SamplingParams& sampling) {
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
inline std::vector<double> exact_triples(const SamplingParams& sampling) {
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

// What answers came to.
struct Drawn {
  std::vector<int64_t> triples = std::vector<int64_t>(kVocab * kVocab * kVocab);
  int64_t drafted = 0, accepted = 0;

  void add(std::span<const int32_t> ids, int64_t num_drafted, int64_t num_accepted) {
    ++triples[(ids[0] * kVocab + ids[1]) * kVocab + ids[2]];
    drafted += num_drafted;
    accepted += num_accepted;
  }
};

// G-tests of cells of triples against `exact`, and of the likeliest cell against all others.
// Where there are many answers, the latter has to refuse an `exact` in which the likeliest cell has
// a hundredth more or less; where there are a hundred times as many, a thousandth.
template <typename Cell>
void expect_cells(const std::vector<double>& exact, const std::vector<int64_t>& triples,
                  int num_cells, Cell cell, const std::string& what) {
  const auto expected = merge(exact, num_cells, cell);
  expect_distribution(expected, merge(triples, num_cells, cell), what);

  const auto likeliest = static_cast<int>(std::ranges::max_element(expected) - expected.begin());
  const auto is_likeliest = [&](int a, int b, int c) { return cell(a, b, c) == likeliest ? 1 : 0; };
  const auto counts = merge(triples, 2, is_likeliest);
  const auto two = merge(exact, 2, is_likeliest);
  expect_distribution(two, counts, what + ", the likeliest");
  const int64_t answers = counts[0] + counts[1];
  if (answers < kManyAnswers) return;
  for (const double bias : {-0.01, 0.01}) {
    const double moved =
        bias * std::sqrt(static_cast<double>(kManyAnswers) / static_cast<double>(answers));
    EXPECT_FALSE(g_test({two[0] - moved, two[1] + moved}, counts).fits()) << what << ", " << moved;
  }
}

// First, second and third tokens, pairs of neighbours, and triples.
inline void expect_drawn_from(const std::vector<double>& exact,
                              const std::vector<int64_t>& triples) {
  const auto expect = [&](int num_cells, auto cell, const char* what) {
    expect_cells(exact, triples, num_cells, cell, what);
  };
  expect(
      kVocab, [](int a, int, int) { return a; }, "first token");
  expect(
      kVocab, [](int, int b, int) { return b; }, "second token");
  expect(
      kVocab, [](int, int, int c) { return c; }, "third token");
  expect(
      kVocab * kVocab, [](int a, int b, int) { return a * kVocab + b; }, "first and second token");
  expect(
      kVocab * kVocab, [](int, int b, int c) { return b * kVocab + c; }, "second and third token");
  expect_distribution(exact, triples, "the three tokens");
}

}  // namespace outrider
