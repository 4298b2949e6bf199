// Drafting and verification on the device against the CPU's kernels, over shards, with every
// processor, with ties, and with rows that hold a NaN or an infinity.
#include "kernels/cuda/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device_array.h"
#include "kernels/cpu/distribution.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/verify.h"
#include "kernels/cuda/distribution.h"
#include "kernels/cuda/sample.h"

namespace outrider::cuda {
namespace {

constexpr int kK = 3;  // tokens drafted for a sequence
constexpr int kSequences = 14;
constexpr int kRows = kSequences * (kK + 1);
constexpr float kNaNf = std::numeric_limits<float>::quiet_NaN();

Processors sampled(float temperature, int top_k, float top_p, float min_p_reach = -1.0f,
                   float lenience = 1.0f) {
  return {.mode = VerifyMode::rejection,
          .temperature = temperature,
          .top_k = top_k,
          .top_p = top_p,
          .min_p_reach = min_p_reach,
          .lenience = lenience};
}

Processors coupled(float temperature, int top_k, float top_p, float min_p_reach = -1.0f) {
  Processors processors = sampled(temperature, top_k, top_p, min_p_reach);
  processors.mode = VerifyMode::coupled;
  return processors;
}

const Processors kProcessors[kSequences] = {{},
                                            sampled(1.0f, 0, 1.0f),
                                            sampled(0.7f, 0, 0.9f),
                                            sampled(1.3f, 40, 1.0f),
                                            sampled(1.0f, 300, 0.95f),
                                            sampled(2.0f, 1, 0.5f),
                                            sampled(1.0f, 0, 1.0f, 3.0f),
                                            sampled(0.8f, 200, 0.9f, 1.5f),
                                            coupled(0.8f, 0, 1.0f),
                                            coupled(1.2f, 40, 0.9f, 4.0f),
                                            coupled(1.0f, 0, 0.95f),
                                            coupled(1.0f, 300, 1.0f),
                                            sampled(1.0f, 0, 1.0f, -1.0f, 0.5f),
                                            {.lenience = 0.3f}};

enum class Kind { normal, tied, flat, broken };

std::vector<float> random_logits(int64_t rows, int64_t size, Kind kind, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, kind == Kind::flat ? 0.01f : 2.0f);
  std::vector<float> logits(rows * size);
  for (float& x : logits) {
    x = normal(random);
    if (kind == Kind::tied) x = std::round(x);
  }
  if (kind == Kind::broken) {
    for (int64_t r = 0; r < rows; r += 2) {
      logits[r * size + random() % size] = r % 4 == 0 ? kNaNf : -INFINITY;
    }
  }
  return logits;
}

// Behind the only row of a sequence without drafts.
bool is_nobodys(int row) { return row / (kK + 1) == 5 && row % (kK + 1) > 0; }

template <class T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

struct Case {
  int64_t vocab;
  int ranks;
  Kind kind;
};

std::string name_of(const Case& c) {
  const char* const kinds[] = {"Normal", "Tied", "Flat", "Broken"};
  return std::to_string(c.vocab) + "Over" + std::to_string(c.ranks) +
         kinds[static_cast<int>(c.kind)];
}

class VerifyParity : public testing::TestWithParam<Case> {
 protected:
  VerifyParity()
      : vocab_(GetParam().vocab),
        workspace_(verify_workspace_bytes(kRows, vocab_)),
        arrivals_(verify_arrivals_bytes(kRows) / sizeof(unsigned)) {}

  VerifyScratch scratch() const { return {workspace_.data(), arrivals_.data()}; }
  // Whatever ran has left the counts as it found them.
  void TearDown() override { EXPECT_THAT(arrivals_.values(), testing::Each(0u)); }

