#include "kernels/cuda/distribution.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/race.cuh"
#include "kernels/cuda/summary.cuh"
#include "kernels/cuda/verify.h"
#include "kernels/randomness.h"
#include "kernels/verify.h"

namespace outrider::cuda {

namespace {

constexpr unsigned kMergeThreads = 128;
constexpr unsigned kRaceThreads = kChunk / kGroup;  // a group each

__global__ void copy(const TokenCopy* copies, int64_t n) {
  wait_for_earlier_kernels();
  const int64_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && copies[i].from != nullptr) *copies[i].to = *copies[i].from;
}

constexpr int kMaxRows = kMaxDraftTokens + 1;  // of a sequence
static_assert(kMaxRows <= kWarp);

// Drafted token i of lane i, where there is one.
__device__ DraftedToken load_drafted(const SequenceToVerify& sequence) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= sequence.rows.num_drafted) return {};
  return drafted_token(sequence.rows, sequence.processors, i);
}

// By a warp: lane i tests drafted token i.
__device__ void accept(const SequenceToVerify& sequence, const DraftedToken& drafted,
                       Verdict& verdict) {
  const int i = static_cast<int>(threadIdx.x);
  bool accepted = false;
  if (i < sequence.rows.num_drafted) {
    const bool samples = sequence.processors.mode == VerifyMode::rejection;
    double p = 0.0, q = 0.0;
    draft_probability(sequence.rows, sequence.processors, i, drafted, p, q);
    accepted = accepts(p, q, samples ? accept_uniform(sequence.key, i) : 0.0);
  }
  const unsigned refused = ~__ballot_sync(kAllLanes, accepted);
  if (i == 0) verdict = verdict_of(sequence.rows, __ffs(static_cast<int>(refused)) - 1);
}

// A warp a sequence.
__global__ void accept_sequences(const SequenceToVerify* sequences, Verdict* verdicts) {
  wait_for_earlier_kernels();
  const SequenceToVerify& sequence = sequences[blockIdx.x];
  if (sequence.rows.num_drafted < 0) return;
  accept(sequence, load_drafted(sequence), verdicts[blockIdx.x]);
}

// The ranks that differ from rank 0, over all rows. By a warp.
__device__ unsigned long long find_disagreeing(const SummaryMessages& all, int64_t num_rows) {
  unsigned long long differing = 0;
  for (int r = 1; r < all.ranks; ++r) {
    bool differs = all.of(r).digest() != all.of(0).digest();
    for (int64_t row = threadIdx.x; row < num_rows; row += kWarp) {
      const ShardSummary& summary = all.of(r).summaries()[row];
      differs = differs || summary.draft_token != all.of(0).summaries()[row].draft_token;
    }
    if (__any_sync(kAllLanes, differs)) differing |= 1ull << r;
  }
  return differing;
}

// The choices of the coupled rows [first, first + count), whose distributions are p[0 … count). By
// a warp: a lane a row where the shards have run its race, all lanes a row where it is run among
// candidates.
__device__ void choose_coupled(const SummaryMessages& all, const VerifyRow* rows, int64_t first,
                               int count, RowDistribution* p) {
  const int lane = static_cast<int>(threadIdx.x);
  if (rows[first].races != 0) {
    const int64_t row = first + lane;
    if (lane >= count || !chooses_coupled(rows[row], p[lane])) return;
    choose(p[lane], coupled_runner(all, rows[row], row, p[lane], 0, 1));
    return;
  }
  __syncwarp();  // the rows are there for all
  for (int i = 0; i < count; ++i) {
    const VerifyRow& row = rows[first + i];
    if (!chooses_coupled(row, p[i])) continue;
    const Runner winner = warp_first(coupled_runner(all, row, first + i, p[i], lane, kWarp));
    __syncwarp();  // all have read the row
    if (lane == 0) choose(p[i], winner);
  }
}

