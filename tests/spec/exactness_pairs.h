// Targets and drafts for exactness.h: random pairs of every kind, with every rule.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "kernels/logit_table.h"
#include "kernels/verify_types.h"

namespace outrider::exactness {

// A request's options and the sequence before the step, as a client knows them.
struct Rules {
  std::map<int32_t, float> bias;
  float repetition = 1, frequency = 0, presence = 0;
  int min_tokens = 0;
  std::vector<int32_t> ends, prompt, output;
};

// A target and a draft: a row of logits after each sequence of fewer than K + 1 (or K) tokens.
struct Pair {
  int vocab = 0, num_drafted = 0;
  bool one_hot = false;  // a copy drafter, which proposes the draft row's arg max
  Processors processors;
  std::vector<std::vector<float>> target, draft;  // [prefixes][vocab]; see prefix_index
  Rules rules;
};

// Prefixes in order of length, then lexicographically.
inline int prefix_index(const int32_t* tokens, int length, int vocab) {
  int index = 0;
  for (int i = 0; i < length; ++i) index = index * vocab + tokens[i] + 1;
  return index;
}

inline int num_prefixes(int max_length, int vocab) {
  int count = 1;
  for (int i = 0; i < max_length; ++i) count = count * vocab + 1;
  return count;
}

// Random pairs of every kind: `rounds` of each, for each of the processors and sizes.
inline std::vector<Pair> random_pairs(int rounds, uint32_t seed) {
  constexpr float kAbsent = -100.0f;  // e^-100 is nothing, at every temperature below
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.5f);
  const auto row = [&](int vocab) {
    std::vector<float> logits(vocab);
    for (float& x : logits) x = normal(random);
    return logits;
  };
  const auto processors = [](float temperature, int32_t top_k, float top_p) {
    return Processors{VerifyMode::rejection, temperature, top_k, top_p};
  };
  const Processors variants[] = {{},
                                 processors(1.0f, 0, 1.0f),
                                 processors(0.6f, 0, 1.0f),
                                 processors(1.7f, 0, 1.0f),
                                 processors(1.0f, 2, 1.0f),
                                 processors(1.0f, 0, 0.7f),
                                 processors(0.8f, 3, 0.9f)};
  constexpr int kSizes[][2] = {{3, 0}, {3, 1}, {4, 1}, {6, 1}, {3, 2}, {4, 2}, {5, 2}, {3, 3}};
  std::vector<Pair> pairs;
  for (int round = 0; round < rounds; ++round) {
    for (const auto& [vocab, num_drafted] : kSizes) {
      for (const Processors& variant : variants) {
        for (int kind = 0; kind < 8; ++kind) {
          Pair pair{vocab, num_drafted, kind == 6, variant, {}, {}, {}};
          for (int i = 0; i < num_prefixes(num_drafted, vocab); ++i) {
            std::vector<float> p = row(vocab), q = row(vocab);
            const int present = static_cast<int>(random() % vocab);
            for (int v = 0; v < vocab; ++v) {
              if (kind == 1 && v != present && random() % 2 == 0) p[v] = kAbsent;  // sparse
              if (kind == 1 && v != present && random() % 2 == 0) q[v] = kAbsent;
              if (kind == 2) (v % 2 == 0 ? p : q)[v] = kAbsent;                 // disjoint
              if (kind == 3) q[v] = p[v];                                       // equal
              if (kind == 4) q[v] = p[v] * (1.0f + 1e-6f * normal(random));     // nearly equal
              if (kind == 7 && v % 3 != present % 3) q[v] = kUnscoredLogit;     // trimmed
              if (kind == 5) p[v] = std::round(p[v]), q[v] = std::round(q[v]);  // tied
            }
            pair.target.push_back(p);
            pair.draft.push_back(q);
          }
          pairs.push_back(std::move(pair));
        }
      }
    }
  }
  return pairs;
}

inline Processors with_min_p(Processors processors, double min_p) {
  processors.min_p_reach = static_cast<float>(-processors.temperature * std::log(min_p));
  return processors;
}

// Random pairs whose rows are edited, by every rule alone and by all together, so that the tokens
// of prompt, output and draft meet those that are listed.
inline std::vector<Pair> edited_pairs(int rounds, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.5f);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  const Processors variants[] = {{},
                                 {VerifyMode::rejection, 1.0f},
                                 {VerifyMode::rejection, 1.6f, 0, 0.8f},
                                 with_min_p({VerifyMode::rejection, 1.0f}, 0.2),
                                 with_min_p({VerifyMode::rejection, 2.0f, 3, 0.9f}, 0.05),
                                 with_min_p({VerifyMode::rejection, 0.5f}, 0.3)};
  enum Kind { bias, repetition, presence, frequency, min_tokens, all, copied, trimmed, kKinds };
  constexpr int kSizes[][2] = {{3, 0}, {4, 1}, {6, 1}, {4, 2}, {3, 3}};
  std::vector<Pair> pairs;
  for (int round = 0; round < rounds; ++round) {
    for (const auto& size : kSizes) {
      const int vocab = size[0], num_drafted = size[1];
      for (const Processors& variant : variants) {
        for (int kind = 0; kind < kKinds; ++kind) {
          Pair pair{vocab, num_drafted, kind == copied, variant, {}, {}, {}};
          const auto token = [&] { return static_cast<int32_t>(random() % vocab); };
          const auto asks = [&](Kind rule) { return kind == rule || kind >= all; };
          Rules& rules = pair.rules;
          for (int i = 0; i < 2; ++i) {
            rules.prompt.push_back(token());
            rules.output.push_back(token());
            if (asks(bias)) rules.bias[token()] = 2 * normal(random);
            if (asks(min_tokens)) rules.ends.push_back(token());
          }
          if (asks(repetition)) rules.repetition = 0.6f + 1.4f * uniform(random);
          if (asks(presence)) rules.presence = 4 * uniform(random) - 2;
          if (asks(frequency)) rules.frequency = 4 * uniform(random) - 2;
          if (asks(min_tokens)) rules.min_tokens = 2 + static_cast<int>(random() % 4);
          for (int i = 0; i < num_prefixes(num_drafted, vocab); ++i) {
            pair.target.emplace_back();
            pair.draft.emplace_back();
            for (int v = 0; v < vocab; ++v) {
              pair.target.back().push_back(normal(random));
              pair.draft.back().push_back(kind == trimmed && v % 3 == 1 ? kUnscoredLogit
                                                                        : normal(random));
            }
          }
          pairs.push_back(std::move(pair));
        }
      }
    }
  }
  return pairs;
}

}  // namespace outrider::exactness
