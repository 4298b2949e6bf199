// Verifier over ranks as threads, and what one sequence brings to a step.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "comm/thread_communicator.h"
#include "exactness.h"
#include "spec/verifier.h"

namespace outrider {

// What one sequence brings to a step, over the whole vocabulary.
struct Case {
  std::vector<std::vector<float>> target;  // [K + 1][vocab]
  std::vector<std::vector<float>> draft;   // [K][vocab]; empty: copied
  std::vector<int32_t> drafted;            // [K]
  Processors processors;
  RandomKey key{.seed = 1, .choice = 0, .base = 1};
  int alternative_of = -1;  // as VerifyWork says; then this is the token
  int32_t alternative = 0;
};

// One rank's Verifier, and the memory that a step needs.
class Rank {
 public:
  Rank(Communicator& communicator, int vocab, int max_sequences)
      : backend_(make_cpu_backend()),
        vocab_(vocab),
        shard_(exactness::make_shards(vocab, communicator.size())[communicator.rank()]),
        verifier_(*backend_, communicator, vocab, shard_.first, shard_.size,
                  max_sequences * (kMaxDraftTokens + 1), max_sequences) {}

  std::span<const Verdict> verify(const std::vector<Case>& cases, uint64_t digest = 7) {
    target_.clear();
    draft_.clear();
    q_.clear();
    drafted_.clear();
    for (const Case& c : cases) {
      drafted_.insert(drafted_.end(), c.drafted.begin(), c.drafted.end());
      for (const auto& row : c.draft) {
        draft_.insert(draft_.end(), row.begin(), row.end());
        q_.push_back(cpu::process_row(row.data(), vocab_, c.processors, cpu::select_isa()));
      }
      for (const auto& row : c.target) {
        const auto begin = row.begin() + shard_.first;
        target_.insert(target_.end(), begin, begin + shard_.size);
      }
    }
    std::vector<VerifyWork> work;
    const RowDistribution* q = q_.data();
    const float* draft = draft_.data();
    const int32_t* drafted = drafted_.data();
    int64_t row = 0;
    for (const Case& c : cases) {
      int32_t* const alternative = verifier_.drafted() + work.size();
      if (c.alternative_of >= 0) *alternative = c.alternative;
      work.push_back({.first_row = row,
                      .num_drafted = static_cast<int>(c.drafted.size()),
                      .drafted = drafted,
                      .draft_logits = c.draft.empty() ? nullptr : draft,
                      .draft_rows = q,
                      .processors = c.processors,
                      .key = c.key,
                      .alternative_of = c.alternative_of,
                      .alternative = c.alternative_of >= 0 ? alternative : nullptr});
      row += static_cast<int64_t>(c.target.size());
      draft += c.draft.size() * vocab_;
      q += c.draft.size();
      drafted += c.drafted.size();
    }
    const TensorView logits(target_.data(), DType::f32, {row, shard_.size});
    verifier_.prepare(work, {}, logits, 0, digest, stream_);
    verifier_.enqueue(stream_);
    return verifier_.finish(stream_);
  }

  // Of one row over the whole vocabulary.
  std::span<const LogprobRow> logprobs(const std::vector<float>& row,
                                       const std::vector<LogprobQuery>& queries) {
    std::vector<float> shard(row.begin() + shard_.first, row.begin() + shard_.first + shard_.size);
    verifier_.prepare({}, queries, TensorView(shard.data(), DType::f32, {1, shard_.size}), 0, 0,
                      stream_);
    verifier_.enqueue(stream_);
    verifier_.finish(stream_);
    return verifier_.logprobs();
  }

 private:
  std::unique_ptr<Backend> backend_;
  int vocab_;
  exactness::Shard shard_;
  Verifier verifier_;
  Stream stream_;
  std::vector<float> target_, draft_;
  std::vector<RowDistribution> q_;
  std::vector<int32_t> drafted_;
};

// A drafted token.
inline int32_t draw(const std::vector<float>& logits, const Processors& processors,
                    const RandomKey& key, int offset) {
  const auto vocab = static_cast<int64_t>(logits.size());
  const cpu::Isa isa = cpu::select_isa();
  return cpu::sample_draft(logits.data(), vocab,
                           cpu::process_row(logits.data(), vocab, processors, isa),
                           {.processors = processors, .key = key, .offset = offset}, isa);
}

inline std::string describe(const Verdict& v) {
  return testing::PrintToString(
      std::vector<double>{double(v.num_accepted), double(v.extra_token), double(v.non_finite),
                          double(v.gathered), double(v.alpha_rows), v.alpha_sum, v.shift_sum});
}

// The verdicts of one step; all ranks must have the same.
inline std::vector<Verdict> verify_over(int ranks, const std::vector<Case>& cases) {
  std::vector<std::vector<Verdict>> verdicts(ranks);
  run_thread_ranks(ranks, [&](Communicator& communicator) {
    Rank rank(communicator, static_cast<int>(cases[0].target[0].size()),
              static_cast<int>(cases.size()));
    const auto result = rank.verify(cases);
    verdicts[communicator.rank()].assign(result.begin(), result.end());
  });
  for (int r = 1; r < ranks; ++r) {
    for (size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(describe(verdicts[r][i]), describe(verdicts[0][i]));
    }
  }
  return verdicts[0];
}

inline std::vector<float> random_row(std::mt19937& random, int vocab, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> row(vocab);
  for (float& x : row) x = normal(random);
  return row;
}

}  // namespace outrider