// A warp a sequence: lane i combines row i. The first block looks for ranks that disagree, too.
// rows, sequences: no kernel before has written them.
__global__ void combine_sequences(SummaryMessages all, const VerifyRow* rows, int64_t num_rows,
                                  RowDistribution* p, unsigned long long* disagreeing,
                                  const SequenceToVerify* sequences, int64_t n, Verdict* verdicts) {
  __shared__ RowDistribution of_rows[kMaxRows];  // the sequence's, which are read again at once
  const bool there = blockIdx.x < n;
  SequenceToVerify sequence{};
  VerifyRow row{};
  if (there) sequence = sequences[blockIdx.x];
  const int64_t first = there ? sequence.rows.p - p : 0;
  const int count = there ? sequence.rows.num_drafted + 1 : 0;
  const int lane = static_cast<int>(threadIdx.x);
  if (lane < count) row = rows[first + lane];
  wait_for_earlier_kernels();
  if (blockIdx.x == 0) {
    const unsigned long long differing = find_disagreeing(all, num_rows);
    if (lane == 0) *disagreeing = differing;
  }
  if (count == 0) return;
  const DraftedToken drafted = load_drafted(sequence);  // on its way while rows are combined
  if (lane < count) {
    of_rows[lane] = combine_row(RowMessages(all, row, first + lane), row.processors);
  }
  if (sequence.processors.mode == VerifyMode::coupled) {
    choose_coupled(all, rows, first, count, of_rows);
  }
  __syncwarp();  // the rows are there for all
  if (lane < count) p[first + lane] = of_rows[lane];
  sequence.rows.p = of_rows;
  accept(sequence, drafted, verdicts[blockIdx.x]);
}

// What a block knows of a chunk.
struct RacePart {
  Runner first;
  Overlap overlap;
};

// A thread's group at one position: the target's logits and the draft's, or what kept_exp makes of
// them.
struct GroupAt {
  float p[kGroup], q[kGroup];
};

__device__ void load_at(const SequenceRows& rows, int position, int32_t first, GroupAt& at) {
  load_group(rows.target_logits + int64_t{position} * rows.shard_size, rows.shard_size, first,
             at.p);
  if (rows.draft_logits == nullptr || position >= rows.num_drafted) return;
  load_group(draft_shard(rows, position), rows.shard_size, first, at.q);
}

__device__ void exponentiate(const RowDistribution& row, int32_t token, unsigned there,
                             float (&logits)[kGroup]) {
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    logits[j] = (there >> j & 1) != 0 ? kept_exp_of(row, logits[j], token + j) : 0.0f;
  }
}

__device__ void add_overlap(const GroupAt& at, double p_scale, double q_scale, float lenience,
                            Overlap& total) {
  const double per_lenience = 1.0 / lenience;
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    const double p = at.p[j] * p_scale, q = at.q[j] * q_scale;
    const double lenient = min(p * per_lenience, q);
    total.sum += lenient;
    if (lenience < 1.0f) total.shift += lenient - min(p, q);
  }
}

// The copied tokens that are this thread's.
__device__ void add_copied(const SequenceRows& rows, int num_accepted, float lenience,
                           int32_t first, Overlap& total) {
  for (int i = 0; i <= num_accepted && i < rows.num_drafted; ++i) {
    const int32_t token = rows.drafted[i], owned = token - rows.first_token;
    if (owned < first || owned >= first + kGroup || !has_token(rows.shard_size, owned)) continue;
    const double exact = probability(rows.p[i], rows.p[i].draft_logit, token);
    const double lenient = copied_overlap(exact, lenience);
    total.sum += lenient;
    total.shift += lenient - exact;
  }
}

