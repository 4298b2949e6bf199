// Verifier over ranks as threads: production's own randomness against the target's distribution,
// equal verdicts on every rank, and what it does with bad rows and disagreeing ranks.
#include "spec/verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "comm/self_communicator.h"
#include "comm/thread_communicator.h"
#include "exactness.h"
#include "verifier_harness.h"

namespace outrider {
namespace {

using exactness::reference_distribution;

constexpr Processors kGreedy{};
constexpr Processors kSampled{.mode = VerifyMode::rejection};

int32_t argmax(const std::vector<float>& row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

TEST(Verifier, GreedyAcceptsTheArgMaxAndGoesOnWithTheNext) {
  std::mt19937 random(1);
  for (int first_wrong = 0; first_wrong <= 3; ++first_wrong) {
    Case c{.target = {}, .draft = {}, .drafted = {}, .processors = kGreedy};
    for (int i = 0; i <= 3; ++i) c.target.push_back(random_row(random, 50));
    for (int i = 0; i < 3; ++i) {
      c.drafted.push_back((argmax(c.target[i]) + (i == first_wrong ? 1 : 0)) % 50);
    }
    for (const int ranks : {1, 2, 3}) {
      const Verdict verdict = verify_over(ranks, {c})[0];
      EXPECT_EQ(verdict.num_accepted, first_wrong);
      EXPECT_EQ(verdict.extra_token, argmax(c.target[first_wrong]));
      EXPECT_EQ(verdict.alpha_rows, std::min(first_wrong + 1, 3));
      EXPECT_EQ(verdict.alpha_sum, first_wrong);
    }
  }
}

TEST(Verifier, WithoutSequencesTheDigestIsStillCompared) {
  run_thread_ranks(2, [](Communicator& communicator) {
    Rank rank(communicator, 10, 1);
    EXPECT_TRUE(rank.verify({}).empty());
  });
  try {
    run_thread_ranks(4, [](Communicator& communicator) {
      Rank rank(communicator, 10, 1);
      const bool astray = communicator.rank() == 1 || communicator.rank() == 3;
      rank.verify({}, astray ? 5 : 7);
    });
    ADD_FAILURE() << "no Error";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "digest of plan and state, or drafted tokens, differ from rank 0's on rank 1, rank 3");
  }
}

// A rank whose draft went astray: same plan, same state, another token.
TEST(Verifier, DraftedTokensAreCompared) {
  const std::vector<float> row(10, 0.0f);
  EXPECT_THROW(run_thread_ranks(2,
                                [&](Communicator& communicator) {
                                  Rank rank(communicator, 10, 1);
                                  Case c{{row, row}, {}, {communicator.rank()}, kGreedy};
                                  rank.verify({c});
                                }),
               DisagreementError);
}

TEST(Verifier, RefusesShardsThatDoNotCoverTheVocabulary) {
  const auto backend = make_cpu_backend();
  const auto self = make_self_communicator();
  EXPECT_THROW(Verifier(*backend, *self, 10, 1, 9, 16, 1), Error);
  EXPECT_THROW(Verifier(*backend, *self, 10, 0, 9, 16, 1), Error);
}

// Row 1 is broken: needed where the first token is accepted, of no matter where it is refused.
// The sequence beside it never notices.
TEST(Verifier, BrokenTargetRowFailsTheSequenceThatNeedsIt) {
  const std::vector<float> sure{9.0f, -9.0f, -9.0f, -9.0f};
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> broken = sure;
    broken[3] = bad;
    for (const Processors& processors : {kGreedy, kSampled}) {
      Case accepted{{sure, broken, sure}, {sure, sure}, {0, 0}, processors};
      Case refused{{sure, broken, sure}, {sure, sure}, {1, 0}, processors};
      if (processors.mode == VerifyMode::rejection) refused.draft = {};  // 1 was copied
      Case whole{{sure, sure, sure}, {sure, sure}, {0, 0}, processors};
      for (const int ranks : {1, 2, 3}) {
        const auto verdicts = verify_over(ranks, {accepted, refused, whole});
        EXPECT_TRUE(verdicts[0].non_finite);
        EXPECT_FALSE(verdicts[1].non_finite);
        EXPECT_EQ(verdicts[1].num_accepted, 0);
        EXPECT_EQ(verdicts[1].extra_token, 0);
        EXPECT_FALSE(verdicts[2].non_finite);
        EXPECT_EQ(verdicts[2].num_accepted, 2);
      }
    }
  }
}

TEST(Verifier, BrokenDraftRowIsRefusedAndTheTargetDrawnFrom) {
  const std::vector<float> sure{9.0f, -9.0f, -9.0f, -9.0f};
  const std::vector<float> broken{NAN, 1.0f, 2.0f, 3.0f};
  const Case c{{sure, sure, sure}, {sure, broken}, {0, 0}, kSampled};
  for (const int ranks : {1, 2, 3}) {
    const Verdict verdict = verify_over(ranks, {c})[0];
    EXPECT_FALSE(verdict.non_finite);
    EXPECT_EQ(verdict.num_accepted, 1);
    EXPECT_EQ(verdict.extra_token, 0);
    EXPECT_EQ(verdict.alpha_rows, 2);
    EXPECT_NEAR(verdict.alpha_sum, 1.0, 1e-6);  // all of the first row, nothing of the second
  }
}

// A top_k of the whole vocabulary, or beyond it, leaves nothing out and needs no candidates.
TEST(Verifier, CoupledRowsOfWhichNothingIsFilteredOutAreTheUnfiltered) {
  std::mt19937 random(8);
  for (int i = 0; i < 20; ++i) {
    Case c{.target = {random_row(random, 500)}, .draft = {}, .drafted = {}, .processors = {}};
    c.key.base = static_cast<uint32_t>(i);
    std::vector<Case> cases;
    for (const int32_t top_k : {0, 500, 100'000}) {
      cases.push_back(c);
      cases.back().processors = {VerifyMode::coupled, 1.0f, top_k, 1.0f};
    }
    const auto verdicts = verify_over(2, cases);
    EXPECT_EQ(verdicts[1].extra_token, verdicts[0].extra_token);
    EXPECT_EQ(verdicts[2].extra_token, verdicts[0].extra_token);
    EXPECT_FALSE(verdicts[1].gathered);
  }
}

// ln 0.5 = -0.6931: what lies nearer to the largest logit is kept, whatever the id.
TEST(Verifier, GreedyLenienceKeepsWhatComesNearTheArgMax) {
  const std::vector<float> row{2.0f, 5.0f, 4.31f, 4.30f, 5.0f};
  const auto verdict_of = [&](int32_t drafted, float lenience) {
    const Case c{{row, row}, {}, {drafted}, {.lenience = lenience}};
    return verify_over(2, {c})[0];
  };
  for (const int32_t drafted : {0, 1, 2, 3, 4}) {
    EXPECT_EQ(verdict_of(drafted, 1.0f).num_accepted, drafted == 1 ? 1 : 0);
    const Verdict lenient = verdict_of(drafted, 0.5f);
    const bool near = row[drafted] >= 4.31f;
    EXPECT_EQ(lenient.num_accepted, near ? 1 : 0) << drafted;
    EXPECT_EQ(lenient.extra_token, 1);
    EXPECT_EQ(lenient.alpha_rows, 1);
    EXPECT_EQ(lenient.alpha_sum, near ? 1.0 : 0.0);
    EXPECT_EQ(lenient.shift_sum, near && drafted != 1 ? 1.0 : 0.0);
  }
}

// The sum of Σ min(p, q) is what accepted tokens are expected to be, position by position.
TEST(Verifier, MeasuresAlphaThatPredictsAcceptance) {
  std::mt19937 random(3);
  constexpr int kVocab = 16, kSequences = 20'000;
  const auto p = random_row(random, kVocab), q = random_row(random, kVocab);
  double overlap = 0.0;
  const auto p_exact = reference_distribution(p, kSampled);
  const auto q_exact = reference_distribution(q, kSampled);
  for (int v = 0; v < kVocab; ++v) overlap += std::min(p_exact[v], q_exact[v]);
  std::vector<Case> cases;
  for (uint32_t i = 0; i < kSequences; ++i) {
    Case c{{p, p, p}, {q, q}, {}, kSampled, {.seed = i, .choice = 0, .base = 3}};
    for (int row = 0; row < 2; ++row) {
      c.drafted.push_back(draw(q, kSampled, c.key, row));
    }
    cases.push_back(c);
  }
  int accepted = 0, reached = 0;
  for (const Verdict& verdict : verify_over(2, cases)) {
    EXPECT_NEAR(verdict.alpha_sum / verdict.alpha_rows, overlap, 1e-6);
    accepted += verdict.num_accepted;
    reached += verdict.alpha_rows;
  }
  // Five standard deviations of a proportion over ~30,000 positions.
  EXPECT_NEAR(accepted / double(reached), overlap, 5 * 0.5 / std::sqrt(reached));
}

// The chi-square quantile at 1e-6 for many degrees of freedom (Wilson and Hilferty 1931).
double critical_value(int degrees) {
  const double a = 2.0 / (9.0 * degrees);
  return degrees * std::pow(1.0 - a + 4.753424 * std::sqrt(a), 3.0);
}

// G-test of counts against probabilities; cells expected fewer than ten times are merged.
void expect_distribution(const std::vector<double>& expected, const std::vector<int64_t>& counts,
                         const char* what) {
  double total = 0.0, rest_expected = 0.0, rest_count = 0.0, g = 0.0;
  for (const int64_t count : counts) total += static_cast<double>(count);
  int cells = 0;
  const auto add = [&](double mean, double count) {
    if (count > 0.0) g += 2.0 * count * std::log(count / mean);
    ++cells;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double mean = expected[i] * total;
    if (mean >= 10.0) {
      add(mean, static_cast<double>(counts[i]));
    } else {
      rest_expected += mean;
      rest_count += static_cast<double>(counts[i]);
    }
  }
  if (rest_expected < 1e-4) {
    EXPECT_EQ(rest_count, 0.0) << what << ": tokens that cannot be";
  } else if (rest_expected < 1.0) {
    EXPECT_LE(rest_count, 10.0) << what << ": tokens that can hardly be";
  } else {
    add(rest_expected, rest_count);
  }
  EXPECT_LT(g, critical_value(cells - 1)) << what << ", " << cells << " cells";
}

// A language of 16 tokens, in which each token's successors have rows of their own.
struct Language {
  static constexpr int kVocab = 16;
  std::vector<std::vector<float>> target, draft;  // [last token][vocab]
  Language() {
    std::mt19937 random(5);
    for (int i = 0; i < kVocab; ++i) {
      target.push_back(random_row(random, kVocab, 1.2f));
      draft.push_back(random_row(random, kVocab, 1.2f));
    }
  }
};

// Sequences that start behind token 0, decoded together until each has three tokens, with K = 0 … 3
// and every fifth drafted for by copying. Returns the three, sequence by sequence.
std::vector<int32_t> generate(Rank& rank, const Language& language, const Processors& processors,
                              int num_sequences) {
  constexpr int kTogether = 250, kTokens = 3;
  std::vector<int32_t> out;
  for (int first = 0; first < num_sequences; first += kTogether) {
    std::vector<std::vector<int32_t>> texts(kTogether, {0});
    for (bool done = false; !done;) {
      std::vector<Case> cases;
      std::vector<size_t> whose;
      for (size_t i = 0; i < texts.size(); ++i) {
        if (texts[i].size() > kTokens) continue;
        const auto id = static_cast<uint32_t>(first) + static_cast<uint32_t>(i);
        const auto base = static_cast<uint32_t>(texts[i].size());
        Case c{.target = {},
               .draft = {},
               .drafted = {},
               .processors = processors,
               .key = {.seed = 1234, .choice = id, .base = base}};
        int32_t last = texts[i].back();
        const auto num_drafted = static_cast<int>((id + base) % 4);
        for (int k = 0; k < num_drafted; ++k) {
          c.target.push_back(language.target[last]);
          const auto& row = language.draft[last];
          if (id % 5 == 0) {
            last = (last + 1) % Language::kVocab;
          } else {
            last = draw(row, processors, c.key, k);
            c.draft.push_back(row);
          }
          c.drafted.push_back(last);
        }
        c.target.push_back(language.target[last]);
        cases.push_back(std::move(c));
        whose.push_back(i);
      }
      const auto verdicts = rank.verify(cases);
      for (size_t j = 0; j < cases.size(); ++j) {
        auto& text = texts[whose[j]];
        const auto& drafted = cases[j].drafted;
        text.insert(text.end(), drafted.begin(), drafted.begin() + verdicts[j].num_accepted);
        text.push_back(verdicts[j].extra_token);
      }
      done = std::all_of(texts.begin(), texts.end(),
                         [](const auto& text) { return text.size() > kTokens; });
    }
    for (const auto& text : texts) out.insert(out.end(), text.begin() + 1, text.begin() + 4);
  }
  return out;
}

class Statistics : public testing::TestWithParam<Processors> {};

// First, second and third tokens and pairs, each at 1e-6; a bias of 1e-2 in a token of probability
// 1/16 is 13 standard deviations here. Every rank ends with the same texts, and the number of ranks
// changes them only where a sum's rounding decides (about one in 10^6).
TEST_P(Statistics, OutputFollowsTheTargetOverRanks) {
  constexpr int kVocab = Language::kVocab;
  const int halves = GetParam().mode == VerifyMode::coupled ? 1 : 2;
  const int num_sequences = halves * (GetParam().filtered() ? 20'000 : 50'000);
  const Language language;
  std::vector<std::vector<double>> p;
  for (const auto& row : language.target) p.push_back(reference_distribution(row, GetParam()));
  std::vector<double> second(kVocab), third(kVocab), pairs(kVocab * kVocab);
  for (int a = 0; a < kVocab; ++a) {
    for (int b = 0; b < kVocab; ++b) {
      pairs[a * kVocab + b] = p[0][a] * p[a][b];
      second[b] += p[0][a] * p[a][b];
      for (int c = 0; c < kVocab; ++c) third[c] += p[0][a] * p[a][b] * p[b][c];
    }
  }
  std::vector<std::vector<int32_t>> texts;  // [1, 2, 3 ranks]
  for (const int ranks : {1, 2, 3}) {
    std::vector<std::vector<int32_t>> of_rank(ranks);
    run_thread_ranks(ranks, [&](Communicator& communicator) {
      Rank rank(communicator, kVocab, 250);
      of_rank[communicator.rank()] = generate(rank, language, GetParam(), num_sequences);
    });
    for (int r = 1; r < ranks; ++r) EXPECT_EQ(of_rank[r], of_rank[0]);
    texts.push_back(of_rank[0]);

    std::vector<int64_t> counts[3], pair_counts(kVocab * kVocab);
    for (auto& count : counts) count.resize(kVocab);
    for (size_t i = 0; i < texts.back().size(); i += 3) {
      const int32_t* text = &texts.back()[i];
      for (int t = 0; t < 3; ++t) ++counts[t][text[t]];
      ++pair_counts[text[0] * kVocab + text[1]];
    }
    expect_distribution(p[0], counts[0], "first tokens");
    expect_distribution(second, counts[1], "second tokens");
    expect_distribution(third, counts[2], "third tokens");
    expect_distribution(pairs, pair_counts, "pairs");
  }
  int different = 0;
  for (size_t i = 0; i < texts[0].size(); i += 3) {
    const auto same = [&](const std::vector<int32_t>& other) {
      return std::equal(&texts[0][i], &texts[0][i] + 3, &other[i]);
    };
    different += same(texts[1]) && same(texts[2]) ? 0 : 1;
  }
  // No sum has a part in a coupled row that is not filtered.
  const bool same = GetParam().mode == VerifyMode::coupled && !GetParam().filtered();
  EXPECT_LE(different, same ? 0 : 3);
  RecordProperty("texts_that_ranks_changed", different);
}

INSTANTIATE_TEST_SUITE_P(Processors, Statistics,
                         testing::Values(kSampled, Processors{VerifyMode::rejection, 0.8f, 9, 0.9f},
                                         Processors{.mode = VerifyMode::coupled},
                                         Processors{VerifyMode::coupled, 0.8f, 9, 0.9f}),
                         [](const auto& info) {
                           const bool coupled = info.param.mode == VerifyMode::coupled;
                           return std::string(coupled ? "Coupled" : "Rejection") +
                                  (info.param.filtered() ? "Filtered" : "Plain");
                         });

// Against sums in fp64 over the whole row. fp32 exponentials err by 2^-22 each at most (math_test),
// so their sum does, and its logarithm by as much again; the difference rounds to fp32 below 32.
TEST(Verifier, LogprobsAreThoseOfTheWholeRow) {
  constexpr int kVocab = 700, kTop = 20;
  std::mt19937 random(4);
  std::vector<float> row = random_row(random, kVocab, 3.0f);
  for (float& logit : row) logit = std::round(2 * logit) / 2;  // ties, within ranks and across
  double sum = 0;
  for (const float logit : row) sum += std::exp(static_cast<double>(logit));
  std::vector<int32_t> order(kVocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
  for (const int ranks : {1, 2, 3}) {
    run_thread_ranks(ranks, [&](Communicator& communicator) {
      Rank rank(communicator, kVocab, 1);
      const auto results =
          rank.logprobs(row, {{.row = 0, .token = 123, .top_n = kTop}, {.row = 0, .token = 5}});
      for (const LogprobRow& result : results) {
        EXPECT_NEAR(result.log_sum_exp, std::log(sum), 1e-6);
      }
      EXPECT_EQ(results[0].token_logit, row[123]);
      EXPECT_EQ(results[1].token_logit, row[5]);
      EXPECT_EQ(results[1].num_top, 0);
      ASSERT_EQ(results[0].num_top, kTop);
      for (int i = 0; i < kTop; ++i) {
        EXPECT_EQ(results[0].top[i].token, order[i]);
        EXPECT_EQ(results[0].top[i].logit, row[order[i]]);
      }
    });
  }
}

}  // namespace
}  // namespace outrider
