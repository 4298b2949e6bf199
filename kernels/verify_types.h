// Plain data of verification, shared by the CPU and the CUDA twins and sent between ranks as bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"

namespace outrider {

constexpr int kMaxDraftTokens = 15;  // most tokens drafted for one sequence in a step
// Of them, most that stand beside the first one rather than behind it: other candidates for its
// place.
constexpr int kMaxAlternatives = 6;
constexpr int kCandidates = 128;  // best (logit, token) pairs that a rank offers for a filtered row
constexpr int kMaxRanks = 64;     // of one tensor-parallel group

// greedy: the arg max. rejection: modified rejection sampling. coupled: the arg max of
// log p + Gumbel noise that target and draft share (kernels/coupled.h).
enum class VerifyMode : int32_t { greedy, rejection, coupled };

// How a row of logits becomes a distribution: applied to target and draft alike. In this order:
// temperature, min_p, top_k, top_p over what these left (the token that crosses the threshold is
// kept). Ties are kept by smaller token. What edits logits before that: processors.h.
struct Processors {
  VerifyMode mode = VerifyMode::greedy;
  float temperature = 1.0f;  // > 0; greedy rows ignore it
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;        // (0, 1]; 1: off
  // min_p, as the logits between the best token and the last that is kept: p >= min_p max(p) iff
  // logit >= max + temperature ln(min_p). 0 or more: that distance; below 0: off.
  float min_p_reach = -1.0f;
  float lenience = 1.0f;  // of the accept test, (0, 1]; 1: exact; always so where coupled

  OUTRIDER_HOST_DEVICE bool has_min_p() const { return min_p_reach >= 0.0f; }
  // Whether anybody looks at the sum of exponentials over the row's tokens: rejection compares
  // probabilities, and top_p is a share of it. A coupled race knows logits alone.
  OUTRIDER_HOST_DEVICE bool needs_sum() const {
    return mode == VerifyMode::rejection || (mode == VerifyMode::coupled && top_p < 1.0f);
  }
  bool filtered() const {
    return mode != VerifyMode::greedy && (top_k > 0 || top_p < 1.0f || has_min_p());
  }
};

// Of an alternative to the first drafted token, and of the row behind it: nothing is drafted there,
// so nothing is refused, and where tokens are drawn by rejection these are coupled.
inline Processors of_alternative(Processors processors) {
  if (processors.mode != VerifyMode::rejection) return processors;
  processors.mode = VerifyMode::coupled;
  processors.lenience = 1.0f;
  return processors;
}

// What the randomness of one sequence's step is a function of (kernels/randomness.h).
struct RandomKey {
  uint64_t seed = 0;
  uint32_t choice = 0;  // which of a request's n answers
  uint32_t base = 0;    // the sequence's length at the start of the step
};

struct Candidate {
  float logit;
  int32_t token;  // in the whole vocabulary
};

// One token in a race.
struct Runner {
  double time;  // +infinity: nobody
  int32_t token;
  float logit;
};

// One row of target logits to summarise.
struct VerifyRow {
  int32_t logits_row;
  int32_t draft_token;      // the token drafted behind this row; -1: none (the bonus row); or …
  int32_t candidates_slot;  // filtered rows: where its candidates go; -1: not wanted
  Processors processors;
  RandomKey key;  // coupled rows: coupled_key of the row
  int32_t races;  // 1: a coupled row that is not filtered: its race is run shard by shard
  const int32_t* drafted = nullptr;  // … where it will be found

  OUTRIDER_HOST_DEVICE int32_t token() const { return drafted != nullptr ? *drafted : draft_token; }
};

// Exchange A: one rank's view of one row of target logits.
struct ShardSummary {
  double sum_exp;          // sum over the shard of exp((logit - max) / temperature); 0: not needed
  Runner runner;           // the first of the shard's race, where the row asks for it
  float max;               // largest logit of the shard
  int32_t argmax;          // smallest token with it
  float draft_logit;       // logit of the drafted token where this shard owns it, else -infinity
  int32_t num_candidates;  // how many of the kCandidates are filled
  int32_t non_finite;      // 1 where the shard holds a NaN or an infinity
  int32_t shard_size;      // tokens of this shard
  int32_t draft_token;     // the row's: equal on all ranks, or they do not draft alike
};

// What a rank sends in exchange A: a digest of the plan and of the state before it, the summaries
// of all rows, the candidates of those that want some. A view; the ranks' messages stand side by
// side.
struct SummaryMessage {
  std::byte* data;
  int64_t num_rows;

