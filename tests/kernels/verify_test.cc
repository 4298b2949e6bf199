// Summaries, candidates and filters against plain sorts and sums; the accept test and the commit.
#include "kernels/cpu/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cpu/distribution.h"

namespace outrider::cpu {
namespace {

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (isa_available(isa)) isas.push_back(isa);
  }
  return isas;
}

Processors sampled(float temperature, int32_t top_k, float top_p, double min_p = 0) {
  Processors processors{VerifyMode::rejection, temperature, top_k, top_p};
  if (min_p > 0) processors.min_p_reach = static_cast<float>(-temperature * std::log(min_p));
  return processors;
}

// Different shapes of a row: random, tied, all equal, ascending, descending, flat with spikes.
std::vector<std::vector<float>> rows_of(int n) {
  std::mt19937 random(n);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<std::vector<float>> rows(6, std::vector<float>(n));
  for (int i = 0; i < n; ++i) {
    rows[0][i] = normal(random);
    rows[1][i] = std::round(normal(random));
    rows[2][i] = 1.5f;
    rows[3][i] = static_cast<float>(i) / 64.0f;
    rows[4][i] = -static_cast<float>(i) / 64.0f;
    rows[5][i] = i % 97 == 0 ? 8.0f : normal(random) / 1000.0f;
  }
  return rows;
}

// Tokens in the order in which filters keep them.
std::vector<int32_t> order_of(const std::vector<float>& row) {
  std::vector<int32_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return row[a] > row[b]; });
  return order;
}

ShardSummary summarise(const std::vector<float>& row, int first_token, int drafted,
                       const Processors& processors, Candidate* candidates, Isa isa) {
  const VerifyRow what{0, drafted, processors.filtered() ? 0 : -1, processors};
  ShardSummary summary;
  verify_summary(row.data(), static_cast<int64_t>(row.size()), first_token, &what, 1, &summary,
                 candidates, isa);
  return summary;
}

// The row's distribution from shards of nearly equal size.
RowDistribution over_shards(const std::vector<float>& row, int shards,
                            const Processors& processors) {
  std::vector<ShardSummary> summaries;
  std::vector<std::vector<Candidate>> candidates(shards, std::vector<Candidate>(kCandidates));
  std::vector<const Candidate*> lists;
  const int n = static_cast<int>(row.size());
  for (int r = 0; r < shards; ++r) {
    const std::vector<float> part(row.begin() + n * r / shards, row.begin() + n * (r + 1) / shards);
    summaries.push_back(
        summarise(part, n * r / shards, -1, processors, candidates[r].data(), select_isa()));
    lists.push_back(candidates[r].data());
  }
  return combine_summaries(summaries.data(), lists.data(), shards, processors);
}

bool same_bits(const RowDistribution& a, const RowDistribution& b) {
  // Behind the last field there may be padding.
  return std::memcmp(&a, &b, offsetof(RowDistribution, resolved) + sizeof a.resolved) == 0;
}

TEST(VerifySummary, SumsOnlyWhereProbabilitiesAreLookedAt) {
  const std::vector<float> row(5, 1.0f);
  std::vector<Candidate> candidates(kCandidates);
  const auto sum_of = [&](VerifyMode mode, float top_p) {
    Processors processors = sampled(0.7f, 3, top_p);
    processors.mode = mode;
    return summarise(row, 0, 0, processors, candidates.data(), select_isa()).sum_exp;
  };
  EXPECT_EQ(sum_of(VerifyMode::rejection, 1.0f), 5.0);
  EXPECT_EQ(sum_of(VerifyMode::rejection, 0.9f), 5.0);
  EXPECT_EQ(sum_of(VerifyMode::coupled, 0.9f), 5.0);
  EXPECT_EQ(sum_of(VerifyMode::coupled, 1.0f), 0.0);
  EXPECT_EQ(sum_of(VerifyMode::greedy, 0.9f), 0.0);
}

