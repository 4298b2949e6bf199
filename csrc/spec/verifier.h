// Verifier: turns vocabulary-parallel target logits and kept draft distributions into accepted
// lengths and one extra token a sequence, in at most two small exchanges, without gathering logits
// but of rows whose candidates do not suffice. Chen et al. 2023, Algorithm 2; Leviathan et al.
// 2023, Algorithm 1. The parts are kernels/cpu/distribution.h and verify.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "core/buffer.h"
#include "kernels/verify_types.h"
#include "spec/staged.h"

namespace outrider {

// One sequence's rows of a step: row i holds the target's logits after drafted[0 … i), so there are
// num_drafted + 1 of them, side by side from first_row. The pointers are to memory of the backend.
struct VerifyWork {
  int64_t first_row = 0;
  int num_drafted = 0;                          // K, 0 … kMaxDraftTokens
  const int32_t* drafted = nullptr;             // [K]
  const float* draft_logits = nullptr;          // [K, vocab_size]; null: one-hot (copy drafter)
  const RowDistribution* draft_rows = nullptr;  // [K]: of them; unused where one-hot
  Processors processors;
  RandomKey key;
  // Where its rows are edited ones (logit_editor.h) and the extra token's logit is wanted as the
  // model gave it: the first of the rows that they were made of. -1: the logit is the edited one.
  int64_t raw_row = -1;
  // An alternative to the first drafted token of the work at this index, which stands before it:
  // K is 0, and the row holds the logits behind `alternative`. -1: none.
  int alternative_of = -1;
  const int32_t* alternative = nullptr;
};

// A row whose log-probabilities are wanted: of the model itself, before temperature and filters.
struct LogprobQuery {
  int64_t row = 0;                   // of the logits
  int32_t token = -1;                // whose logit is wanted beside the best; -1: none, or …
  const int32_t* drafted = nullptr;  // … that of a drafted token, on the backend
  int32_t top_n = 0;                 // 0 … kMaxTopLogprobs
};
constexpr int kMaxTopLogprobs = 20;

struct LogprobRow {
  double log_sum_exp = 0;                      // logprob of a token = its logit - this
  float token_logit = 0;                       // of the query's token
  std::array<Candidate, kMaxTopLogprobs> top;  // the best top_n, best first
  int32_t num_top = 0;                         // fewer than top_n in a smaller vocabulary
  bool non_finite = false;                     // the row has a NaN or an infinity: of no use
};

// Unresolved rows that one exchange gathers at most: a step with more has several.
constexpr int64_t kGatheredRows = 64;

class Verifier {
 public:
  // This rank owns tokens [first_token, first_token + shard_size) of the vocabulary; ranks own
  // ascending parts that cover it, else Error. max_rows: target rows of a step, over all sequences;
  // a work has one at least. Collective: the ranks tell each other what they own.
  Verifier(Backend& backend, Communicator& communicator, int64_t vocab_size, int64_t first_token,
           int64_t shard_size, int64_t max_rows, int64_t max_sequences);

  // A step in three parts. `prepare` sends to the backend what the step is about; `digest` (of the
  // plan and of the state before it) rides in the first exchange, which takes place without work
  // too. At most max_rows queries.
  // logits: f32 [rows, shard_size], which may be computed later. padded_rows: as a replayed step
  // has, whatever is in it: so many rows, sequences and places for candidates, which `logits` has
  // rows for. 0: as many as there are. Returns a key of all that `enqueue` does.
  uint64_t prepare(std::span<const VerifyWork> work, std::span<const LogprobQuery> queries,
                   TensorView logits, int64_t padded_rows, uint64_t digest, Stream& stream);
  // Enqueues verification and its exchanges.
  void enqueue(Stream& stream);
  // Waits for the verdicts, in the order of the work; every rank has the same. Where some wait for
  // rows whose candidates did not suffice, these are gathered and those verdicts made again. Throws
  // DisagreementError naming the ranks whose digest or drafted tokens differ from rank 0's. That of
  // an alternative means nothing unless the other's row refused its first draft for it. Valid until
  // the next `prepare`.
  std::span<const Verdict> finish(Stream& stream);