  static constexpr size_t bytes(int64_t num_rows, int64_t num_filtered) {
    return sizeof(uint64_t) + num_rows * sizeof(ShardSummary) +
           num_filtered * kCandidates * sizeof(Candidate);
  }
  OUTRIDER_HOST_DEVICE uint64_t& digest() const { return *reinterpret_cast<uint64_t*>(data); }
  OUTRIDER_HOST_DEVICE ShardSummary* summaries() const {
    return reinterpret_cast<ShardSummary*>(data + sizeof(uint64_t));
  }
  OUTRIDER_HOST_DEVICE Candidate* candidates() const {
    return reinterpret_cast<Candidate*>(summaries() + num_rows);
  }
};
static_assert(sizeof(ShardSummary) % sizeof(uint64_t) == 0 &&
              sizeof(Candidate) == sizeof(uint64_t));

// Every rank's message of exchange A, [ranks], `bytes` apart.
struct SummaryMessages {
  std::byte* data;
  size_t bytes;
  int64_t num_rows;
  int32_t ranks;

  OUTRIDER_HOST_DEVICE SummaryMessage of(int rank) const { return {data + rank * bytes, num_rows}; }
};

// A row's processed distribution over the whole vocabulary, known to every rank after exchange A.
// Token v with logit l is kept iff l > cut_logit, or l == cut_logit and v <= cut_token;
// p(v) = kept ? exp((l - max) / temperature) / sum : 0.
// A greedy row keeps its arg max alone. A row with a NaN or an infinity keeps nothing. The sum
// of a coupled row that needs none is 0, unless a filter made one.
struct RowDistribution {
  double sum;
  float max;
  int32_t choice;      // the arg max; of a coupled row of the target the first of its race
  float choice_logit;  // its
  float temperature;
  float cut_logit;
  int32_t cut_token;
  float draft_logit;  // of the token drafted behind this row; -infinity where there is none
  int32_t non_finite;
  int32_t resolved;  // 0: candidates do not cover min_p, top_k or top_p: the row must be gathered
};

// One sequence's rows of a step, as the kernels of one rank see them: row i holds the target's
// logits after drafted[0 … i), and the draft's behind which drafted[i] was drawn.
struct SequenceRows {
  const float* target_logits;  // [num_drafted + 1, shard_size]
  const float* draft_logits;   // [num_drafted, vocab_size]; null: one-hot (copy drafter)
  const int32_t* drafted;      // [num_drafted]
  const RowDistribution* p;    // [num_drafted + 1]
  const RowDistribution* q;    // [num_drafted]; unused where one-hot
  int32_t num_drafted;         // K
  int32_t first_token;         // this rank owns [first_token, first_token + shard_size)
  int32_t shard_size;
  int32_t vocab_size;
};

// A sequence of a step, and what its verification is a function of beside its rows.
struct SequenceToVerify {
  SequenceRows rows;
  Processors processors;
  RandomKey key;
};

// What verification made of one sequence: the same on every rank.
struct Verdict {
  double alpha_sum;    // rejection: sum of Σ min(p / lenience, q) over alpha_rows; else: accepted
  double shift_sum;    // of what lenience added to it: 0 where it is 1
  int32_t alpha_rows;  // positions up to and including the first refusal
  int32_t num_accepted;  // n, 0 … K
  int32_t extra_token;   // follows the accepted prefix
  float extra_logit;     // the target's, of that token
  int32_t non_finite;    // 1: NaN or infinity in a row that was needed: nothing is committed
  // Bit i: row i's candidates did not suffice, of rows n … K where row n is such a one; once they
  // are gathered, n may grow. 0: row n is resolved.
  int32_t unresolved;
  int32_t gathered;  // such rows that were gathered
};

// A row that its candidates leave unresolved, to be finished from all of its logits.
struct RowToResolve {
  const float* logits;  // [vocab_size]
  Processors processors;
  RandomKey key;  // coupled rows: coupled_key of the row
  RowDistribution* p;
};

// A row of a drafter's logits, of which a token is to be drawn.
struct DraftRow {
  Processors processors;
  RandomKey key;
  int32_t offset;   // position within the step, from 0
  int32_t drafted;  // where the token and its distribution go, in the step's drafted tokens
  // Where the token went that was drawn from the same logits last: its logit becomes
  // kUnscoredLogit first. -1: none was.
  int32_t masked = -1;
  // 1: the row is coupled to the race for the step's extra token, where that is run by rejection,
  // rather than to that of a coupled row.
  int32_t foretells_extra = 0;
};

// A token that is known on the device alone, and where it is needed.
struct TokenCopy {
  const int32_t* from;
  int32_t* to;
};

// What a race draws from, over one shard: token v with weight max(p(v) - q(v), 0), or p(v).
struct RaceRow {
  const float* p_logits;  // [size]
  const float* q_logits;  // [size]; null: the weight is p
  RowDistribution p;
  RowDistribution q;
  int32_t excluded;     // a token of weight 0; -1: none
  int32_t first_token;  // token of p_logits[0]
  int32_t size;
};

// Exchange B: one rank's best token in the race for the extra token.
struct RaceResult {
  double time;     // +infinity where the shard has no weight
  double overlap;  // sum over the shard of min(p / lenience, q), positions 0 … min(n, K - 1)
  double shift;    // the same of min(p / lenience, q) - min(p, q)
  int32_t token;
  float logit;
};

}  // namespace outrider
