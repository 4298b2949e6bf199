// Verifier: turns vocabulary-parallel target logits and kept draft distributions into accepted
// lengths and one extra token a sequence, in at most two small exchanges, without gathering the
// logits. Chen et al. 2023, Algorithm 2; Leviathan et al. 2023, Algorithm 1. The parts are
// kernels/cpu/distribution.h and verify.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "core/buffer.h"
#include "kernels/cpu/isa.h"
#include "kernels/verify_types.h"

namespace outrider {

// One sequence's rows of a step: row i holds the target's logits after drafted[0 … i), so there are
// drafted.size() + 1 of them, side by side from first_row.
struct SequenceToVerify {
  int64_t first_row = 0;
  std::span<const int32_t> drafted;  // [K], K = 0 … kMaxDraftTokens
  // f32 [K, vocab_size], whole vocabulary, rows contiguous; empty: one-hot (copy drafter)
  TensorView draft_logits;
  std::span<const RowDistribution>
      draft_rows;  // [K]: cpu::process_row of them; unused where one-hot
  Processors processors;
  RandomKey key;
};

// A row whose log-probabilities are wanted: of the model itself, before temperature and filters.
struct LogprobQuery {
  int64_t row = 0;     // of the logits
  int32_t token = -1;  // whose logit is wanted beside the best; -1: none
  int32_t top_n = 0;   // 0 … kMaxTopLogprobs
};
constexpr int kMaxTopLogprobs = 20;

struct LogprobRow {
  double log_sum_exp = 0;                      // logprob of a token = its logit - this
  float token_logit = 0;                       // of the query's token
  std::array<Candidate, kMaxTopLogprobs> top;  // the best top_n, best first
  int32_t num_top = 0;                         // fewer than top_n in a smaller vocabulary
};

struct Verdict {
  int num_accepted = 0;     // n, 0 … K
  int32_t extra_token = 0;  // follows the accepted prefix
  float extra_logit = 0;    // the target's, of that token
  bool gathered = false;    // a filtered row's candidates did not suffice: its logits were gathered
  bool non_finite = false;  // NaN or infinity in a row that was needed: nothing is committed
  int alpha_rows = 0;    // rows behind alpha_sum: positions up to and including the first refusal
  double alpha_sum = 0;  // rejection: sum of Σ min(p, q) over them; greedy: accepted of them
};

class Verifier {
 public:
  // This rank owns tokens [first_token, first_token + shard_size) of the vocabulary; ranks own
  // ascending parts that cover it, else Error. max_rows: target rows of a step, over all sequences.
  // Collective: the ranks tell each other what they own.
  Verifier(Backend& backend, Communicator& communicator, int64_t vocab_size, int64_t first_token,
           int64_t shard_size, int64_t max_rows, int64_t max_sequences);

  // logits: f32 [rows, shard_size], in host memory. `digest` (of the plan and of the state before
  // it) rides in the first exchange, which takes place without sequences too; throws Error naming
  // the ranks where it differs. Every rank returns the same verdicts, in the order of the
  // sequences, valid until the next call. At most max_rows queries. Allocates nothing.
  std::span<const Verdict> verify(std::span<const SequenceToVerify> sequences,
                                  std::span<const LogprobQuery> queries, TensorView logits,
                                  uint64_t digest, Stream& stream);

  // Of the last call's queries, in their order; valid until the next call.
  std::span<const LogprobRow> logprobs() const { return logprobs_; }
  // Seconds that the last call spent in exchanges.
  double exchange_seconds() const { return exchange_seconds_; }

 private:
  struct Shard {
    int64_t first_token, size;
  };
  // One sequence between the exchanges.
  struct Work {
    SequenceRows rows;
    int64_t first_summary;  // of its rows, in exchange A
    double u[kMaxDraftTokens] = {};
    double p_draft[kMaxDraftTokens] = {}, q_draft[kMaxDraftTokens] = {};
  };

  void exchange_summaries(std::span<const SequenceToVerify> sequences,
                          std::span<const LogprobQuery> queries, const float* logits,
                          uint64_t digest, Stream& stream);
  void combine(int64_t row);
  LogprobRow combine_logprobs(const LogprobQuery& query, int64_t row) const;
  int accept(const SequenceToVerify& sequence, Work& work, bool& gathered, Stream& stream);
  void all_gather(TensorView mine, TensorView all, Stream& stream);
  void resolve(const SequenceToVerify& sequence, const Work& work, int position, Stream& stream);
  void exchange_extra_tokens(std::span<const SequenceToVerify> sequences, Stream& stream);

  Communicator& communicator_;
  cpu::Isa isa_;
  int64_t vocab_size_, first_token_, shard_size_, max_rows_, max_sequences_;
  std::vector<Shard> shards_;  // [ranks]
  int64_t largest_shard_ = 0;

  Buffer mine_, all_;               // exchange A: what a rank sends, and what came, [ranks]
  Buffer my_race_, all_races_;      // exchange B: RaceResult [sequences], [ranks, sequences]
  Buffer my_logits_, all_logits_;   // a row to resolve: f32 [largest_shard], [ranks, largest_shard]
  std::vector<float> whole_row_;    // [vocab_size]
  std::vector<VerifyRow> rows_;     // [rows + queries]
  std::vector<RowDistribution> p_;  // [rows]
  std::vector<Work> work_;          // [sequences]
  std::vector<Verdict> verdicts_;   // [sequences]
  std::vector<LogprobRow> logprobs_;  // [queries]
  double exchange_seconds_ = 0;
  size_t message_bytes_ = 0;  // of this step's exchange A, a rank
};

}  // namespace outrider
