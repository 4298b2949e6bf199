// How many alternatives to a first token are chosen beside K, against every other choice.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "spec/lookahead.h"

namespace outrider {
namespace {

constexpr int kDepth = 5;

struct Choice {
  int k = 0, alternatives = 0;
};

class Random {
 public:
  explicit Random(uint64_t seed) : random_(seed) {}
  double uniform(double least, double most) {
    return std::uniform_real_distribution(least, most)(random_);
  }

 private:
  std::mt19937_64 random_;
};

// Each less likely than the one before, as drafters have them.
LookaheadSequence random_sequence(Random& random) {
  LookaheadSequence sequence{.max_tokens = kDepth, .max_alternatives = kMaxAlternatives};
  for (double& h : sequence.hazard) h = random.uniform(0, 1);
  sequence.hazard[0] = random.uniform(0.2, 1);
  double left = 1 - sequence.hazard[0], most = std::min(left, sequence.hazard[0]);
  for (double& p : sequence.alternatives) {
    p = most = std::min(most, left * random.uniform(0, 1));
    left -= p;
  }
  return sequence;
}

LookaheadCosts costs_of(double row_ms, double round_ms, double segment_ms) {
  LookaheadCosts costs{.tokens = 1};
  costs.alternatives_ms.push_back(0);
  for (int n = 1; n <= kMaxAlternatives; ++n) costs.alternatives_ms.push_back((n + 1) * segment_ms);
  for (int rows = 0; rows <= kDepth + kMaxAlternatives; ++rows) {
    costs.step_ms.push_back(10 + rows * row_ms);
  }
  costs.drafters.resize(1);
  costs.drafters[0].round_ms = {0, round_ms};
  return costs;
}

double rate(const LookaheadSequence& sequence, const LookaheadCosts& costs, const Choice& choice) {
  double tokens = 1, accepted = 1;
  for (int i = 0; i < choice.k; ++i) tokens += accepted *= sequence.hazard[i];
  for (int i = 0; i < choice.alternatives; ++i) tokens += sequence.alternatives[i];
  double ms = costs.step_ms[choice.k + choice.alternatives];
  ms += choice.k * costs.drafters[0].round_ms[1];
  ms += costs.alternatives_ms[choice.alternatives];
  return tokens / ms;
}

Choice choose(const LookaheadSequence& sequence, const LookaheadCosts& costs,
              LookaheadChoice* of_step = nullptr) {
  LookaheadSearch search;
  int k = 0;
  const LookaheadChoice& choice = search.choose({&sequence, 1}, costs, {&k, 1});
  if (of_step != nullptr) *of_step = choice;
  return {k, choice.num_alternatives[0]};
}

TEST(LookaheadAlternatives, NothingIsBetterForOneSequence) {
  int with = 0, without = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const LookaheadSequence sequence = random_sequence(random);
    const LookaheadCosts costs = costs_of(random.uniform(0, 2), random.uniform(0, 2), 0);
    LookaheadChoice of_step;
    const Choice chosen = choose(sequence, costs, &of_step);
    ASSERT_NEAR(of_step.tokens / of_step.ms, rate(sequence, costs, chosen), 1e-9) << seed;
    ASSERT_TRUE(chosen.k > 0 || chosen.alternatives == 0) << seed;
    double best = rate(sequence, costs, {});
    for (int k = 1; k <= kDepth; ++k) {
      for (int a = 0; a <= kMaxAlternatives; ++a) {
        // The order by likelihood takes the drafts before what is less likely than they are.
        best = std::max(best, rate(sequence, costs, {k, a}));
      }
    }
    ASSERT_GE(rate(sequence, costs, chosen), best * (1 - 1e-6)) << seed;
    ++(chosen.alternatives > 0 ? with : without);
  }
  EXPECT_GT(with, 300);
  EXPECT_GT(without, 300);
}

// Where they are dear, nothing that is drafted without them is given up for them.
TEST(LookaheadAlternatives, StandInNobodysWay) {
  int with = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    const LookaheadSequence sequence = random_sequence(random);
    LookaheadCosts costs =
        costs_of(random.uniform(0, 0.5), random.uniform(0, 0.5), random.uniform(0, 1));
    if (seed % 2 == 0) costs.drafters[0].max_added_ms = random.uniform(0, 3);
    const Choice chosen = choose(sequence, costs);
    double added = 0;
    for (int k = 0; k <= kDepth; ++k) {
      if (k > 0) added += costs.step_ms[1] - costs.step_ms[0] + costs.drafters[0].round_ms[1];
      if (added > costs.drafters[0].max_added_ms) break;
      ASSERT_GE(rate(sequence, costs, chosen), rate(sequence, costs, {k, 0}) * (1 - 1e-6)) << seed;
    }
    with += chosen.alternatives > 0;
  }
  EXPECT_GT(with, 50);
  EXPECT_LT(with, 900);
  // Six drafts of 0.6 each, in steps that an alternative would make half as long again.
  LookaheadSequence sequence{.max_tokens = 10, .max_alternatives = kMaxAlternatives};
  sequence.hazard.fill(0.6);
  Hazard wrong;
  wrong.fill(0.6);
  sequence.alternatives = accepted_alternatives(sequence.hazard, wrong);
  LookaheadCosts costs = costs_of(0, 0.02, 0.5);
  costs.step_ms.assign(20, 2);
  for (size_t rows = 0; rows < costs.step_ms.size(); ++rows) {
    costs.step_ms[rows] += 0.02 * static_cast<double>(rows);
  }
  EXPECT_EQ(choose(sequence, costs).k, 6);
  EXPECT_EQ(choose(sequence, costs).alternatives, 0);
}

