#include "spec/verifier.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "core/digest.h"
#include "kernels/math_f64.h"
#include "kernels/randomness.h"
#include "spec/step_marks.h"

namespace outrider {

namespace {

TensorView bytes_of(const Buffer& buffer, size_t bytes) {
  return buffer.view(DType::u8, {static_cast<int64_t>(bytes)});
}

template <typename T>
T* as(const Buffer& buffer, size_t offset_bytes = 0) {
  CHECK(offset_bytes <= buffer.bytes());
  return reinterpret_cast<T*>(static_cast<std::byte*>(buffer.data()) + offset_bytes);
}

std::string describe_disagreement(uint64_t ranks) {
  std::string differing;
  for (int r = 0; r < kMaxRanks; ++r) {
    if ((ranks >> r & 1) == 0) continue;
    absl::StrAppend(&differing, differing.empty() ? "rank " : ", rank ", r);
  }
  return "digest of plan and state, or drafted tokens, differ from rank 0's on " + differing;
}

// What the host gets of a step, in this order: the ranks that disagree (u64), the drafted tokens
// i32 [max_sequences * kMaxDraftTokens + 1] and what makes their number even, the verdicts.
constexpr size_t kDraftedOffset = sizeof(uint64_t);
size_t verdicts_offset(int64_t max_sequences) {
  const int64_t drafted = max_sequences * kMaxDraftTokens + 1;
  return kDraftedOffset + (drafted + drafted % 2) * sizeof(int32_t);
}
size_t record_bytes(int64_t max_sequences, int64_t num_verdicts) {
  return verdicts_offset(max_sequences) + num_verdicts * sizeof(Verdict);
}

}  // namespace

Verifier::Verifier(Backend& backend, Communicator& communicator, int64_t vocab_size,
                   int64_t first_token, int64_t shard_size, int64_t max_rows, int64_t max_sequences)
    : backend_(backend),
      communicator_(communicator),
      first_token_(first_token),
      shard_size_(shard_size),
      vocab_size_(vocab_size),
      max_rows_(max_rows),
      max_sequences_(max_sequences),
      shards_(communicator.size()),
      rows_(backend, 2 * max_rows),
      sequences_(backend, max_rows),
      raw_logits_(backend, max_rows),
      unresolved_(backend, max_rows) {
  const int ranks = communicator.size();
  if (ranks > kMaxRanks) {
    throw Error(absl::StrCat(ranks, " ranks; expected at most ", kMaxRanks));
  }
  Stream stream = backend.make_stream();
  const Shard mine{first_token, shard_size};
  const Buffer my_shard = backend.allocate(sizeof mine);
  const Buffer all_shards = backend.allocate(ranks * sizeof mine);
  backend.copy_from_host(bytes_of(my_shard, sizeof mine), &mine, stream);
  exchange(bytes_of(my_shard, sizeof mine), bytes_of(all_shards, ranks * sizeof mine), stream);
  backend.copy_to_host(shards_.data(), bytes_of(all_shards, ranks * sizeof mine), stream);
  backend.synchronize(stream);
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

  const size_t message = SummaryMessage::bytes(2 * max_rows, backend.padded_rows(2 * max_rows));
  all_ = backend.allocate(ranks * message);
  host_messages_ = backend.allocate_pinned(ranks * message);
  all_raw_logits_ = backend.allocate(ranks * max_rows * sizeof(float));
  host_raw_logits_ = backend.allocate_pinned(ranks * max_rows * sizeof(float));
  const size_t races = max_rows * sizeof(RaceResult);
  my_race_ = backend.allocate(races);
  host_digest_ = backend.allocate_pinned(sizeof(uint64_t));
  if (ranks > 1) {
    mine_ = backend.allocate(message);
    all_races_ = backend.allocate(ranks * races);
    my_logits_ = backend.allocate(kGatheredRows * largest_shard_ * sizeof(float));
    all_logits_ = backend.allocate(ranks * kGatheredRows * largest_shard_ * sizeof(float));
    whole_logits_ = backend.allocate(kGatheredRows * vocab_size * sizeof(float));
  }
  p_ = backend.allocate(max_rows * sizeof(RowDistribution));
  record_ = backend.allocate(record_bytes(max_sequences, max_rows));
  host_record_ = backend.allocate_pinned(record_bytes(max_sequences, max_rows));
  backend.reserve_verification(2 * max_rows, shard_size);
  queries_.reserve(max_rows);
  verdicts_.reserve(max_rows);
  raw_rows_.reserve(max_rows);
  alternatives_.reserve(max_rows);
  logprobs_.reserve(max_rows);
}

int32_t* Verifier::drafted() { return as<int32_t>(record_, kDraftedOffset); }

const int32_t* Verifier::host_drafted() const {
  return as<const int32_t>(host_record_, kDraftedOffset);
}

uint64_t Verifier::prepare(std::span<const VerifyWork> work, std::span<const LogprobQuery> queries,
                           TensorView logits, int64_t padded_rows, uint64_t digest,
                           Stream& stream) {
  logits_ = logits;
  num_sequences_ = static_cast<int64_t>(work.size());
  CHECK(num_sequences_ <= max_rows_ && static_cast<int64_t>(queries.size()) <= max_rows_);
  exchange_seconds_ = 0;
  num_rows_ = 0;
  races_ = false;
  raw_rows_.clear();
  alternatives_.clear();
  num_slots_ = 0;
  const auto add_row = [&](int64_t logits_row, bool candidates, const int32_t* drafted,
                           int32_t token, const Processors& processors, const RandomKey& key) {
    rows_.host()[num_rows_++] = {.logits_row = static_cast<int32_t>(logits_row),
                                 .draft_token = token,
                                 .candidates_slot = candidates ? num_slots_++ : -1,
                                 .processors = processors,
                                 .key = key,
                                 .races = processors.mode == VerifyMode::coupled && !candidates,
                                 .drafted = drafted};
  };
  for (int64_t s = 0; s < num_sequences_; ++s) {
    const VerifyWork& w = work[s];
    CHECK(w.num_drafted <= kMaxDraftTokens && num_rows_ + w.num_drafted + 1 <= max_rows_);
    raw_rows_.push_back(w.raw_row);
    const bool alternative = w.alternative_of >= 0;
    CHECK(!alternative || (w.alternative_of < s && w.num_drafted == 0));
    alternatives_.push_back({w.alternative_of, alternative ? w.alternative - drafted() : 0});
    Processors processors = w.processors;
    if (processors.top_k >= vocab_size_) processors.top_k = 0;  // filters nothing
    races_ = races_ || processors.mode == VerifyMode::rejection;
    sequences_.host()[s] = {
        .rows = {.target_logits = logits.data<float>() + w.first_row * shard_size_,
                 .draft_logits = w.draft_logits,
                 .drafted = w.drafted,
                 .p = as<RowDistribution>(p_) + num_rows_,
                 .q = w.draft_rows,
                 .num_drafted = w.num_drafted,
                 .first_token = static_cast<int32_t>(first_token_),
                 .shard_size = static_cast<int32_t>(shard_size_),
                 .vocab_size = static_cast<int32_t>(vocab_size_)},
        .processors = processors,
        .key = w.key};
    for (int i = 0; i <= w.num_drafted; ++i) {
      // An alternative's row tells of the token that it stands on, which the ranks are to agree on.
      add_row(w.first_row + i, processors.filtered(),
              i < w.num_drafted ? w.drafted + i : w.alternative, -1, processors,
              coupled_key(w.key, i));
    }
  }
  num_padded_sequences_ = num_sequences_;
  if (padded_rows > 0) {
    const int64_t rows = padded_rows;
    CHECK(num_rows_ <= rows && rows <= logits.extent(0));
    while (num_rows_ < rows) add_row(num_rows_, false, nullptr, -1, {}, {});
    // A row may be a sequence, and filtered: there is room for as many, whatever there are.
    num_padded_sequences_ = rows;
    for (int64_t s = num_sequences_; s < rows; ++s) {
      sequences_.host()[s] = {.rows = {.num_drafted = -1}};
    }
    if (num_slots_ > 0) num_slots_ = static_cast<int32_t>(rows);
  }
  num_work_rows_ = num_rows_;
  queries_.assign(queries.begin(), queries.end());
  for (const LogprobQuery& query : queries) {
    CHECK(query.top_n <= kMaxTopLogprobs);
    add_row(query.row, query.top_n > 0, query.drafted, query.token, {.mode = VerifyMode::rejection},
            {});
  }
  CHECK(num_padded_sequences_ <= max_rows_);
  message_bytes_ = SummaryMessage::bytes(num_rows_, num_slots_);
  *as<uint64_t>(host_digest_) = digest;
  backend_.copy_from_host(bytes_of(sent(), sizeof digest), host_digest_.data(), stream);
  rows_.upload(0, num_rows_, stream);
  sequences_.upload(0, num_padded_sequences_, stream);
  const int64_t parts[] = {num_rows_,
                           num_work_rows_,
                           num_padded_sequences_,
                           races_,
                           static_cast<int64_t>(message_bytes_),
                           reinterpret_cast<int64_t>(logits.raw())};
  return outrider::digest(parts, sizeof parts);
}

SummaryMessages Verifier::messages(std::byte* data) const {
  return {data, message_bytes_, num_rows_, communicator_.size()};
}

// This rank's message, which is all of them where it is alone.
const Buffer& Verifier::sent() const { return communicator_.size() == 1 ? all_ : mine_; }

void Verifier::enqueue(Stream& stream) {
  const int ranks = communicator_.size();
  backend_.verify_summary(logits_, static_cast<int32_t>(first_token_), rows_.device(), num_slots_,
                          {as<std::byte>(sent()), num_rows_}, stream);
  if (ranks > 1) {
    backend_.mark(kExchangeABegin, stream);
    exchange(bytes_of(mine_, message_bytes_), bytes_of(all_, ranks * message_bytes_), stream);
    backend_.mark(kExchangeAEnd, stream);
  }
  backend_.combine_and_accept(messages(as<std::byte>(all_)), rows_.device(), num_work_rows_,
                              as<RowDistribution>(p_), as<uint64_t>(record_), sequences_.device(),
                              num_padded_sequences_, verdicts(), stream);
  enqueue_races(stream);
}

Verdict* Verifier::verdicts() const {
  return as<Verdict>(record_, verdicts_offset(max_sequences_));
}

// From the accepted lengths on.
void Verifier::enqueue_races(Stream& stream) {
  const int64_t n = num_padded_sequences_;
  const int ranks = communicator_.size();
  auto* const mine = as<RaceResult>(my_race_);
  if (races_ && ranks == 1) {
    backend_.race_and_commit(sequences_.device(), n, shard_size_, verdicts(), mine, stream);
  } else if (races_) {
    const size_t bytes = n * sizeof(RaceResult);
    backend_.race_step(sequences_.device(), n, shard_size_, verdicts(), mine, stream);
    backend_.mark(kExchangeBBegin, stream);
    exchange(bytes_of(my_race_, bytes), bytes_of(all_races_, ranks * bytes), stream);
    backend_.mark(kExchangeBEnd, stream);
    backend_.commit_step(sequences_.device(), n, as<RaceResult>(all_races_), ranks, verdicts(),
                         stream);
  }
  backend_.copy_to_host(host_record_.data(), bytes_of(record_, record_bytes(max_sequences_, n)),
                        stream);
  backend_.mark(kVerified, stream);
}

std::span<const Verdict> Verifier::finish(Stream& stream) {
  verdicts_.assign(num_sequences_, Verdict{});
  take_verdicts(kExchangeABegin, kExchangeAEnd, stream);
  const int64_t num_unresolved = find_unresolved();
  if (num_unresolved > 0) {
    backend_.mark(kResolveBegin, stream);
    resolve(num_unresolved, stream);
    backend_.mark(kResolveEnd, stream);
    sequences_.upload(0, num_padded_sequences_, stream);
    backend_.accept_step(sequences_.device(), num_padded_sequences_, verdicts(), stream);
    enqueue_races(stream);
    take_verdicts(kResolveBegin, kResolveEnd, stream);
    for (int64_t s = 0; s < num_sequences_; ++s) {
      CHECK(verdicts_[s].unresolved == 0 || is_needless(s));
    }
  }
  find_raw_logits(stream);
  combine_logprobs(stream);
  return verdicts_;
}

// Waits for them. begin, end: the marks of the exchange before them.
void Verifier::take_verdicts(int begin, int end, Stream& stream) {
  backend_.synchronize(stream);
  exchange_seconds_ += seconds_of_exchange(begin, end);
  if (races_) exchange_seconds_ += seconds_of_exchange(kExchangeBBegin, kExchangeBEnd);
  const uint64_t disagreeing = *as<uint64_t>(host_record_);
  if (disagreeing != 0) throw DisagreementError(describe_disagreement(disagreeing));
  for (int64_t s = 0; s < num_sequences_; ++s) {
    const int32_t gathered = verdicts_[s].gathered;
    verdicts_[s] = as<Verdict>(host_record_, verdicts_offset(max_sequences_))[s];
    verdicts_[s].gathered = gathered;
  }
}

void Verifier::exchange(TensorView mine, TensorView all, Stream& stream) {
  if (communicator_.size() == 1) return backend_.copy(all, mine, stream);
  communicator_.all_gather(mine, all, stream);
}

// A rank alone sets no marks: it exchanges nothing.
double Verifier::seconds_of_exchange(int begin, int end) const {
  return communicator_.size() == 1 ? 0 : backend_.seconds_between(begin, end);
}

// An alternative to what was accepted, or that the target's token is not.
bool Verifier::is_needless(int64_t s) const {
  const Alternative& alternative = alternatives_[s];
  if (alternative.of < 0) return false;
  const Verdict& other = verdicts_[alternative.of];
  return other.unresolved == 0 &&
         (other.num_accepted > 0 || other.extra_token != host_drafted()[alternative.drafted]);
}

// Lists the rows that verdicts wait for, with this rank's part of their logits, and leaves the
// other sequences out of what is verified from now on: their verdicts stand. Every rank finds the
// same.
int64_t Verifier::find_unresolved() {
  int64_t count = 0;
  bool races = false;
  for (int64_t s = 0; s < num_sequences_; ++s) {
    SequenceToVerify& of = sequences_.host()[s];
    const auto rows = is_needless(s) ? 0 : static_cast<uint32_t>(verdicts_[s].unresolved);
    for (int i = 0; i <= of.rows.num_drafted; ++i) {
      if ((rows >> i & 1) == 0) continue;
      unresolved_.host()[count++] = {.logits = of.rows.target_logits + i * shard_size_,
                                     .processors = of.processors,
                                     .key = coupled_key(of.key, i),
                                     .p = const_cast<RowDistribution*>(of.rows.p) + i};
    }
    verdicts_[s].gathered = std::popcount(rows);
    if (rows == 0) of.rows.num_drafted = -1;
    races = races || (rows != 0 && of.processors.mode == VerifyMode::rejection);
  }
  if (count > 0) races_ = races;
  return count;
}

// Collective.
void Verifier::resolve(int64_t count, Stream& stream) {
  for (int64_t begin = 0; begin < count; begin += kGatheredRows) {
    const int64_t n = std::min(kGatheredRows, count - begin);
    if (communicator_.size() > 1) {
      gather({unresolved_.host() + begin, static_cast<size_t>(n)}, stream);
    }
    unresolved_.upload(begin, n, stream);
    backend_.resolve_rows(unresolved_.device() + begin, n, vocab_size_, stream);
  }
}

// Makes rows of a shard whole ones, by one exchange in which shards are padded to the largest.
void Verifier::gather(std::span<RowToResolve> rows, Stream& stream) {
  const auto n = static_cast<int64_t>(rows.size());
  const auto floats = [](const float* data, int64_t count) {
    return TensorView(const_cast<float*>(data), DType::f32, {count});
  };
  const TensorView mine = my_logits_.view(DType::f32, {n, largest_shard_});
  const TensorView all = all_logits_.view(DType::f32, {communicator_.size(), n, largest_shard_});
  for (int64_t i = 0; i < n; ++i) {
    backend_.copy(floats(mine.data<float>() + i * largest_shard_, shard_size_),
                  floats(rows[i].logits, shard_size_), stream);
  }
  communicator_.all_gather(mine, all, stream);
  for (int64_t i = 0; i < n; ++i) {
    float* const whole = static_cast<float*>(whole_logits_.data()) + i * vocab_size_;
    for (size_t r = 0; r < shards_.size(); ++r) {
      const int64_t from = (static_cast<int64_t>(r) * n + i) * largest_shard_;
      backend_.copy(floats(whole + shards_[r].first_token, shards_[r].size),
                    floats(all.data<float>() + from, shards_[r].size), stream);
    }
    rows[i].logits = whole;
  }
}

// The logits of extra tokens before they were edited, where somebody wants them. Collective: every
// rank has the same work and the same verdicts.
void Verifier::find_raw_logits(Stream& stream) {
  const auto wanted = [&](int64_t s) { return raw_rows_[s] >= 0 && verdicts_[s].non_finite == 0; };
  const auto begin = raw_rows_.begin();
  if (std::none_of(begin, raw_rows_.end(), [](int64_t row) { return row >= 0; })) return;
  const int ranks = communicator_.size();
  std::fill_n(raw_logits_.host(), num_sequences_, -std::numeric_limits<float>::infinity());
  raw_logits_.upload(0, num_sequences_, stream);
  for (int64_t s = 0; s < num_sequences_; ++s) {
    const int64_t token = verdicts_[s].extra_token - first_token_;
    if (!wanted(s) || token < 0 || token >= shard_size_) continue;
    const int64_t row = raw_rows_[s] + verdicts_[s].num_accepted;
    backend_.copy(TensorView(raw_logits_.device() + s, DType::f32, {1}),
                  TensorView(logits_.data<float>() + row * shard_size_ + token, DType::f32, {1}),
                  stream);
  }
  const auto bytes = static_cast<int64_t>(num_sequences_ * sizeof(float));
  exchange(TensorView(raw_logits_.device(), DType::u8, {bytes}),
           bytes_of(all_raw_logits_, ranks * bytes), stream);
  backend_.copy_to_host(host_raw_logits_.data(), bytes_of(all_raw_logits_, ranks * bytes), stream);
  backend_.synchronize(stream);
  for (int64_t s = 0; s < num_sequences_; ++s) {
    if (!wanted(s)) continue;
    float logit = -std::numeric_limits<float>::infinity();
    for (int r = 0; r < ranks; ++r) {
      logit = std::max(logit, as<float>(host_raw_logits_)[r * num_sequences_ + s]);
    }
    verdicts_[s].extra_logit = logit;
  }
}

void Verifier::combine_logprobs(Stream& stream) {
  logprobs_.clear();
  if (queries_.empty()) return;
  backend_.copy_to_host(host_messages_.data(),
                        bytes_of(all_, communicator_.size() * message_bytes_), stream);
  backend_.synchronize(stream);
  for (size_t i = 0; i < queries_.size(); ++i) {
    logprobs_.push_back(combine_logprobs(messages(as<std::byte>(host_messages_)),
                                         num_work_rows_ + static_cast<int64_t>(i),
                                         queries_[i].top_n));
  }
}

LogprobRow Verifier::combine_logprobs(const SummaryMessages& all, int64_t row, int top_n) const {
  LogprobRow result;
  double max = -std::numeric_limits<double>::infinity();
  result.token_logit = -std::numeric_limits<float>::infinity();
  for (int r = 0; r < all.ranks; ++r) {
    const ShardSummary& summary = all.of(r).summaries()[row];
    result.non_finite |= summary.non_finite != 0;
    max = std::max(max, static_cast<double>(summary.max));
    result.token_logit = std::max(result.token_logit, summary.draft_logit);
  }
  double sum = 0;
  for (int r = 0; r < all.ranks; ++r) {
    const ShardSummary& summary = all.of(r).summaries()[row];
    sum += summary.sum_exp * exp_f64(summary.max - max);
  }
  result.log_sum_exp = max + log_f64(sum);

  // A merge of the ranks' offers, each best first; ranks own ascending tokens: a tie stays with the
  // smaller.
  const int64_t slot = std::max(rows_.host()[row].candidates_slot, 0);
  std::array<int, kMaxRanks> taken{};
  for (; result.num_top < top_n; ++result.num_top) {
    int from = -1;
    Candidate best{};
    for (int r = 0; r < all.ranks; ++r) {
      if (taken[r] == all.of(r).summaries()[row].num_candidates) continue;
      const Candidate& offer = all.of(r).candidates()[slot * kCandidates + taken[r]];
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

}  // namespace outrider