  // Where drafted tokens go, so that they come to the host with the verdicts: on the backend, i32
  // [max_sequences * kMaxDraftTokens + 1], the last for those that nobody reads …
  int32_t* drafted();
  const int32_t* host_drafted() const;  // … and on the host, behind `finish`

  // Of the last call's queries, in their order; valid until the next call.
  std::span<const LogprobRow> logprobs() const { return logprobs_; }
  // Seconds of the exchanges between `prepare` and `finish`, the finishing of gathered rows
  // included.
  double exchange_seconds() const { return exchange_seconds_; }

 private:
  struct Shard {
    int64_t first_token, size;
  };

  void exchange(TensorView mine, TensorView all, Stream& stream);
  double seconds_of_exchange(int begin, int end) const;
  const Buffer& sent() const;
  Verdict* verdicts() const;
  void enqueue_races(Stream& stream);
  void take_verdicts(int begin, int end, Stream& stream);
  bool is_needless(int64_t s) const;
  int64_t find_unresolved();
  void resolve(int64_t count, Stream& stream);
  void gather(std::span<RowToResolve> rows, Stream& stream);
  void find_raw_logits(Stream& stream);
  void combine_logprobs(Stream& stream);
  LogprobRow combine_logprobs(const SummaryMessages& all, int64_t row, int top_n) const;
  SummaryMessages messages(std::byte* data) const;

  Backend& backend_;
  Communicator& communicator_;
  int64_t first_token_, shard_size_, vocab_size_, max_rows_, max_sequences_;
  std::vector<Shard> shards_;  // [ranks]
  int64_t largest_shard_ = 0;

  // What a step is about.
  Staged<VerifyRow> rows_;              // [2 max_rows]: of the work, then of the queries
  Staged<SequenceToVerify> sequences_;  // [max_rows]
  Staged<float> raw_logits_;            // [max_rows]: of extra tokens; -infinity: not here
  std::vector<int64_t> raw_rows_;       // [sequences]: VerifyWork::raw_row
  struct Alternative {
    int64_t of;
    int64_t drafted;  // its place in drafted()
  };
  std::vector<Alternative> alternatives_;  // [sequences]; of -1: none
  int64_t num_rows_ = 0, num_work_rows_ = 0, num_sequences_ = 0;
  int64_t num_padded_sequences_ = 0;
  int32_t num_slots_ = 0;     // for rows that want candidates
  bool races_ = false;        // some sequence is `rejection`: there is an exchange B
  size_t message_bytes_ = 0;  // of exchange A, a rank
  TensorView logits_;
  std::vector<LogprobQuery> queries_;

  Buffer host_digest_;  // u64
  Buffer mine_, all_;   // exchange A: what a rank sends, and what came, [ranks]; alone, `all_`
  Buffer all_raw_logits_, host_raw_logits_;  // f32 [ranks, max_rows]
  Buffer my_race_, all_races_;       // exchange B: RaceResult [padded sequences], [ranks, …]
  Staged<RowToResolve> unresolved_;  // [max_rows]
  // Of those that are gathered together: f32 [kGatheredRows, largest_shard], [ranks, kGatheredRows,
  // largest_shard], [kGatheredRows, vocab_size]. A rank alone has whole rows anyway.
  Buffer my_logits_, all_logits_, whole_logits_;
  Buffer p_;                          // RowDistribution [max_rows]
  Buffer record_, host_record_;       // of the step: verifier.cc says what
  Buffer host_messages_;              // of exchange A, where there are queries
  std::vector<Verdict> verdicts_;     // [sequences]
  std::vector<LogprobRow> logprobs_;  // [queries]
  double exchange_seconds_ = 0;
};

}  // namespace outrider
