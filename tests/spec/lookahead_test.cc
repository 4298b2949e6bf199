// The choice of K against every other choice there is, on small cases, and what each promise of it
// comes to.
#include "spec/lookahead.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <numeric>
#include <random>

#include "spec/theory.h"

namespace outrider {
namespace {

Hazard constant(double alpha) {
  Hazard hazard;
  hazard.fill(alpha);
  return hazard;
}

// rows: of step_ms beyond the first.
LookaheadCosts flat_costs(int rows, double step_ms, double round_ms, double tokens) {
  LookaheadCosts costs;
  costs.step_ms.assign(rows + 1, step_ms);
  costs.drafters.resize(1);
  costs.drafters[0].round_ms.assign(100, round_ms);
  costs.drafters[0].round_ms[0] = 0;
  costs.tokens = tokens;
  return costs;
}

std::vector<int> choose(const std::vector<LookaheadSequence>& sequences,
                        const LookaheadCosts& costs, LookaheadChoice* choice = nullptr) {
  LookaheadSearch search;
  std::vector<int> k(sequences.size());
  const LookaheadChoice& chosen = search.choose(sequences, costs, k);
  if (choice != nullptr) *choice = chosen;
  return k;
}

struct Outcome {
  double tokens, ms;
  bool allowed;
  double limit_ms;  // of its sequences
  double rate() const { return tokens / ms; }
};

// What a choice comes to, counted anew.
Outcome outcome(const std::vector<LookaheadSequence>& sequences, const LookaheadCosts& costs,
                const std::vector<int>& k) {
  double tokens = costs.tokens, beside = 0;
  double limit_ms = std::numeric_limits<double>::infinity();
  int rows = 0;
  auto drafting = std::vector(costs.drafters.size(), std::array<int, kMaxDraftTokens>{});
  for (size_t d = 0; d < drafting.size(); ++d) drafting[d] = costs.drafters[d].drafting;
  const auto before = drafting;
  for (size_t i = 0; i < sequences.size(); ++i) {
    double accepted = 1, own_tokens = 1;
    for (int j = 0; j < k[i]; ++j) {
      accepted *= sequences[i].hazard[j];
      tokens += accepted;
      own_tokens += sequences[i].trust * accepted;
      beside += sequences[i].row_ms;
      ++rows;
      ++drafting[sequences[i].drafter][j];
    }
    limit_ms = std::min(limit_ms, costs.step_ms[0] * (own_tokens + sequences[i].spare));
  }
  for (size_t d = 0; d < drafting.size(); ++d) {
    const auto& round = costs.drafters[d].round_ms;
    for (int j = 0; j < kMaxDraftTokens && !round.empty(); ++j) {
      beside += round[drafting[d][j]] - round[before[d][j]];
    }
  }
  const double ms = costs.step_ms[rows] + beside;
  const bool limited = costs.step_ms[0] <= costs.max_ms;
  return {tokens, ms, (!limited || ms <= costs.max_ms) && ms <= limit_ms + 1e-9, limit_ms};
}

// The best rate of all choices.
double best_of_all(const std::vector<LookaheadSequence>& sequences, const LookaheadCosts& costs) {
  std::vector<int> k(sequences.size(), 0);
  double best = 0;
  while (true) {
    const Outcome tried = outcome(sequences, costs, k);
    if (tried.allowed) best = std::max(best, tried.rate());
    size_t i = 0;
    while (i < k.size() && k[i] == sequences[i].max_tokens) k[i++] = 0;
    if (i == k.size()) return best;
    ++k[i];
  }
}

class Random {
 public:
  explicit Random(uint64_t seed) : random_(seed) {}
  double uniform(double least, double most) {
    return std::uniform_real_distribution(least, most)(random_);
  }
  int below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }

