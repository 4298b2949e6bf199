// Rows whose candidates do not suffice: one exchange gathers those of a whole step, and tokens are
// what whole rows make of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "comm/thread_communicator.h"
#include "exactness.h"
#include "kernels/randomness.h"
#include "verifier_harness.h"

namespace outrider {
namespace {

using exactness::reference_distribution;

// Counts the exchanges of one rank.
class CountingCommunicator final : public Communicator {
 public:
  explicit CountingCommunicator(Communicator& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  bool is_near() const override { return inner_.is_near(); }
  void all_reduce_sum(TensorView x, Stream& stream) override { inner_.all_reduce_sum(x, stream); }
  void all_gather(TensorView mine, TensorView all, Stream& stream) override {
    ++exchanges;
    inner_.all_gather(mine, all, stream);
  }
  void broadcast(TensorView x, int root, Stream& stream) override {
    inner_.broadcast(x, root, stream);
  }

  int exchanges = 0;

 private:
  Communicator& inner_;
};

// A flat row of 2000 tokens: half of its mass takes 1000 of them, far more than the candidates.
class VerifierGathers : public testing::TestWithParam<VerifyMode> {};
TEST_P(VerifierGathers, WhatTheCandidatesDoNotCover) {
  std::mt19937 random(2);
  constexpr int kVocab = 2000;
  const Processors nucleus{GetParam(), 1.0f, 0, 0.5f};
  std::vector<Case> cases;
  for (uint32_t i = 0; i < 40; ++i) {
    Case c{.target = {}, .draft = {}, .drafted = {}, .processors = nucleus, .key = {i, 0, 5}};
    for (int row = 0; row < 3; ++row) c.target.push_back(random_row(random, kVocab, 0.1f));
    for (int row = 0; row < 2; ++row) {
      c.draft.push_back(c.target[row]);
      c.drafted.push_back(draw(c.draft[row], nucleus, c.key, row));
    }
    cases.push_back(c);
  }
  const auto alone = verify_over(1, cases);
  for (const int ranks : {2, 3}) {
    const auto verdicts = verify_over(ranks, cases);
    for (size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(verdicts[i].gathered, 3);
      EXPECT_EQ(verdicts[i].num_accepted, 2);  // q = p
      EXPECT_EQ(verdicts[i].extra_token, alone[i].extra_token);
      const auto p = reference_distribution(cases[i].target[2], nucleus);
      EXPECT_GT(p[verdicts[i].extra_token], 0.0);
      EXPECT_NEAR(verdicts[i].alpha_sum, 2.0, 1e-6);
    }
  }
}

// The token that arrives first, by the definition of the race, in fp64.
int32_t race(const std::vector<double>& weights, const RandomKey& key, int offset,
             Purpose purpose) {
  int32_t first = -1;
  double least = INFINITY;
  for (uint32_t v = 0; v < weights.size(); ++v) {
    if (weights[v] == 0.0) continue;
    const double u = race_uniform(random_word(key, offset, purpose, v),
                                  [&] { return random_word(key, offset, refined(purpose), v); });
    const double time = -std::log1p(-u) / weights[v];
    if (time < least) first = static_cast<int32_t>(v), least = time;
  }
  return first;
}

// The tokens of a step by their definition, from whole rows in fp64: the accepted ones, then the
// extra one.
std::vector<int32_t> reference_tokens(const Case& c) {
  const bool coupled = c.processors.mode == VerifyMode::coupled;
  std::vector<int32_t> tokens;
  for (size_t i = 0;; ++i) {
    const auto offset = static_cast<int>(i);
    std::vector<double> p = reference_distribution(c.target[i], c.processors);
    const bool bonus = i == c.drafted.size();
    if (coupled) {
      tokens.push_back(race(p, coupled_key(c.key, offset), 0, Purpose::coupled));
      if (bonus || tokens.back() != c.drafted[i]) return tokens;
      continue;
    }
    if (!bonus) {
      const auto q = reference_distribution(c.draft[i], c.processors);
      const int32_t x = c.drafted[i];
      if (accept_uniform(c.key, offset) * q[x] < p[x]) {
        tokens.push_back(x);
        continue;
      }
      for (size_t v = 0; v < p.size(); ++v) p[v] = std::max(p[v] - q[v], 0.0);
    }
    tokens.push_back(race(p, c.key, offset, Purpose::extra));
    return tokens;
  }
}

// Σ min(p, q) over the positions up to and including the first refusal.
double reference_alpha_sum(const Case& c, int alpha_rows) {
  double sum = 0.0;
  for (int i = 0; i < alpha_rows; ++i) {
    const auto p = reference_distribution(c.target[i], c.processors);
    const auto q = reference_distribution(c.draft[i], c.processors);
    for (size_t v = 0; v < p.size(); ++v) sum += std::min(p[v], q[v]);
  }
  return sum;
}

// Flat rows of which 0.95 of the mass takes most tokens, beside sequences whose candidates suffice:
// one more exchange for all that is unresolved.
TEST_P(VerifierGathers, AllRowsOfAStepAtOnce) {
  constexpr int kVocab = 3000, kFlat = 12, kK = 3;
  const Processors nucleus{GetParam(), 1.0f, 0, 0.95f};
  std::mt19937 random(9);
  std::normal_distribution<float> noise(0.0f, 0.5f);
  std::vector<Case> cases;
  for (uint32_t i = 0; i < kFlat + 3; ++i) {
    Case c{.target = {}, .draft = {}, .drafted = {}, .processors = nucleus, .key = {i, 0, 5}};
    const bool flat = i < kFlat;
    for (int row = 0; row <= kK; ++row) {
      const float scale = flat ? 0.3f * static_cast<float>(row + 1) : 6.0f;  // unlike each other
      c.target.push_back(random_row(random, kVocab, scale));
      if (row == kK) break;
      c.draft.push_back(c.target[row]);
      if (row > 0 || i % 2 == 0) {
        for (float& logit : c.draft[row]) logit += noise(random);
      }
      c.drafted.push_back(draw(c.draft[row], nucleus, c.key, row));
    }
    cases.push_back(c);
  }
  std::set<int> lengths;
  for (const int ranks : {1, 2, 3}) {
    run_thread_ranks(ranks, [&](Communicator& inner) {
      CountingCommunicator communicator(inner);
      Rank rank(communicator, kVocab, kFlat + 3);
      const int before = communicator.exchanges;
      const auto verdicts = rank.verify(cases);
      const int once = GetParam() == VerifyMode::rejection ? 2 : 1;  // A, and B
      const int again = once - 1;                                    // B
      EXPECT_EQ(communicator.exchanges - before, ranks == 1 ? 0 : once + 1 + again);
      for (size_t i = 0; i < cases.size(); ++i) {
        const Verdict& verdict = verdicts[i];
        std::vector<int32_t> tokens(cases[i].drafted.begin(),
                                    cases[i].drafted.begin() + verdict.num_accepted);
        tokens.push_back(verdict.extra_token);
        EXPECT_EQ(tokens, reference_tokens(cases[i])) << i << " over " << ranks;
        EXPECT_EQ(verdict.gathered, i < kFlat ? kK + 1 : 0);
        if (GetParam() == VerifyMode::rejection) {
          EXPECT_NEAR(verdict.alpha_sum, reference_alpha_sum(cases[i], verdict.alpha_rows), 1e-5);
        }
        if (communicator.rank() == 0) lengths.insert(verdict.num_accepted);
      }
    });
  }
  EXPECT_GT(lengths.size(), 2u);  // refused at once, later, and never
}

// Flat rows of alternatives, beside sharp ones of the drafts: that of the extra token alone is
// gathered, and the drafts' verdicts stand.
TEST_P(VerifierGathers, OfAlternativesTheOneThatIsWanted) {
  constexpr int kVocab = 3000;
  constexpr int32_t kRefused = 17, kLikely = 400, kUnlikely = 2900;
  const Processors nucleus{GetParam(), 1.0f, 0, 0.95f};
  const Processors coupled{VerifyMode::coupled, 1.0f, 0, 0.95f};
  std::mt19937 random(21);
  const auto sharp = [&](int32_t token) {
    std::vector<float> row(kVocab, 0.0f);
    row[token] = 40.0f;
    return row;
  };
  std::vector<Case> cases;
  for (uint32_t i = 0; i < 6; ++i) {
    const int32_t drafted = i < 3 ? kRefused : kLikely;  // the others are accepted
    const auto drafts = static_cast<int>(cases.size());
    cases.push_back({.target = {sharp(kLikely), sharp(kUnlikely)},
                     .draft = {sharp(drafted)},
                     .drafted = {drafted},
                     .processors = nucleus,
                     .key = {i, 0, 5}});
    for (const int32_t token : {kUnlikely, kLikely}) {
      cases.push_back({.target = {random_row(random, kVocab, 0.3f)},
                       .draft = {},
                       .drafted = {},
                       .processors = coupled,
                       .key = {i, 0, 6},
                       .alternative_of = drafts,
                       .alternative = token});
    }
  }
  for (const int ranks : {1, 2, 3}) {
    const auto verdicts = verify_over(ranks, cases);
    for (size_t i = 0; i < cases.size(); i += 3) {
      const bool refused = cases[i].drafted[0] == kRefused;
      EXPECT_EQ(verdicts[i].num_accepted, refused ? 0 : 1);
      EXPECT_EQ(verdicts[i].extra_token, refused ? kLikely : kUnlikely);
      EXPECT_EQ(verdicts[i].gathered, 0);
      EXPECT_EQ(verdicts[i].alpha_rows, 1);
      EXPECT_NEAR(verdicts[i].alpha_sum, refused ? 0.0 : 1.0, 1e-9);
      EXPECT_EQ(verdicts[i + 1].gathered, 0);
      EXPECT_EQ(verdicts[i + 2].gathered, refused ? 1 : 0);
      if (!refused) continue;
      EXPECT_EQ(verdicts[i + 2].extra_token, reference_tokens(cases[i + 2])[0]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, VerifierGathers,
                         testing::Values(VerifyMode::rejection, VerifyMode::coupled));

}  // namespace
}  // namespace outrider