  int64_t vocab_;
  cudaStream_t stream_ = nullptr;
  DeviceArray<std::byte> workspace_;
  DeviceArray<unsigned> arrivals_;
};

void expect_near(double a, double b, double relative, const char* what) {
  EXPECT_LE(std::abs(a - b), relative * std::abs(b)) << what << ": " << a << ", expected " << b;
}

// exp_f32 errs alike on both sides, but relative to the chunk's maximum here: 2^-22 a token, and
// the errors of a sum are no larger. fp64 adds nothing that shows.
constexpr double kSumTolerance = 1.0 / (1 << 22);

// logits: a row of each of the processors, by turns.
void expect_same_drafts(std::vector<float> logits, int64_t vocab,
                        std::span<const Processors> processors, const VerifyScratch& scratch) {
  const auto num_rows = static_cast<int>(std::ssize(logits) / vocab);
  const DeviceArray<float> device_logits(logits);
  std::vector<DraftRow> rows;
  bool all_greedy = true;
  for (int r = 0; r < num_rows; ++r) {
    rows.push_back({.processors = processors[r % processors.size()],
                    .key = {.seed = 7, .choice = 1, .base = static_cast<uint32_t>(r)},
                    .offset = r % 5,
                    .drafted = num_rows - 1 - r});
    all_greedy = all_greedy && rows.back().processors.mode == VerifyMode::greedy;
  }
  std::vector<int32_t> expected(num_rows);
  std::vector<RowDistribution> expected_q(num_rows);
  std::vector<float> expected_logits(num_rows * vocab, -1.0f);
  cpu::sample_drafts(logits.data(), vocab, rows.data(), num_rows, expected.data(),
                     expected_q.data(), expected_logits.data(), cpu::select_isa());
  const DeviceArray<DraftRow> device_rows(rows);
  const DeviceArray<int32_t> drafted(num_rows);
  const DeviceArray<RowDistribution> q(num_rows);
  const DeviceArray<float> q_logits(std::vector<float>(num_rows * vocab, -1.0f));
  sample_drafts(device_logits.data(), vocab, device_rows.data(), num_rows, all_greedy,
                drafted.data(), q.data(), q_logits.data(), scratch, nullptr);
  EXPECT_EQ(drafted.values(), expected);
  // Bytes: NaNs are kept as they are, and only rows drawn by rejection are.
  const auto kept = q_logits.values();
  EXPECT_EQ(std::memcmp(kept.data(), expected_logits.data(), kept.size() * sizeof(float)), 0);
  for (int r = 0; r < num_rows; ++r) {
    const bool rejects = rows[r].processors.mode == VerifyMode::rejection;
    const float first = logits[r * vocab];
    if (std::isnan(first)) continue;
    EXPECT_EQ(kept[rows[r].drafted * vocab], rejects ? first : -1.0f);
  }
  const auto values = q.values();
  for (int i = 0; i < num_rows; ++i) {
    EXPECT_EQ(values[i].non_finite, expected_q[i].non_finite);
    if (expected_q[i].non_finite != 0) continue;
    EXPECT_EQ(values[i].max, expected_q[i].max);
    EXPECT_EQ(values[i].choice, expected_q[i].choice);
    EXPECT_EQ(values[i].choice_logit, expected_q[i].choice_logit);
    EXPECT_EQ(values[i].cut_logit, expected_q[i].cut_logit);
    EXPECT_EQ(values[i].cut_token, expected_q[i].cut_token);
    EXPECT_EQ(values[i].resolved, 1);
    expect_near(values[i].sum, expected_q[i].sum, kSumTolerance, "sum");
  }
}

TEST_P(VerifyParity, DraftsAreTheCpus) {
  expect_same_drafts(random_logits(kRows, vocab_, GetParam().kind, 1), vocab_, kProcessors,
                     scratch());
}

TEST_P(VerifyParity, GreedyDraftsAreTheCpus) {
  constexpr Processors kGreedy[] = {{}};
  expect_same_drafts(random_logits(kRows, vocab_, GetParam().kind, 1), vocab_, kGreedy, scratch());
}

// Drawn again and again from the same logits, a token is never drawn twice.
TEST_P(VerifyParity, AlternativesAreTheCpus) {
  constexpr int kDraws = 4;
  auto logits = random_logits(kRows, vocab_, GetParam().kind, 4);
  const DeviceArray<float> device_logits(logits);
  const DeviceArray<int32_t> drafted(kDraws * kRows);
  const DeviceArray<RowDistribution> q(kDraws * kRows);
  std::vector<int32_t> expected(kDraws * kRows);
  std::vector<RowDistribution> expected_q(kDraws * kRows);
  std::vector<float> expected_logits(kDraws * kRows * vocab_, -1.0f);
  const DeviceArray<float> q_logits(expected_logits);
  for (int draw = 0; draw < kDraws; ++draw) {
    std::vector<DraftRow> rows;
    for (int r = 0; r < kRows; ++r) {
      rows.push_back({.processors = kProcessors[r % kSequences],
                      .key = {.seed = 7, .choice = 1, .base = static_cast<uint32_t>(r)},
                      .offset = 0,
                      .drafted = draw * kRows + r,
                      .masked = draw == 0 ? -1 : (draw - 1) * kRows + r});
      DraftRow& row = rows.back();
      if (draw == 0 || row.processors.mode != VerifyMode::rejection) continue;
      row.processors.mode = VerifyMode::coupled;
      row.foretells_extra = 1;
    }
    cpu::sample_drafts(logits.data(), vocab_, rows.data(), kRows, expected.data(),
                       expected_q.data(), expected_logits.data(), cpu::select_isa());
    const DeviceArray<DraftRow> device_rows(rows);
    sample_drafts(device_logits.data(), vocab_, device_rows.data(), kRows, /*all_greedy=*/false,
                  drafted.data(), q.data(), q_logits.data(), scratch(), stream_);
    EXPECT_EQ(drafted.values(), expected);
  }
  const auto kept = q_logits.values();  // of the first draws, before anything was masked
  EXPECT_EQ(std::memcmp(kept.data(), expected_logits.data(), kept.size() * sizeof(float)), 0);
  for (int r = 0; r < kRows; ++r) {
    if (expected_q[r].non_finite != 0 || vocab_ <= kDraws) continue;
    std::set<int32_t> distinct;
    for (int draw = 0; draw < kDraws; ++draw) distinct.insert(expected[draw * kRows + r]);
    EXPECT_EQ(distinct.size(), kDraws);
  }
}

// One step of all sequences over the ranks' shards; the exchanges are copies. Each side's summaries
// go through both sides' later functions, which must then agree bit for bit.
TEST_P(VerifyParity, StepsAreTheCpus) {
  const int ranks = GetParam().ranks;
  const auto target = random_logits(kRows, vocab_, GetParam().kind, 2);
  auto draft = random_logits(kSequences * kK, vocab_, GetParam().kind, 3);
  const cpu::Isa isa = cpu::select_isa();

  // What was drafted: sequence 1 by copying.
  std::vector<DraftRow> draft_rows;
  for (int s = 0; s < kSequences; ++s) {
    for (int i = 0; i < kK; ++i) {
      draft_rows.push_back({.processors = kProcessors[s],
                            .key = {.seed = 5, .choice = 0, .base = 10},
                            .offset = i,
                            .drafted = s * kK + i});
    }
  }
  std::vector<int32_t> drafted(kSequences * kK);
  std::vector<RowDistribution> q(kSequences * kK);
  std::vector<float> q_logits(draft.size());
  cpu::sample_drafts(draft.data(), vocab_, draft_rows.data(), kSequences * kK, drafted.data(),
                     q.data(), q_logits.data(), isa);
  const DeviceArray<float> device_draft(draft);
  const DeviceArray<int32_t> device_drafted(drafted);
  const DeviceArray<RowDistribution> device_q(q);

  std::vector<VerifyRow> rows;
  int32_t num_filtered = 0;
  for (int s = 0; s < kSequences; ++s) {
    for (int i = 0; i <= kK; ++i) {
      rows.push_back(
          {.logits_row = s * (kK + 1) + i,
           .draft_token = i < kK ? drafted[s * kK + i] : -1,
           .candidates_slot = kProcessors[s].filtered() ? num_filtered++ : -1,
           .processors = kProcessors[s],
           .key = {.seed = 5, .choice = 0, .base = static_cast<uint32_t>(10 + i)},
           .races = kProcessors[s].mode == VerifyMode::coupled && !kProcessors[s].filtered()});
    }
  }
  const DeviceArray<VerifyRow> device_rows(rows);

  // Exchange A.
  const size_t bytes = SummaryMessage::bytes(kRows, num_filtered);
  std::vector<std::byte> all(ranks * bytes);
  std::vector<std::vector<float>> shards;
  for (int r = 0; r < ranks; ++r) {
    const int64_t first = vocab_ * r / ranks, size = vocab_ * (r + 1) / ranks - first;
    std::vector<float>& shard = shards.emplace_back();
    for (int row = 0; row < kRows; ++row) {
      const auto begin = target.begin() + row * vocab_ + first;
      shard.insert(shard.end(), begin, begin + size);
    }
    const SummaryMessage expected{all.data() + r * bytes, kRows};
    expected.digest() = 3;
    cpu::verify_summary(shard.data(), size, static_cast<int32_t>(first), rows.data(), kRows,
                        expected.summaries(), expected.candidates(), isa);
    const DeviceArray<float> device_shard(shard);
    const DeviceArray<ShardSummary> summaries(kRows);
    const DeviceArray<Candidate> candidates(num_filtered * kCandidates);
    verify_summary(device_shard.data(), size, static_cast<int32_t>(first), device_rows.data(),
                   kRows, num_filtered, summaries.data(), candidates.data(), scratch(), stream_);
    const auto got = summaries.values();
    const auto got_candidates = candidates.values();
    for (int row = 0; row < kRows; ++row) {
      const ShardSummary& want = expected.summaries()[row];
      EXPECT_EQ(got[row].non_finite, want.non_finite);
      EXPECT_EQ(got[row].draft_token, want.draft_token);
      EXPECT_EQ(got[row].shard_size, want.shard_size);
      EXPECT_EQ(got[row].num_candidates, want.num_candidates);
      if (want.non_finite != 0) continue;
      EXPECT_EQ(got[row].max, want.max);
      EXPECT_EQ(got[row].argmax, want.argmax);
      EXPECT_EQ(got[row].draft_logit, want.draft_logit);
      EXPECT_TRUE(same_bits(got[row].runner, want.runner)) << "row " << row;
      expect_near(got[row].sum_exp, want.sum_exp, kSumTolerance, "sum_exp");
      for (int c = 0; c < want.num_candidates; ++c) {
        const int64_t at = int64_t{rows[row].candidates_slot} * kCandidates + c;
        EXPECT_TRUE(same_bits(got_candidates[at], expected.candidates()[at])) << "candidate " << c;
      }
    }
  }

  // What every rank makes of it.
  std::vector<RowDistribution> p(kRows);
  ASSERT_EQ(cpu::combine_rows({all.data(), bytes, kRows, ranks}, rows.data(), kRows, p.data()), 0u);
  const auto make_sequences = [&](const float* shard, int64_t first, int64_t size,
                                  const float* draft_logits, const int32_t* tokens,
                                  const RowDistribution* row_p, const RowDistribution* row_q) {
    std::vector<SequenceToVerify> sequences;
    for (int s = 0; s < kSequences; ++s) {
      sequences.push_back(
          {.rows = {.target_logits = shard + s * (kK + 1) * size,
                    .draft_logits = s == 1 ? nullptr : draft_logits + s * kK * vocab_,
                    .drafted = tokens + s * kK,
                    .p = row_p + s * (kK + 1),
                    .q = row_q + s * kK,
                    .num_drafted = s == 5 ? 0 : kK,
                    .first_token = static_cast<int32_t>(first),
                    .shard_size = static_cast<int32_t>(size),
                    .vocab_size = static_cast<int32_t>(vocab_)},
           .processors = kProcessors[s],
           .key = {.seed = 5, .choice = 0, .base = 10}});
    }
    return sequences;
  };
  const DeviceArray<std::byte> device_all(all);
  const DeviceArray<RowDistribution> device_p(p.size());
  const DeviceArray<uint64_t> disagreeing(1);
  const DeviceArray<Verdict> device_verdicts(kSequences);
  std::vector<Verdict> verdicts(kSequences);
  const auto first_look =
      make_sequences(nullptr, 0, 0, draft.data(), drafted.data(), p.data(), q.data());
  const DeviceArray<SequenceToVerify> device_first_look(make_sequences(
      nullptr, 0, 0, device_draft.data(), device_drafted.data(), device_p.data(), device_q.data()));
  cpu::accept_step(first_look.data(), kSequences, verdicts.data());
  combine_and_accept({device_all.data(), bytes, kRows, ranks}, device_rows.data(), kRows,
                     device_p.data(), disagreeing.data(), device_first_look.data(), kSequences,
                     device_verdicts.data(), stream_);
  const auto first_verdicts = device_verdicts.values();
  for (int s = 0; s < kSequences; ++s) {
    EXPECT_EQ(first_verdicts[s].num_accepted, verdicts[s].num_accepted) << "sequence " << s;
    EXPECT_EQ(first_verdicts[s].extra_token, verdicts[s].extra_token);
    EXPECT_EQ(first_verdicts[s].non_finite, verdicts[s].non_finite);
    EXPECT_EQ(first_verdicts[s].unresolved, verdicts[s].unresolved);
  }
  EXPECT_EQ(disagreeing.values()[0], 0u);
  auto got_p = device_p.values();
  const DeviceArray<float> device_target(target);
  std::vector<RowToResolve> unresolved, device_unresolved;
  for (int row = 0; row < kRows; ++row) {
    if (is_nobodys(row)) continue;
    EXPECT_TRUE(same_bits(got_p[row], p[row])) << "row " << row;
    if (p[row].resolved != 0) continue;
    const Processors& processors = rows[row].processors;
    const RandomKey& key = rows[row].key;
    unresolved.push_back({&target[row * vocab_], processors, key, &p[row]});
    device_unresolved.push_back(
        {device_target.data() + row * vocab_, processors, key, device_p.data() + row});
  }
  const auto num_unresolved = static_cast<int64_t>(unresolved.size());
  cpu::resolve_rows(unresolved.data(), num_unresolved, vocab_, isa);
  const DeviceArray<RowToResolve> device_rows_to_resolve(device_unresolved);
  resolve_rows(device_rows_to_resolve.data(), num_unresolved, vocab_, stream_);
  got_p = device_p.values();
  for (int row = 0; row < kRows; ++row) {
    EXPECT_TRUE(is_nobodys(row) || same_bits(got_p[row], p[row])) << "row " << row;
  }

  // Exchange B, and the verdicts.
  std::vector<RaceResult> races(ranks * kSequences);
  std::vector<std::vector<SequenceToVerify>> of_ranks;
  for (int r = 0; r < ranks; ++r) {
    const int64_t first = vocab_ * r / ranks, size = vocab_ * (r + 1) / ranks - first;
    const DeviceArray<float> device_shard(shards[r]);
    const auto sequences = make_sequences(shards[r].data(), first, size, draft.data(),
                                          drafted.data(), p.data(), q.data());
    of_ranks.push_back(sequences);
    cpu::accept_step(sequences.data(), kSequences, verdicts.data());
    cpu::race_step(sequences.data(), kSequences, verdicts.data(), &races[r * kSequences], isa);

    const DeviceArray<SequenceToVerify> on_device(
        make_sequences(device_shard.data(), first, size, device_draft.data(), device_drafted.data(),
                       device_p.data(), device_q.data()));
    const DeviceArray<RaceResult> results(kSequences);
    accept_step(on_device.data(), kSequences, device_verdicts.data(), stream_);
    race_step(on_device.data(), kSequences, size, device_verdicts.data(), results.data(), scratch(),
              stream_);
    const auto got = results.values();
    for (int s = 0; s < kSequences; ++s) {
      const RaceResult& want = races[r * kSequences + s];
      EXPECT_EQ(got[s].token, want.token);
      EXPECT_EQ(got[s].time, want.time);
      EXPECT_EQ(got[s].logit, want.logit);
      EXPECT_NEAR(got[s].overlap, want.overlap, 1e-9);
      EXPECT_NEAR(got[s].shift, want.shift, 1e-9);
    }
    const auto got_verdicts = device_verdicts.values();
    for (int s = 0; s < kSequences; ++s) {
      EXPECT_EQ(got_verdicts[s].num_accepted, verdicts[s].num_accepted) << "sequence " << s;
      EXPECT_EQ(got_verdicts[s].non_finite, verdicts[s].non_finite);
      EXPECT_EQ(got_verdicts[s].unresolved, 0);
    }
    if (r + 1 < ranks) continue;

    // A rank alone does it at once, with the same sums.
    const DeviceArray<Verdict> alone(got_verdicts);
    const DeviceArray<RaceResult> device_races(races);
    if (ranks == 1) {
      race_and_commit(on_device.data(), kSequences, size, alone.data(), results.data(), scratch(),
                      stream_);
      commit_step(on_device.data(), kSequences, results.data(), 1, device_verdicts.data(), stream_);
      const auto at_once = alone.values(), one_by_one = device_verdicts.values();
      for (int s = 0; s < kSequences; ++s) EXPECT_TRUE(same_bits(at_once[s], one_by_one[s])) << s;
    }
    commit_step(on_device.data(), kSequences, device_races.data(), ranks, device_verdicts.data(),
                stream_);
    cpu::commit_step(of_ranks[0].data(), kSequences, races.data(), ranks, verdicts.data());
    const auto committed = device_verdicts.values();
    for (int s = 0; s < kSequences; ++s) {
      EXPECT_EQ(committed[s].extra_token, verdicts[s].extra_token);
      if (verdicts[s].non_finite != 0) continue;
      EXPECT_EQ(committed[s].extra_logit, verdicts[s].extra_logit);
      EXPECT_EQ(committed[s].alpha_rows, verdicts[s].alpha_rows);
      EXPECT_EQ(committed[s].alpha_sum, verdicts[s].alpha_sum);
      EXPECT_EQ(committed[s].shift_sum, verdicts[s].shift_sum);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, VerifyParity,
                         testing::Values(Case{3, 1, Kind::normal}, Case{50, 2, Kind::normal},
                                         Case{130, 3, Kind::tied}, Case{1000, 2, Kind::flat},
                                         Case{4096, 1, Kind::tied}, Case{9001, 1, Kind::normal},
                                         Case{9001, 2, Kind::normal}, Case{9001, 3, Kind::broken},
                                         Case{9000, 2, Kind::flat}, Case{34001, 1, Kind::tied},
                                         Case{34001, 2, Kind::normal}),
                         [](const auto& info) { return name_of(info.param); });

// More chunks, of 1,024 tokens, than a block has threads to merge them; the last one decides.
TEST(VerifyParityOfManyChunks, DraftsAndSummariesAreTheCpus) {
  constexpr int64_t kVocab = 128 * 1024 + 5;
  const Processors processors[] = {kProcessors[0], kProcessors[1], kProcessors[8]};
  constexpr int kNumRows = std::size(processors);
  auto logits = random_logits(kNumRows, kVocab, Kind::normal, 6);
  for (int r = 0; r < kNumRows; ++r) logits[(r + 1) * kVocab - 2] = 20.0f;
  const DeviceArray<std::byte> workspace(verify_workspace_bytes(kNumRows, kVocab));
  const DeviceArray<unsigned> arrivals(kNumRows);
  const VerifyScratch scratch = {workspace.data(), arrivals.data()};
  expect_same_drafts(logits, kVocab, processors, scratch);

  std::vector<VerifyRow> rows;
  for (int r = 0; r < kNumRows; ++r) {
    rows.push_back({.logits_row = r,
                    .draft_token = -1,
                    .candidates_slot = -1,
                    .processors = processors[r],
                    .key = {.seed = 5, .choice = 0, .base = 10},
                    .races = processors[r].mode == VerifyMode::coupled});
  }
  std::vector<ShardSummary> expected(kNumRows);
  cpu::verify_summary(logits.data(), kVocab, 0, rows.data(), kNumRows, expected.data(), nullptr,
                      cpu::select_isa());
  const DeviceArray<float> device_logits(logits);
  const DeviceArray<VerifyRow> device_rows(rows);
  const DeviceArray<ShardSummary> summaries(kNumRows);
  verify_summary(device_logits.data(), kVocab, 0, device_rows.data(), kNumRows, 0, summaries.data(),
                 nullptr, scratch, nullptr);
  const auto got = summaries.values();
  for (int r = 0; r < kNumRows; ++r) {
    EXPECT_EQ(got[r].argmax, kVocab - 2);
    EXPECT_TRUE(same_bits(got[r].runner, expected[r].runner)) << "row " << r;
    expect_near(got[r].sum_exp, expected[r].sum_exp, kSumTolerance, "sum_exp");
  }
}

TEST(VerifyParityCombine, NamesTheRanksThatDisagree) {
  const size_t bytes = SummaryMessage::bytes(1, 0);
  std::vector<std::byte> all(4 * bytes);
  for (int r = 0; r < 4; ++r) {
    const SummaryMessage message{all.data() + r * bytes, 1};
    message.digest() = r == 1 ? 8 : 9;
    message.summaries()[0] = {.max = 1.0f, .argmax = r, .shard_size = 1, .draft_token = r / 3};
  }
  const DeviceArray<std::byte> device_all(all);
  const DeviceArray<VerifyRow> rows(std::vector<VerifyRow>{{.candidates_slot = -1}});
  const DeviceArray<RowDistribution> p(1);
  const DeviceArray<uint64_t> disagreeing(1);
  combine_and_accept({device_all.data(), bytes, 1, 4}, rows.data(), 1, p.data(), disagreeing.data(),
                     nullptr, 0, nullptr, nullptr);
  EXPECT_EQ(disagreeing.values()[0], 0b1010u);
}

}  // namespace
}  // namespace outrider::cuda
