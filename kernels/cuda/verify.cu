#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/race.cuh"
#include "kernels/cuda/verify.h"
#include "kernels/randomness.h"
#include "kernels/verify.h"

namespace outrider::cuda {

namespace {

constexpr unsigned kMergeThreads = 128;

__global__ void copy(const TokenCopy* copies, int64_t n) {
  wait_for_earlier_kernels();
  const int64_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && copies[i].from != nullptr) *copies[i].to = *copies[i].from;
}

// A warp a sequence: lane i tests drafted token i.
__global__ void accept(const SequenceToVerify* sequences, Verdict* verdicts) {
  wait_for_earlier_kernels();
  const SequenceToVerify& sequence = sequences[blockIdx.x];
  const int k = sequence.rows.num_drafted;
  if (k < 0) return;
  const int i = static_cast<int>(threadIdx.x);
  bool accepted = false;
  if (i < k) {
    const bool samples = sequence.processors.mode == VerifyMode::rejection;
    double p = 0.0, q = 0.0;
    draft_probability(sequence.rows, sequence.processors, i, p, q);
    accepted = accepts(p, q, samples ? accept_uniform(sequence.key, i) : 0.0);
  }
  const unsigned refused = ~__ballot_sync(kAllLanes, accepted);
  if (i == 0)
    verdicts[blockIdx.x] = verdict_of(sequence.rows, __ffs(static_cast<int>(refused)) - 1);
}

// This chunk's part of the sums.
__device__ Overlap chunk_overlap(const SequenceRows& rows, int num_accepted, float lenience,
                                 int64_t begin, int64_t end) {
  const double per_lenience = 1.0 / lenience;
  Overlap total{};
  for (int position = 0; position <= num_accepted && position < rows.num_drafted; ++position) {
    const RowDistribution& p = rows.p[position];
    if (rows.draft_logits == nullptr) {
      const int64_t owned = int64_t{rows.drafted[position]} - rows.first_token;
      if (threadIdx.x == 0 && begin <= owned && owned < end) {
        const double exact = probability(p, p.draft_logit, rows.drafted[position]);
        const double lenient = copied_overlap(exact, lenience);
        total.sum += lenient;
        total.shift += lenient - exact;
      }
      continue;
    }
    const RowDistribution& q = rows.q[position];
    const float* const p_logits = rows.target_logits + int64_t{position} * rows.shard_size;
    const float* const q_logits = draft_shard(rows, position);
    const double p_scale = 1.0 / p.sum, q_scale = 1.0 / q.sum;
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
      const auto token = static_cast<int32_t>(rows.first_token + i);
      const double a = kept_exp(p, p_logits[i], token) * p_scale;
      const double b = kept_exp(q, q_logits[i], token) * q_scale;
      const double lenient = min(a * per_lenience, b);
      total.sum += lenient;
      total.shift += lenient - min(a, b);
    }
  }
  return {block_sum(total.sum), lenience < 1.0f ? block_sum(total.shift) : 0.0};
}

__global__ void race_chunks(const SequenceToVerify* sequences, const Verdict* verdicts,
                            Runner* runners, Overlap* overlaps) {
  wait_for_earlier_kernels();
  const SequenceToVerify& sequence = sequences[blockIdx.y];
  if (!races(sequence, verdicts[blockIdx.y])) return;
  const int accepted = verdicts[blockIdx.y].num_accepted;
  const RaceRow row = extra_token_row(sequence.rows, accepted);
  const int64_t begin = blockIdx.x * kChunk;
  const int64_t end = min(begin + kChunk, int64_t{sequence.rows.shard_size});
  const Runner best = race_chunk(row, sequence.key, accepted, Purpose::extra, begin, end);
  const Overlap overlap =
      chunk_overlap(sequence.rows, accepted, sequence.processors.lenience, begin, end);
  if (threadIdx.x != 0) return;
  runners[blockIdx.y * gridDim.x + blockIdx.x] = best;
  overlaps[blockIdx.y * gridDim.x + blockIdx.x] = overlap;
}

__global__ void finish_races(const SequenceToVerify* sequences, int64_t n, const Verdict* verdicts,
                             const Runner* runners, const Overlap* overlaps, int64_t count,
                             RaceResult* results) {
  wait_for_earlier_kernels();
  const int64_t s = blockIdx.x * blockDim.x + threadIdx.x;
  if (s >= n) return;
  Runner best = kNobody;
  Overlap overlap{};
  if (races(sequences[s], verdicts[s])) {
    for (int64_t c = 0; c < count; ++c) {
      best = first_of(best, runners[s * count + c]);
      overlap.sum += overlaps[s * count + c].sum;
      overlap.shift += overlaps[s * count + c].shift;
    }
  }
  results[s] = {best.time, overlap.sum, overlap.shift, best.token, best.logit};
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

}  // namespace

void copy_tokens(const TokenCopy* copies, int64_t n, cudaStream_t stream) {
  if (n > 0) launch_overlapped(copy, blocks_of(n), kMergeThreads, 0, stream, copies, n);
}

void accept_step(const SequenceToVerify* sequences, int64_t n, Verdict* verdicts,
                 cudaStream_t stream) {
  if (n > 0) launch_overlapped(accept, static_cast<unsigned>(n), kWarp, 0, stream, sequences, verdicts);
}

void race_step(const SequenceToVerify* sequences, int64_t n, int64_t shard_size,
               const Verdict* verdicts, RaceResult* results, void* workspace, cudaStream_t stream) {
  if (n == 0) return;
  const int64_t chunks = num_chunks(shard_size);
  auto* const runners = static_cast<Runner*>(workspace);
  auto* const overlaps = reinterpret_cast<Overlap*>(runners + n * chunks);
  if (chunks > 0) {
    launch_overlapped(race_chunks, dim3(static_cast<unsigned>(chunks), static_cast<unsigned>(n)),
           kChunkThreads, 0, stream, sequences, verdicts, runners, overlaps);
  }
  launch_overlapped(finish_races, blocks_of(n), kMergeThreads, 0, stream, sequences, n, verdicts, runners,
         overlaps, chunks, results);
}

void commit_step(const SequenceToVerify* sequences, int64_t n, const RaceResult* results, int ranks,
                 Verdict* verdicts, cudaStream_t stream) {
  if (n > 0) {
    launch_overlapped(commit, blocks_of(n), kMergeThreads, 0, stream, sequences, n, results, ranks, verdicts);
  }
}

}  // namespace outrider::cuda
