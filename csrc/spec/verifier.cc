#include "spec/verifier.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/distribution.h"
#include "kernels/cpu/verify.h"

namespace outrider {

namespace {

TensorView bytes_of(const Buffer& buffer, size_t bytes) {
  return buffer.view(DType::u8, {static_cast<int64_t>(bytes)});
}

// A rank's message in exchange A: digest, summaries of all rows, candidates of the filtered ones.
struct Message {
  std::byte* data;
  int64_t num_rows;

  static size_t bytes(int64_t num_rows, int64_t num_filtered) {
    return sizeof(uint64_t) + num_rows * sizeof(ShardSummary) +
           num_filtered * kCandidates * sizeof(Candidate);
  }
  uint64_t& digest() const { return *reinterpret_cast<uint64_t*>(data); }
  ShardSummary* summaries() const {
    return reinterpret_cast<ShardSummary*>(data + sizeof(uint64_t));
  }
  Candidate* candidates() const { return reinterpret_cast<Candidate*>(summaries() + num_rows); }
};
static_assert(sizeof(ShardSummary) % sizeof(uint64_t) == 0 &&
              sizeof(Candidate) == sizeof(uint64_t));

}  // namespace

Verifier::Verifier(Backend& backend, Communicator& communicator, int64_t vocab_size,
                   int64_t first_token, int64_t shard_size, int64_t max_rows, int64_t max_sequences)
    : communicator_(communicator),
      isa_(cpu::select_isa()),
      vocab_size_(vocab_size),
      first_token_(first_token),
      shard_size_(shard_size),
      max_rows_(max_rows),
      max_sequences_(max_sequences),
      shards_(communicator.size()) {
  const int ranks = communicator.size();
  if (ranks > kMaxRanks) {
    throw Error(absl::StrCat(ranks, " ranks; expected at most ", kMaxRanks));
  }
  Stream stream;
  Shard mine{first_token, shard_size};
  communicator.all_gather(TensorView(&mine, DType::u8, {sizeof(Shard)}),
                          TensorView(shards_.data(), DType::u8, {ranks, sizeof(Shard)}), stream);
  int64_t covered = 0;
  for (int r = 0; r < ranks; ++r) {
    if (shards_[r].first_token != covered) {
      throw Error(absl::StrCat("vocabulary shard of rank ", r, " starts at token ",
                               shards_[r].first_token, ", expected ", covered));
    }
    covered += shards_[r].size;
    largest_shard_ = std::max(largest_shard_, shards_[r].size);
  }
  if (covered != vocab_size) {
    throw Error(absl::StrCat("vocabulary shards hold ", covered, " tokens, expected ", vocab_size));
  }

  const size_t message = Message::bytes(2 * max_rows, 2 * max_rows);
  mine_ = backend.allocate(message);
  all_ = backend.allocate(ranks * message);
  my_race_ = backend.allocate(max_sequences * sizeof(RaceResult));
  all_races_ = backend.allocate(ranks * max_sequences * sizeof(RaceResult));
  my_logits_ = backend.allocate(largest_shard_ * sizeof(float));
  all_logits_ = backend.allocate(ranks * largest_shard_ * sizeof(float));
  whole_row_.resize(vocab_size);
  rows_.reserve(2 * max_rows);
  p_.resize(max_rows);
  work_.reserve(max_sequences);
  verdicts_.reserve(max_sequences);
  logprobs_.reserve(max_rows);
}

std::span<const Verdict> Verifier::verify(std::span<const SequenceToVerify> sequences,
                                          std::span<const LogprobQuery> queries, TensorView logits,
                                          uint64_t digest, Stream& stream) {
  CHECK(static_cast<int64_t>(sequences.size()) <= max_sequences_ &&
        static_cast<int64_t>(queries.size()) <= max_rows_);
  exchange_seconds_ = 0;
  const float* rows = sequences.empty() && queries.empty() ? nullptr : logits.data<float>();
  exchange_summaries(sequences, queries, rows, digest, stream);
  const auto num_rows = static_cast<int64_t>(rows_.size() - queries.size());
  for (int64_t row = 0; row < num_rows; ++row) combine(row);
  logprobs_.clear();
  for (const LogprobQuery& query : queries) {
    logprobs_.push_back(combine_logprobs(query, num_rows + static_cast<int64_t>(logprobs_.size())));
  }

  verdicts_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    Work& work = work_[i];
    Verdict verdict;
    const int n = accept(sequences[i], work, verdict.gathered, stream);
    verdict.num_accepted = n;
    verdict.non_finite = work.rows.p[n].non_finite != 0;
    verdict.extra_token = work.rows.p[n].argmax;
    verdict.extra_logit = work.rows.p[n].max;
    if (!verdict.non_finite) {
      verdict.alpha_rows = std::min(n + 1, work.rows.num_drafted);
      verdict.alpha_sum = n;
    }
    verdicts_.push_back(verdict);
  }
  exchange_extra_tokens(sequences, stream);
  return verdicts_;
}