TEST(VerifySummary, AgreesWithPlainLoopsOnEveryInstructionSet) {
  const Processors processors = sampled(0.7f, 5, 1.0f);
  for (const int n : {1, 2, 15, 16, 17, 128, 129, 1023, 1025, 9000, 70000}) {
    for (const auto& row : rows_of(n)) {
      const std::vector<int32_t> order = order_of(row);
      double sum = 0.0;
      for (const float x : row) sum += std::exp((double{x} - row[order[0]]) / 0.7f);
      std::vector<Candidate> first(kCandidates), candidates(kCandidates);
      const ShardSummary scalar =
          summarise(row, 100, 100 + n / 2, processors, first.data(), Isa::scalar);
      EXPECT_EQ(scalar.max, row[order[0]]);
      EXPECT_EQ(scalar.argmax, 100 + order[0]);
      EXPECT_EQ(scalar.draft_logit, row[n / 2]);
      EXPECT_EQ(scalar.non_finite, 0);
      EXPECT_EQ(scalar.shard_size, n);
      // exp_f32's 1.1e-7, and its argument, rounded twice to 2^-24: at most 90 of it matter.
      EXPECT_NEAR(scalar.sum_exp / sum, 1.0, 1.1e-7 + 90 * 0x1p-23);
      ASSERT_EQ(scalar.num_candidates, std::min(n, kCandidates));
      for (int i = 0; i < scalar.num_candidates; ++i) {
        EXPECT_EQ(first[i].token, 100 + order[i]);
        EXPECT_EQ(first[i].logit, row[order[i]]);
      }
      for (const Isa isa : available_isas()) {
        const ShardSummary other =
            summarise(row, 100, 100 + n / 2, processors, candidates.data(), isa);
        EXPECT_EQ(std::memcmp(&other, &scalar, sizeof other), 0) << isa_name(isa);
        EXPECT_EQ(
            std::memcmp(candidates.data(), first.data(), scalar.num_candidates * sizeof(Candidate)),
            0);
      }
    }
  }
}

TEST(VerifySummary, SeesWhatIsNotFinite) {
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    for (const int where : {0, 500, 2999}) {
      std::vector<float> row(3000, 1.0f);
      row[where] = bad;
      for (const Isa isa : available_isas()) {
        for (const Processors& processors : {Processors{}, sampled(1.0f, 3, 0.5f)}) {
          std::vector<Candidate> candidates(kCandidates);
          const ShardSummary summary = summarise(row, 0, -1, processors, candidates.data(), isa);
          EXPECT_EQ(summary.non_finite, 1);
          const Candidate* list = candidates.data();
          const RowDistribution p = combine_summaries(&summary, &list, 1, processors);
          EXPECT_EQ(p.non_finite, 1);
          EXPECT_EQ(p.resolved, 1);
          for (int v = 0; v < 3000; ++v) EXPECT_EQ(probability(p, row[v], v), 0.0);
        }
      }
    }
  }
}