 private:
  std::mt19937_64 random_;
};

std::vector<LookaheadSequence> random_sequences(Random& random, int most, int depth) {
  std::vector<LookaheadSequence> sequences(1 + random.below(most));
  for (LookaheadSequence& sequence : sequences) {
    sequence.max_tokens = random.below(depth + 1);
    for (double& h : sequence.hazard) h = random.below(6) == 0 ? 0 : random.uniform(0, 1);
  }
  return sequences;
}

// A step's cost by its rows, in steps of any size.
LookaheadCosts random_costs(Random& random, const std::vector<LookaheadSequence>& sequences) {
  LookaheadCosts costs = flat_costs(0, random.uniform(1, 20), random.uniform(0, 5),
                                    static_cast<double>(sequences.size()));
  for (const LookaheadSequence& sequence : sequences) {
    for (int j = 0; j < sequence.max_tokens; ++j) {
      const double more = random.below(3) == 0 ? random.uniform(0, 8) : random.uniform(0, 0.5);
      costs.step_ms.push_back(costs.step_ms.back() + more);
    }
  }
  return costs;
}

TEST(Lookahead, NothingIsBetterWhereRoundsCostTheSame) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const auto sequences = random_sequences(random, 4, 4);
    LookaheadCosts costs = random_costs(random, sequences);
    if (random.below(3) == 0) costs.max_ms = costs.step_ms[0] + random.uniform(-2, 15);
    LookaheadChoice choice;
    const auto k = choose(sequences, costs, &choice);
    const Outcome chosen = outcome(sequences, costs, k);
    ASSERT_NEAR(choice.tokens, chosen.tokens, 1e-9) << seed;
    ASSERT_NEAR(choice.ms, chosen.ms, 1e-9) << seed;
    ASSERT_TRUE(chosen.allowed) << seed;
    ASSERT_NEAR(chosen.rate(), best_of_all(sequences, costs), 1e-9) << seed;
  }
}

TEST(Lookahead, NoKThatIsTheSameForAllIsBetter) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    auto sequences = random_sequences(random, 6, kMaxDraftTokens);
    LookaheadCosts costs = random_costs(random, sequences);
    costs.drafters.resize(2);
    for (size_t n = 1; n < costs.drafters[0].round_ms.size(); ++n) {
      costs.drafters[0].round_ms[n] = costs.drafters[0].round_ms[n - 1] + random.uniform(0, 1);
    }
    for (LookaheadSequence& sequence : sequences) {
      sequence.drafter = random.below(2);
      sequence.row_ms = random.uniform(0, 0.2);
    }
    const double chosen = outcome(sequences, costs, choose(sequences, costs)).rate();
    for (int same = 0; same <= kMaxDraftTokens; ++same) {
      std::vector<int> k;
      for (const auto& sequence : sequences) k.push_back(std::min(same, sequence.max_tokens));
      ASSERT_GE(chosen, outcome(sequences, costs, k).rate() - 1e-9) << seed << ", K " << same;
    }
  }
}

// The trap: no first row pays for its round, yet K = 3 is 1.6 times as fast.
TEST(Lookahead, SeesPastTheFirstRowOfARound) {
  constexpr int kSequences = 16;
  const std::vector<LookaheadSequence> sequences(kSequences,
                                                 {.max_tokens = 3, .hazard = constant(0.85)});
  const LookaheadCosts costs = flat_costs(3 * kSequences, 10, 3.2, kSequences);
  std::vector<int> one(kSequences, 0);
  one[0] = 1;
  const double plain = outcome(sequences, costs, std::vector<int>(kSequences, 0)).rate();
  ASSERT_LT(outcome(sequences, costs, one).rate(), plain);
  LookaheadChoice choice;
  EXPECT_EQ(choose(sequences, costs, &choice), std::vector<int>(kSequences, 3));
  EXPECT_NEAR(choice.tokens / choice.ms / plain, 1.6, 0.05);
}

TEST(Lookahead, AgreesWithTheTheoryForOneSequence) {
  for (const double alpha : {0.05, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0}) {
    for (const double c : {0.01, 0.05, 0.2, 0.5}) {
      const std::vector<LookaheadSequence> one = {
          {.max_tokens = kMaxDraftTokens, .hazard = constant(alpha)}};
      EXPECT_EQ(choose(one, flat_costs(kMaxDraftTokens, 1, c, 1))[0],
                best_num_draft_tokens(alpha, c, kMaxDraftTokens))
          << alpha << ", " << c;
    }
  }
}

TEST(Lookahead, DraftsNothingThatIsNeverAccepted) {
  const std::vector<LookaheadSequence> hopeless(
      4, {.max_tokens = kMaxDraftTokens, .hazard = constant(0)});
  EXPECT_EQ(choose(hopeless, flat_costs(60, 10, 0, 4)), std::vector<int>(4, 0));
}