// This block's chunk: the sums over positions up to the first refusal, and the race at the last.
// at: the logits at position 0 where they were drafted with, or nothing. Behind the loop it is of
// the last position.
__device__ void race_chunk(const SequenceToVerify& sequence, int32_t first, int num_accepted,
                           GroupAt at, RacePart& part) {
  const SequenceRows& rows = sequence.rows;
  const float lenience = sequence.processors.lenience;
  const int32_t token = rows.first_token + first;
  unsigned there = group_bits(rows.shard_size, first);
  const bool drafted = rows.draft_logits != nullptr, refused = num_accepted < rows.num_drafted;
  Overlap overlap{};
  if (!drafted) {
    load_at(rows, num_accepted, first, at);
    add_copied(rows, num_accepted, lenience, first, overlap);
  }
  double p_scale, q_scale = 0.0;  // 1 / sum, as in probability()
  for (int position = drafted ? 0 : num_accepted;; ++position) {
    p_scale = 1.0 / rows.p[position].sum;
    exponentiate(rows.p[position], token, there, at.p);
    __syncwarp();  // p before q: both at once would take more registers than there are
    if (drafted && position < rows.num_drafted) {
      q_scale = 1.0 / rows.q[position].sum;
      exponentiate(rows.q[position], token, there, at.q);
      add_overlap(at, p_scale, q_scale, lenience, overlap);
    }
    if (position == num_accepted) break;
    load_at(rows, position + 1, first, at);
  }
  overlap.sum = block_sum(overlap.sum);
  if (lenience < 1.0f) overlap.shift = block_sum(overlap.shift);
  if (threadIdx.x == 0) part.overlap = overlap;  // before the race, which takes many registers
  double weights[kGroup];
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    weights[j] = at.p[j] * p_scale;
    if (drafted && refused) weights[j] -= at.q[j] * q_scale;
    const bool excluded = !drafted && refused && token + j == rows.drafted[num_accepted];
    if (!(weights[j] > 0.0) || excluded) there &= ~(1u << j);
  }
  Race race;
  enter_group(race, {sequence.key, num_accepted, Purpose::extra, static_cast<uint32_t>(token)},
              there, weights);
  Runner winner = block_first(race.best);
  if (threadIdx.x != 0) return;
  if (winner.token >= 0) {
    winner.logit = rows.target_logits[int64_t{num_accepted} * rows.shard_size + winner.token -
                                      rows.first_token];
  }
  part.first = winner;
}

// By the block that ended last. Thread 0 gets the result.
__device__ RaceResult merge_parts(const RacePart* parts, unsigned count) {
  RacePart all{kNobody, {}};
  for (unsigned c = threadIdx.x; c < count; c += blockDim.x) {
    all.first = first_of(all.first, parts[c].first);
    all.overlap.sum += parts[c].overlap.sum;
    all.overlap.shift += parts[c].overlap.shift;
  }
  const double sum = block_sum(all.overlap.sum), shift = block_sum(all.overlap.shift);
  const Runner first = block_first(all.first);
  return {first.time, sum, shift, first.token, first.logit};
}

// A block a chunk of a sequence; the last of a sequence's blocks merges them. committed: the
// verdicts, where no other rank has results; else null. sequences: no kernel before has written
// them.
__global__ void __launch_bounds__(kRaceThreads, 4)
    race_sequences(const SequenceToVerify* sequences, const Verdict* verdicts, RacePart* parts,
                   unsigned* arrivals, RaceResult* results, Verdict* committed) {
  const SequenceToVerify& sequence = sequences[blockIdx.y];
  const int32_t first = chunk_begin(blockIdx.x, sequence.rows.first_token) +
                        kGroup * static_cast<int32_t>(threadIdx.x);
  const bool may_race =
      sequence.rows.num_drafted >= 0 && sequence.processors.mode == VerifyMode::rejection;
  wait_for_earlier_kernels();
  GroupAt at;
  if (may_race && sequence.rows.draft_logits != nullptr) load_at(sequence.rows, 0, first, at);
  const Verdict& verdict = verdicts[blockIdx.y];
  RaceResult& result = results[blockIdx.y];
  if (!races(sequence, verdict)) {
    if (blockIdx.x == 0 && threadIdx.x == 0) result = {kNobody.time, 0.0, 0.0, -1, 0.0f};
    return;
  }
  RacePart* const of_sequence = parts + int64_t{blockIdx.y} * gridDim.x;
  race_chunk(sequence, first, verdict.num_accepted, at, of_sequence[blockIdx.x]);
  if (!is_last_block(&arrivals[blockIdx.y], gridDim.x)) return;
  const RaceResult merged = merge_parts(of_sequence, gridDim.x);
  if (threadIdx.x != 0) return;
  result = merged;
  if (committed != nullptr) commit_race(&merged, 1, 1, sequence.rows, committed[blockIdx.y]);
}