void Verifier::all_gather(TensorView mine, TensorView all, Stream& stream) {
  const auto start = std::chrono::steady_clock::now();
  communicator_.all_gather(mine, all, stream);
  exchange_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Exchange A, and what ends the job where the ranks do not agree on the step.
void Verifier::exchange_summaries(std::span<const SequenceToVerify> sequences,
                                  std::span<const LogprobQuery> queries, const float* logits,
                                  uint64_t digest, Stream& stream) {
  rows_.clear();
  work_.clear();
  int32_t num_filtered = 0;
  for (const SequenceToVerify& sequence : sequences) {
    const auto num_drafted = static_cast<int>(sequence.drafted.size());
    const auto first = static_cast<int64_t>(rows_.size());
    CHECK(num_drafted <= kMaxDraftTokens && first + num_drafted + 1 <= max_rows_);
    for (int i = 0; i <= num_drafted; ++i) {
      rows_.push_back({.logits_row = static_cast<int32_t>(sequence.first_row + i),
                       .draft_token = i < num_drafted ? sequence.drafted[i] : -1,
                       .candidates_slot = sequence.processors.filtered() ? num_filtered++ : -1,
                       .processors = sequence.processors});
    }
    const bool has_q = sequence.draft_logits.size() > 0 && sequence.draft_logits.rank() > 0;
    work_.push_back({.rows = {.target_logits = logits + sequence.first_row * shard_size_,
                              .draft_logits = has_q ? sequence.draft_logits.data<float>() : nullptr,
                              .drafted = sequence.drafted.data(),
                              .p = p_.data() + first,
                              .q = sequence.draft_rows.data(),
                              .num_drafted = num_drafted,
                              .first_token = static_cast<int32_t>(first_token_),
                              .shard_size = static_cast<int32_t>(shard_size_),
                              .vocab_size = static_cast<int32_t>(vocab_size_),
                              .draft_stride = has_q ? sequence.draft_logits.stride(0) : 0},
                     .first_summary = first});
  }
  for (const LogprobQuery& query : queries) {
    CHECK(query.top_n <= kMaxTopLogprobs);
    rows_.push_back({.logits_row = static_cast<int32_t>(query.row),
                     .draft_token = query.token,
                     .candidates_slot = query.top_n > 0 ? num_filtered++ : -1,
                     .processors = {.mode = VerifyMode::rejection}});
  }
  const auto num_rows = static_cast<int64_t>(rows_.size());
  message_bytes_ = Message::bytes(num_rows, num_filtered);
  const Message mine{static_cast<std::byte*>(mine_.data()), num_rows};
  mine.digest() = digest;
  cpu::verify_summary(logits, shard_size_, static_cast<int32_t>(first_token_), rows_.data(),
                      num_rows, mine.summaries(), mine.candidates(), isa_);

  const int ranks = communicator_.size();
  all_gather(bytes_of(mine_, message_bytes_), bytes_of(all_, ranks * message_bytes_), stream);
  std::string differing;
  for (int r = 0; r < ranks; ++r) {
    const Message message{static_cast<std::byte*>(all_.data()) + r * message_bytes_, num_rows};
    if (message.digest() == Message{static_cast<std::byte*>(all_.data()), num_rows}.digest()) {
      continue;
    }
    absl::StrAppend(&differing, differing.empty() ? "rank " : ", rank ", r);
  }
  if (!differing.empty()) {
    throw DisagreementError(
        absl::StrCat("digest of plan and state differs from rank 0's on ", differing));
  }
}

void Verifier::combine(int64_t row) {
  const int ranks = communicator_.size();
  ShardSummary summaries[kMaxRanks];
  const Candidate* candidates[kMaxRanks];
  for (int r = 0; r < ranks; ++r) {
    const Message message{static_cast<std::byte*>(all_.data()) + r * message_bytes_,
                          static_cast<int64_t>(rows_.size())};
    summaries[r] = message.summaries()[row];
    candidates[r] =
        message.candidates() + int64_t{std::max(rows_[row].candidates_slot, 0)} * kCandidates;
  }
  p_[row] = cpu::combine_summaries(summaries, candidates, ranks, rows_[row].processors);
}

LogprobRow Verifier::combine_logprobs(const LogprobQuery& query, int64_t row) const {
  const int ranks = communicator_.size();
  LogprobRow result;
  double max = -std::numeric_limits<double>::infinity();
  result.token_logit = -std::numeric_limits<float>::infinity();
  const auto message = [&](int rank) {
    return Message{static_cast<std::byte*>(all_.data()) + rank * message_bytes_,
                   static_cast<int64_t>(rows_.size())};
  };
  for (int r = 0; r < ranks; ++r) {
    const ShardSummary& summary = message(r).summaries()[row];
    max = std::max(max, static_cast<double>(summary.max));
    result.token_logit = std::max(result.token_logit, summary.draft_logit);
  }
  double sum = 0;
  for (int r = 0; r < ranks; ++r) {
    const ShardSummary& summary = message(r).summaries()[row];
    sum += summary.sum_exp * std::exp(summary.max - max);
  }
  result.log_sum_exp = max + std::log(sum);

  // A merge of the ranks' offers, each best first; ranks own ascending tokens: a tie stays with the
  // smaller.
  std::array<int, kMaxRanks> taken{};
  for (; result.num_top < query.top_n; ++result.num_top) {
    int from = -1;
    Candidate best{};
    for (int r = 0; r < ranks; ++r) {
      if (taken[r] == message(r).summaries()[row].num_candidates) continue;
      const Candidate& offer =
          message(r).candidates()[int64_t{rows_[row].candidates_slot} * kCandidates + taken[r]];
      if (from >= 0 && offer.logit <= best.logit) continue;
      from = r;
      best = offer;
    }
    if (from < 0) break;
    ++taken[from];
    result.top[result.num_top] = best;
  }
  return result;
}

// The length of the accepted prefix. A row that is not resolved refuses: where the prefix ends at
// one, it is gathered, and the test goes on.
int Verifier::accept(const SequenceToVerify& sequence, Work& work, bool& gathered, Stream& stream) {
  const SequenceRows& rows = work.rows;
  const bool greedy = sequence.processors.mode == VerifyMode::greedy;
  for (int i = 0; i < rows.num_drafted; ++i) {
    work.u[i] = greedy ? 0.0 : accept_uniform(sequence.key, i);
  }
  for (;;) {
    cpu::draft_probabilities(rows, sequence.processors, work.p_draft, work.q_draft);
    const int n = cpu::verify_accept(work.p_draft, work.q_draft, work.u, rows.num_drafted);
    if (rows.p[n].resolved != 0) return n;
    resolve(sequence, work, n, stream);
    gathered = true;
  }
}

// All-gathers one row of target logits, padded to the largest shard. Collective: every rank finds
// the same rows unresolved.
void Verifier::resolve(const SequenceToVerify& sequence, const Work& work, int position,
                       Stream& stream) {
  const int ranks = communicator_.size();
  auto* const mine = static_cast<float*>(my_logits_.data());
  const float* row = work.rows.target_logits + position * shard_size_;
  std::copy_n(row, shard_size_, mine);
  all_gather(my_logits_.view(DType::f32, {largest_shard_}),
             all_logits_.view(DType::f32, {ranks, largest_shard_}), stream);
  for (int r = 0; r < ranks; ++r) {
    std::copy_n(static_cast<const float*>(all_logits_.data()) + r * largest_shard_, shards_[r].size,
                whole_row_.data() + shards_[r].first_token);
  }
  RowDistribution& p = p_[work.first_summary + position];
  p = cpu::resolve_row(p, whole_row_.data(), vocab_size_, sequence.processors, isa_);
}

// Exchange B, in steps in which some sequence samples.
void Verifier::exchange_extra_tokens(std::span<const SequenceToVerify> sequences, Stream& stream) {
  auto* const mine = static_cast<RaceResult*>(my_race_.data());
  int64_t num_races = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].processors.mode == VerifyMode::greedy || verdicts_[i].non_finite) continue;
    const SequenceRows& rows = work_[i].rows;
    const int n = verdicts_[i].num_accepted;
    RaceResult result = cpu::extra_token_race(rows, n, sequences[i].key, isa_);
    result.overlap = cpu::shard_overlap(rows, n, isa_);
    mine[num_races++] = result;
  }
  if (num_races == 0) return;

  const int ranks = communicator_.size();
  const size_t bytes = num_races * sizeof(RaceResult);
  all_gather(bytes_of(my_race_, bytes), bytes_of(all_races_, ranks * bytes), stream);
  const auto* const all = static_cast<const RaceResult*>(all_races_.data());
  int64_t race = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Verdict& verdict = verdicts_[i];
    if (sequences[i].processors.mode == VerifyMode::greedy || verdict.non_finite) continue;
    RaceResult results[kMaxRanks];
    verdict.alpha_sum = 0.0;
    for (int r = 0; r < ranks; ++r) {
      results[r] = all[r * num_races + race];
      verdict.alpha_sum += results[r].overlap;
    }
    ++race;
    const SequenceRows& rows = work_[i].rows;
    const int n = verdict.num_accepted;
    verdict.extra_token = cpu::verify_commit(results, ranks, rows, n);
    // Where no rank had a token of weight, the refused one (or the arg max) came back.
    verdict.extra_logit = n < rows.num_drafted ? rows.p[n].draft_logit : rows.p[n].max;
    for (int r = 0; r < ranks; ++r) {
      if (results[r].token == verdict.extra_token && std::isfinite(results[r].time)) {
        verdict.extra_logit = results[r].logit;
      }
    }
  }
}

}  // namespace outrider