TEST(Lookahead, KeepsEachDrafterWithinItsLimit) {
  std::vector<LookaheadSequence> sequences(
      2, {.max_tokens = 8, .row_ms = 0.1, .hazard = constant(0.99)});
  sequences[1].drafter = 1;
  LookaheadCosts costs = flat_costs(16, 10, 0, 2);
  costs.drafters.resize(2);
  costs.drafters[0].max_added_ms = 0.35;
  LookaheadChoice choice;
  EXPECT_EQ(choose(sequences, costs, &choice), (std::vector<int>{3, 8}));
  EXPECT_NEAR(choice.added_ms[0], 0.3, 1e-9);
  EXPECT_NEAR(choice.added_ms[1], 0.8, 1e-9);
  costs.drafters[0].max_added_ms = 0;
  EXPECT_EQ(choose(sequences, costs), (std::vector<int>{0, 8}));
}

TEST(Lookahead, AnObjectiveBoundsTheStep) {
  const std::vector<LookaheadSequence> one = {{.max_tokens = 8, .hazard = constant(0.95)}};
  LookaheadCosts costs = flat_costs(8, 10, 1, 1);
  EXPECT_EQ(choose(one, costs)[0], 8);
  costs.max_ms = 13.5;
  EXPECT_EQ(choose(one, costs)[0], 3);
  costs.max_ms = 10;
  EXPECT_EQ(choose(one, costs)[0], 0);
  costs.max_ms = 9;  // cannot be met: then the most tokens for the time
  EXPECT_EQ(choose(one, costs)[0], 8);
}

TEST(Lookahead, TakesNoLongerThanASequencesTokensAndWhatItCanSpare) {
  int drafting = 0, held_back = 0;
  double share = 0;  // of the best allowed choice's rate
  constexpr uint64_t kCases = 2000;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    Random random(seed);
    auto sequences = random_sequences(random, 4, 4);
    const LookaheadCosts costs = random_costs(random, sequences);
    const auto unbound = choose(sequences, costs);
    for (LookaheadSequence& sequence : sequences) {
      sequence.spare = random.below(2) == 0 ? 0 : random.uniform(0, 0.5);
      if (random.below(4) == 0) sequence.trust = random.uniform(0, 1);
    }
    LookaheadChoice choice;
    const auto k = choose(sequences, costs, &choice);
    const Outcome chosen = outcome(sequences, costs, k);
    const bool drafts = k != std::vector(k.size(), 0);
    ASSERT_NEAR(choice.limit_ms, chosen.limit_ms, 1e-9) << seed;
    ASSERT_TRUE(chosen.allowed || !drafts) << seed;
    ASSERT_TRUE(choice.held_back || k == unbound) << seed;
    drafting += drafts;
    held_back += k != unbound;
    share += chosen.rate() / std::max(best_of_all(sequences, costs), chosen.rate());
  }
  EXPECT_GT(drafting, 200);
  EXPECT_GT(held_back, 200);
  EXPECT_GT(share / kCases, 0.99);
}

// One of twenty owes: by bad luck, as good as the others, or unlikely to have anything accepted. It
// bears 0.4 ms, or less than a tenth, but nothing of it without a row of its own.
TEST(Lookahead, DraftsFirstForWhoOwes) {
  for (const double own : {0.08, 0.015}) {
    std::vector<LookaheadSequence> sequences(20, {.max_tokens = 3, .hazard = constant(0.8)});
    sequences[7] = {.max_tokens = 3, .hazard = constant(own), .spare = 0, .trust = 0.5};
    LookaheadCosts costs = flat_costs(0, 10, 0, 20);
    for (int row = 1; row <= 60; ++row) costs.step_ms.push_back(10 + 0.01 * row);
    LookaheadChoice choice;
    const std::vector<int> k = choose(sequences, costs, &choice);
    EXPECT_EQ(k[7], 1);
    const double bears_ms = 10 * 0.5 * own;
    EXPECT_EQ(std::accumulate(k.begin(), k.end(), 0), static_cast<int>(bears_ms / 0.01 + 1e-9));
    EXPECT_NEAR(choice.limit_ms, 10 + bears_ms, 1e-9);
  }
}