// What is kept, and its probability, against sorting in double precision. Where a cumulative sum is
// nearer to the threshold than the arithmetic is good for, the case says nothing and is left out.
TEST(Filters, KeepWhatTheDefinitionKeeps) {
  int compared = 0;
  for (const int n : {1, 3, 7, 40, 300, 5000}) {
    for (const auto& row : rows_of(n)) {
      const std::vector<int32_t> order = order_of(row);
      for (const float temperature : {0.5f, 1.0f, 2.0f}) {
        for (const int top_k : {0, 1, 2, 50, 127, 128, 129, 2000}) {
          for (const float top_p : {1.0f, 0.999f, 0.9f, 0.5f, 0.01f}) {
            std::vector<double> mass(n);
            for (int i = 0; i < n; ++i) {
              mass[i] = std::exp((double{row[order[i]]} - row[order[0]]) / temperature);
            }
            // A third of the cases has a min_p.
            constexpr double kMinP[] = {0.3, 0, 0, 0, 0.02, 0, 0, 0, 1};
            const double min_p = kMinP[compared % 9];
            int k = top_k == 0 ? n : std::min(top_k, n);
            while (mass[k - 1] < min_p) --k;
            const double total = std::accumulate(mass.begin(), mass.begin() + k, 0.0);
            int kept = 0;
            double sum = 0.0;
            bool sharp = min_p == 1 || std::none_of(mass.begin(), mass.end(), [&](double m) {
                           return std::abs(m / min_p - 1) < 1e-5;
                         });
            while (kept < k && (top_p == 1.0f || sum < top_p * total)) {
              sum += mass[kept++];
              sharp &= top_p == 1.0f || std::abs(sum / total - top_p) > 1e-5;
            }
            ++compared;
            if (!sharp) continue;
            const RowDistribution p =
                process_row(row.data(), n, sampled(temperature, top_k, top_p, min_p), select_isa());
            ASSERT_EQ(p.resolved, 1);
            double worst = 0.0;
            for (int i = 0; i < n; ++i) {
              const double expected = i < kept ? mass[i] / sum : 0.0;
              worst = std::max(worst, std::abs(probability(p, row[order[i]], order[i]) - expected));
            }
            EXPECT_LT(worst, 1e-6) << n << " " << temperature << " " << top_k << " " << top_p;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 3000);
}

// One shard or many, candidates or the gathered row: the same cut. The masses of kept tokens are
// sums in fixed point, so where candidates suffice all bits agree; only top_p's threshold and an
// unfiltered row's sum see the shards' own roundings.
TEST(Filters, CandidatesAndGatheredRowsAgree) {
  int resolved = 0, gathered = 0;
  for (const int n : {3, 200, 600, 5000}) {
    for (const auto& row : rows_of(n)) {
      for (const int top_k : {0, 1, 20, 128, 200, 1000}) {
        for (const auto& [top_p, min_p] :
             {std::pair{1.0f, 0.0}, {0.95f, 0.0}, {0.3f, 0.0}, {1.0f, 0.05}, {0.95f, 0.4}}) {
          const Processors processors = sampled(0.9f, top_k, top_p, min_p);
          if (!processors.filtered()) continue;
          for (const int shards : {1, 2, 3}) {
            const RowDistribution p = over_shards(row, shards, processors);
            // Start anew from the same maximum and mass: only the way to the cut differs.
            RowDistribution whole = over_shards(row, shards, sampled(0.9f, 0, 1.0f));
            whole = resolve_row(whole, row.data(), n, processors, {}, select_isa());
            if (p.resolved == 0) {
              ++gathered;
              EXPECT_TRUE(
                  same_bits(resolve_row(p, row.data(), n, processors, {}, select_isa()), whole));
            } else {
              ++resolved;
              EXPECT_TRUE(same_bits(p, whole)) << n << " " << top_k << " " << top_p;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(resolved, 200);
  EXPECT_GT(gathered, 100);
}

TEST(Filters, EveryInstructionSetResolvesAlike) {
  for (const auto& row : rows_of(5000)) {
    const Processors processors = sampled(1.5f, 2000, 0.9f, 1e-3);
    const RowDistribution scalar = process_row(row.data(), 5000, processors, Isa::scalar);
    for (const Isa isa : available_isas()) {
      EXPECT_TRUE(same_bits(process_row(row.data(), 5000, processors, isa), scalar));
    }
  }
}

TEST(Filters, TiesAtTheCutAreKeptBySmallerToken) {
  const std::vector<float> row{1.0f, 3.0f, 2.0f, 2.0f, 2.0f, -0.0f, 0.0f};
  const auto kept = [&](const Processors& processors, int shards) {
    const RowDistribution p = over_shards(row, shards, processors);
    EXPECT_EQ(p.resolved, 1);
    std::vector<int> tokens;
    for (int v = 0; v < 7; ++v) {
      if (probability(p, row[v], v) > 0.0) tokens.push_back(v);
    }
    return tokens;
  };
  for (const int shards : {1, 2, 3}) {
    EXPECT_EQ(kept(sampled(1.0f, 1, 1.0f), shards), (std::vector{1}));
    EXPECT_EQ(kept(sampled(1.0f, 3, 1.0f), shards), (std::vector{1, 2, 3}));
    EXPECT_EQ(kept(sampled(1.0f, 6, 1.0f), shards), (std::vector{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(kept(sampled(1.0f, 0, 1e-6f), shards), (std::vector{1}));  // the crossing token
    EXPECT_EQ(kept(sampled(1.0f, 0, 1.0f, 1.0), shards), (std::vector{1}));
    EXPECT_EQ(kept(sampled(2.0f, 0, 1.0f, std::exp(-0.6)), shards), (std::vector{1, 2, 3, 4}));
    EXPECT_EQ(kept(sampled(2.0f, 3, 1.0f, std::exp(-0.6)), shards), (std::vector{1, 2, 3}));
    EXPECT_EQ(kept(sampled(2.0f, 0, 1.0f, std::exp(-1.25)), shards), (std::vector{0, 1, 2, 3, 4}));
    // Of the top 4, of masses 1, e^-1 three times: 0.48 + 0.17 do not reach 0.7, another 0.17 does.
    EXPECT_EQ(kept(sampled(1.0f, 4, 0.7f), shards), (std::vector{1, 2, 3}));
  }
}

// All equal: the candidates of the first shard are the best of all, though every logit ties.
TEST(Filters, TiesBetweenShardsDoNotForceAGather) {
  const std::vector<float> row(1000, 0.25f);
  const RowDistribution p = over_shards(row, 3, sampled(1.0f, 100, 1.0f));
  EXPECT_EQ(p.resolved, 1);
  EXPECT_EQ(p.cut_token, 99);
  EXPECT_EQ(over_shards(row, 3, sampled(1.0f, 129, 1.0f)).resolved, 0);
}

TEST(CombineSummaries, GreedyIsOneHotAtTheSmallestArgMaxOfAllRanks) {
  const std::vector<float> row{1.0f, 5.0f, 0.0f, 5.0f, 2.0f};
  for (const int shards : {1, 2, 3, 5}) {
    const RowDistribution p = over_shards(row, shards, {});
    EXPECT_EQ(p.choice, 1);
    for (int v = 0; v < 5; ++v) EXPECT_EQ(probability(p, row[v], v), v == 1 ? 1.0 : 0.0);
  }
}

TEST(VerifyAccept, ComparesWithoutDividing) {
  const double one[] = {1.0}, half[] = {0.5}, zero[] = {0.0}, nan[] = {NAN}, u[] = {0.5};
  EXPECT_EQ(verify_accept(half, one, u, 1), 0);  // u q = p: refused
  EXPECT_EQ(verify_accept(one, one, u, 1), 1);
  EXPECT_EQ(verify_accept(zero, one, zero, 1), 0);
  EXPECT_EQ(verify_accept(half, half, u, 1), 1);
  EXPECT_EQ(verify_accept(nan, one, zero, 1), 0);
  EXPECT_EQ(verify_accept(one, nan, zero, 1), 0);
  EXPECT_EQ(verify_accept(one, nan, u, 1), 0);
  const double p[] = {0.9, 0.1, 0.9}, q[] = {0.9, 0.9, 0.9}, us[] = {0.5, 0.5, 0.5};
  EXPECT_EQ(verify_accept(p, q, us, 3), 1);  // what lies behind a refusal does not count
  EXPECT_EQ(verify_accept(p, q, us, 0), 0);
}

TEST(VerifyCommit, TakesTheSmallestTimeThenTheSmallestToken) {
  const int32_t drafted[] = {42};
  RowDistribution p{};
  SequenceRows rows{};
  rows.drafted = drafted;
  rows.num_drafted = 1;
  rows.p = &p;
  const RaceResult results[] = {{2.0, 0, 0, 10, 0}, {1.0, 0, 0, 20, 0}, {1.0, 0, 0, 30, 0}};
  EXPECT_EQ(verify_commit(results, 3, 1, rows, 0), 20);
  EXPECT_EQ(verify_commit(results, 1, 1, rows, 0), 10);
  const RaceResult none[] = {{INFINITY, 0, 0, -1, 0}, {INFINITY, 0, 0, -1, 0}};
  EXPECT_EQ(verify_commit(none, 2, 1, rows, 0), 42);  // no residual anywhere: the refused token
}

TEST(ShardOverlap, IsTheSumOfMinimaOverReachedRows) {
  constexpr int kVocab = 700;
  const auto shapes = rows_of(kVocab);
  std::vector<float> target, draft;
  for (const int row : {0, 1, 5})
    target.insert(target.end(), shapes[row].begin(), shapes[row].end());
  for (const int row : {1, 0}) draft.insert(draft.end(), shapes[row].begin(), shapes[row].end());
  const Processors processors = sampled(1.0f, 0, 0.9f);
  RowDistribution p[3], q[2];
  for (int i = 0; i < 3; ++i)
    p[i] = process_row(&target[i * kVocab], kVocab, processors, select_isa());
  for (int i = 0; i < 2; ++i)
    q[i] = process_row(&draft[i * kVocab], kVocab, processors, select_isa());
  double expected[2] = {};
  for (int i = 0; i < 2; ++i) {
    for (int v = 0; v < kVocab; ++v) {
      expected[i] += std::min(probability(p[i], target[i * kVocab + v], v),
                              probability(q[i], draft[i * kVocab + v], v));
    }
  }
  const int32_t drafted[] = {0, 1};
  SequenceRows rows{target.data(), draft.data(), drafted, p, q, 2, 0, kVocab, kVocab};
  for (const Isa isa : available_isas()) {  // sums of 700 numbers below 1: 700 * 2^-53
    EXPECT_NEAR(shard_overlap(rows, 0, 1.0f, isa).sum, expected[0], 1e-13);
    EXPECT_NEAR(shard_overlap(rows, 1, 1.0f, isa).sum, expected[0] + expected[1], 1e-13);
    EXPECT_NEAR(shard_overlap(rows, 2, 1.0f, isa).sum, expected[0] + expected[1], 1e-13);
    EXPECT_EQ(shard_overlap(rows, 2, 1.0f, isa).sum, shard_overlap(rows, 2, 1.0f, Isa::scalar).sum);
  }
}

}  // namespace
}  // namespace outrider::cpu