// What a segment costs is paid once for all sequences that have so many alternatives.
TEST(LookaheadAlternatives, SegmentsAreShared) {
  LookaheadSequence sequence{.max_tokens = 1, .hazard = {0.5}, .max_alternatives = 1};
  sequence.alternatives = {0.3};
  LookaheadCosts costs = costs_of(0.1, 0.1, 2);
  EXPECT_EQ(choose(sequence, costs).alternatives, 0);  // 0.3 tokens for 4.1 ms
  EXPECT_EQ(choose(sequence, costs_of(0.1, 0.1, 0.5)).alternatives, 1);
  // Two segments, for 2.4 tokens of eight sequences.
  const std::vector<LookaheadSequence> eight(8, sequence);
  costs = costs_of(0.1, 0.1, 0.5);
  costs.step_ms.resize(17);
  for (size_t rows = 0; rows < costs.step_ms.size(); ++rows) {
    costs.step_ms[rows] = 10 + 0.1 * static_cast<double>(rows);
  }
  costs.drafters[0].round_ms.assign(9, 0.1);
  costs.drafters[0].round_ms[0] = 0;
  costs.tokens = 8;
  LookaheadSearch search;
  std::vector<int> k(8);
  const LookaheadChoice& choice = search.choose(eight, costs, k);
  EXPECT_EQ(choice.num_alternatives, std::vector<int>(8, 1));
  EXPECT_NEAR(choice.tokens, 8 + 8 * 0.8, 1e-9);
  EXPECT_NEAR(choice.ms, 10 + 16 * 0.1 + 0.1 + 2 * 0.5, 1e-9);
}

// What a sequence's own take is counted for each, and once more for its first.
TEST(LookaheadAlternatives, TakeWhatTheSequenceSays) {
  LookaheadSequence sequence{.max_tokens = 1, .hazard = {0.5}, .max_alternatives = 2};
  sequence.alternatives = {0.3, 0.15};
  sequence.alternative_ms = 0.2;
  sequence.first_alternative_ms = 0.3;
  LookaheadChoice of_step;
  EXPECT_EQ(choose(sequence, costs_of(0.1, 0.1, 0), &of_step).alternatives, 2);
  EXPECT_NEAR(of_step.ms, 10 + 0.1 + 3 * 0.1 + 2 * 0.2 + 0.3, 1e-9);
  sequence.first_alternative_ms = 3;
  EXPECT_EQ(choose(sequence, costs_of(0.1, 0.1, 0)).alternatives, 0);
}

// Where all are likely, a step drafts as many as there may be, alternatives among them.
TEST(LookaheadAlternatives, NoSequenceHasMoreRowsThanThereMayBe) {
  LookaheadSequence sequence{.max_tokens = kMaxDraftTokens, .max_alternatives = 2};
  sequence.hazard.fill(0.99);
  sequence.alternatives = {0.005, 0.004};
  LookaheadCosts costs = costs_of(0, 0, 0);
  costs.step_ms.assign(kMaxDraftTokens + 3, 10);
  EXPECT_EQ(choose(sequence, costs).k, kMaxDraftTokens);
  EXPECT_EQ(choose(sequence, costs).alternatives, 0);
  sequence.hazard[0] = 0.5;
  sequence.alternatives = {0.49, 0.005};
  const Choice chosen = choose(sequence, costs);
  EXPECT_EQ(chosen.k, kMaxDraftTokens - 1);
  EXPECT_EQ(chosen.alternatives, 1);
}

// One that is likelier than the draft stands behind it all the same.
TEST(LookaheadAlternatives, StandBesideADraft) {
  LookaheadSequence sequence{.max_tokens = 2, .hazard = {0.2, 0.1}, .max_alternatives = 2};
  sequence.alternatives = {0.5, 0.25};
  const Choice chosen = choose(sequence, costs_of(0.2, 0.1, 0));
  EXPECT_EQ(chosen.k, 1);
  EXPECT_EQ(chosen.alternatives, 2);
}

TEST(LookaheadAlternatives, AreWhatTheFirstTokenAndThoseBeforeLeave) {
  Hazard hazard{}, wrong{};
  hazard[0] = 0.6;
  wrong.fill(0.5);
  wrong[1] = 0.75;
  const auto accepted = accepted_alternatives(hazard, wrong);
  EXPECT_NEAR(accepted[0], 0.4 * 0.5, 1e-12);
  EXPECT_NEAR(accepted[1], 0.4 * 0.5 * 0.25, 1e-12);
  EXPECT_NEAR(accepted[2], 0.4 * 0.5 * 0.75 * 0.5, 1e-12);
}

}  // namespace
}  // namespace outrider