TEST(Lookahead, RoundsThatOthersPayForAreCheap) {
  const std::vector<LookaheadSequence> one = {{.max_tokens = 4, .hazard = constant(0.3)}};
  LookaheadCosts costs = flat_costs(4, 10, 5, 2);
  EXPECT_EQ(choose(one, costs)[0], 0);
  costs.drafters[0].drafting = {1, 1};
  costs.drafters[0].round_ms = {0, 5, 5.01, 5.02};
  EXPECT_EQ(choose(one, costs)[0], 2);
}

TEST(LookaheadPolicy, ReadsWhatItWrites) {
  for (const char* text : {"fixed:0", "fixed:15", "adaptive", "table:1=4,8=2,16=0", "table:2=15"}) {
    const auto policy = parse_lookahead(text);
    ASSERT_TRUE(policy) << text;
    EXPECT_EQ(policy->text(), text);
  }
  EXPECT_EQ(parse_lookahead("table")->kind, LookaheadPolicy::Kind::table);
  EXPECT_EQ(LookaheadPolicy().text(), "adaptive");
}

TEST(LookaheadPolicy, RefusesWhatIsNone) {
  for (const char* text :
       {"",           "4",          "fixed",         "fixed:",        "fixed:16",   "fixed:-1",
        "fixed:4 5",  "fixed:4,",   "adaptive:4",    "table:",        "table:4",    "table:0=4",
        "table:1=16", "table:1=-1", "table:4=2,4=1", "table:8=1,4=2", "table:1=4,", "table:1=4=5",
        "tables",     "Adaptive"}) {
    EXPECT_FALSE(parse_lookahead(text)) << text;
  }
}

TEST(LookaheadPolicy, TablesGoByTheBatch) {
  const auto policy = parse_lookahead("table:2=5,8=1,16=0");
  EXPECT_EQ(policy->from_table(1), 5);
  EXPECT_EQ(policy->from_table(2), 5);
  EXPECT_EQ(policy->from_table(7), 5);
  EXPECT_EQ(policy->from_table(8), 1);
  EXPECT_EQ(policy->from_table(100), 0);
  EXPECT_EQ(policy->most(), 5);
}

// What it takes is printed: where rows are dear, so that few are worth a look, and where they are
// free, almost all are accepted, and hardly anybody can wait.
TEST(Lookahead, ChoosesForManySequences) {
  for (const int n : {64, 256}) {
    for (const double row_ms : {0.05, 0.0}) {
      Random random(1);
      std::vector<LookaheadSequence> sequences(n);
      for (LookaheadSequence& sequence : sequences) {
        sequence.max_tokens = kMaxDraftTokens;
        sequence.spare = random.uniform(0, row_ms > 0 ? 1 : 0.1);
        for (double& h : sequence.hazard) h = random.uniform(row_ms > 0 ? 0.3 : 0.9, 1);
      }
      LookaheadCosts costs = flat_costs(n * kMaxDraftTokens, 10, 1, n);
      costs.drafters[0].round_ms.assign(n + 1, 1);
      costs.drafters[0].round_ms[0] = 0;
      for (size_t r = 1; r < costs.step_ms.size(); ++r) {
        costs.step_ms[r] = costs.step_ms[r - 1] + row_ms;
      }
      LookaheadSearch search;
      std::vector<int> k(n);
      double least = 1e9;
      for (int round = 0; round < 50; ++round) {
        const auto begin = std::chrono::steady_clock::now();
        search.choose(sequences, costs, k);
        const std::chrono::duration<double, std::micro> us =
            std::chrono::steady_clock::now() - begin;
        least = std::min(least, us.count());
      }
      std::printf("%d sequences of up to 15 tokens, a row takes %.2f ms: %.1f microseconds\n", n,
                  row_ms, least);
      const Outcome chosen = outcome(sequences, costs, k);
      EXPECT_TRUE(chosen.allowed);
      for (int same = 0; same <= kMaxDraftTokens; ++same) {
        const Outcome other = outcome(sequences, costs, std::vector<int>(n, same));
        if (other.allowed) {
          EXPECT_GE(chosen.rate(), other.rate() - 1e-9) << same;
        }
      }
    }
  }
}

}  // namespace
}  // namespace outrider