__global__ void commit(const SequenceToVerify* sequences, int64_t n, const RaceResult* results,
                       int ranks, Verdict* verdicts) {
  wait_for_earlier_kernels();
  const int64_t s = blockIdx.x * blockDim.x + threadIdx.x;
  if (s >= n || !races(sequences[s], verdicts[s])) return;
  commit_race(results + s, ranks, n, sequences[s].rows, verdicts[s]);
}

unsigned blocks_of(int64_t n) {
  return static_cast<unsigned>((n + kMergeThreads - 1) / kMergeThreads);
}

void race(const SequenceToVerify* sequences, int64_t n, int64_t shard_size, const Verdict* verdicts,
          RaceResult* results, Verdict* committed, const VerifyScratch& scratch,
          cudaStream_t stream) {
  if (n == 0) return;
  static_assert(sizeof(RacePart) <= sizeof(ChunkSummary));
  const dim3 grid(static_cast<unsigned>(num_chunks(shard_size)), static_cast<unsigned>(n));
  launch_overlapped(race_sequences, grid, kRaceThreads, 0, stream, sequences, verdicts,
                    static_cast<RacePart*>(scratch.parts), scratch.arrivals, results, committed);
}

}  // namespace

void copy_tokens(const TokenCopy* copies, int64_t n, cudaStream_t stream) {
  if (n > 0) launch_overlapped(copy, blocks_of(n), kMergeThreads, 0, stream, copies, n);
}

void combine_and_accept(const SummaryMessages& all, const VerifyRow* rows, int64_t num_rows,
                        RowDistribution* p, uint64_t* disagreeing,
                        const SequenceToVerify* sequences, int64_t n, Verdict* verdicts,
                        cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(n > 0 ? n : 1);
  launch_overlapped(combine_sequences, blocks, kWarp, 0, stream, all, rows, num_rows, p,
                    reinterpret_cast<unsigned long long*>(disagreeing), sequences, n, verdicts);
}

void accept_step(const SequenceToVerify* sequences, int64_t n, Verdict* verdicts,
                 cudaStream_t stream) {
  if (n == 0) return;
  launch_overlapped(accept_sequences, static_cast<unsigned>(n), kWarp, 0, stream, sequences,
                    verdicts);
}

void race_step(const SequenceToVerify* sequences, int64_t n, int64_t shard_size,
               const Verdict* verdicts, RaceResult* results, const VerifyScratch& scratch,
               cudaStream_t stream) {
  race(sequences, n, shard_size, verdicts, results, nullptr, scratch, stream);
}

void race_and_commit(const SequenceToVerify* sequences, int64_t n, int64_t shard_size,
                     Verdict* verdicts, RaceResult* results, const VerifyScratch& scratch,
                     cudaStream_t stream) {
  race(sequences, n, shard_size, verdicts, results, verdicts, scratch, stream);
}

void commit_step(const SequenceToVerify* sequences, int64_t n, const RaceResult* results, int ranks,
                 Verdict* verdicts, cudaStream_t stream) {
  if (n == 0) return;
  launch_overlapped(commit, blocks_of(n), kMergeThreads, 0, stream, sequences, n, results, ranks,
                    verdicts);
}

}  // namespace outrider::cuda
