#include <algorithm>

#include "kernels/cuda/distribution.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/race.cuh"
#include "kernels/cuda/resolve.cuh"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/summary.cuh"
#include "kernels/distribution.h"

namespace outrider::cuda {

namespace {

constexpr unsigned kMergeThreads = 128;
constexpr unsigned kMaxResolveThreads = 512;  // its race takes 82 registers a thread, of 65,536

__device__ inline float logit_of_rank(unsigned long long rank) {
  return logit_of_key(static_cast<int32_t>(static_cast<uint32_t>(rank >> 32) ^ 0x80000000u));
}

__device__ inline int32_t token_of_rank(unsigned long long rank) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(rank));
}

__global__ void summarise_chunks(const float* logits, int64_t shard_size, int32_t first_token,
                                 const VerifyRow* rows, ChunkSummary* chunks) {
  wait_for_earlier_kernels();
  const VerifyRow& row = rows[blockIdx.y];
  const float* const of_row = logits + row.logits_row * shard_size;
  const int64_t begin = blockIdx.x * kChunk;
  const int64_t end = min(begin + kChunk, shard_size);
  unsigned long long best = 0;
  bool non_finite = false;
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const float logit = of_row[i];
    const unsigned long long rank = rank_of(order_key(logit), i);
    best = rank > best ? rank : best;
    non_finite = non_finite || !is_finite(logit);
  }
  best = block_max(best);
  non_finite = __syncthreads_or(non_finite ? 1 : 0) != 0;
  double sum = 0.0;
  if (row.processors.mode != VerifyMode::greedy && !non_finite) {
    const float max = logit_of_rank(best);
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
      sum += exp_f32((of_row[i] - max) / row.processors.temperature);
    }
    sum = block_sum(sum);
  }
  Runner runner = kNobody;
  if (row.races != 0 && !non_finite) {
    const RaceRow shard = coupled_shard(of_row, first_token, static_cast<int32_t>(shard_size),
                                        row.processors.temperature);
    runner = coupled_chunk(shard, row.key, begin, end);
  }
  if (threadIdx.x == 0) {
    chunks[blockIdx.y * gridDim.x + blockIdx.x] = {sum, best, runner, non_finite ? 1 : 0};
  }
}

__global__ void merge_chunks(const float* logits, int64_t shard_size, int32_t first_token,
                             const VerifyRow* rows, const ChunkSummary* chunks, int64_t count,
                             ShardSummary* summaries) {
  wait_for_earlier_kernels();
  const VerifyRow& row = rows[blockIdx.x];
  const ChunkSummary* const of_row = chunks + blockIdx.x * count;
  unsigned long long best = 0;
  int non_finite = 0;
  for (int64_t c = threadIdx.x; c < count; c += blockDim.x) {
    best = of_row[c].best > best ? of_row[c].best : best;
    non_finite |= of_row[c].non_finite;
  }
  best = block_max(best);
  non_finite = __syncthreads_or(non_finite);
  const float max = shard_size > 0 ? logit_of_rank(best) : -kInfinity;
  double sum = 0.0;
  if (row.processors.mode != VerifyMode::greedy && non_finite == 0) {
    for (int64_t c = threadIdx.x; c < count; c += blockDim.x) {
      const double below = static_cast<double>(logit_of_rank(of_row[c].best)) - max;
      sum += of_row[c].sum_exp * exp_f64(below / row.processors.temperature);
    }
    sum = block_sum(sum);
  }
  Runner runner = kNobody;
  if (row.races != 0 && non_finite == 0) {
    for (int64_t c = threadIdx.x; c < count; c += blockDim.x) {
      runner = first_of(runner, of_row[c].runner);
    }
    runner = block_first(runner);
  }
  if (threadIdx.x != 0) return;
  const int64_t drafted = int64_t{row.draft_token} - first_token;
  const bool owned = row.draft_token >= 0 && 0 <= drafted && drafted < shard_size;
  summaries[blockIdx.x] = {
      .sum_exp = sum,
      .runner = runner,
      .max = max,
      .argmax = first_token + (shard_size > 0 ? token_of_rank(best) : 0),
      .draft_logit = owned ? logits[row.logits_row * shard_size + drafted] : -kInfinity,
      .num_candidates = 0,
      .non_finite = non_finite,
      .shard_size = static_cast<int32_t>(shard_size),
      .draft_token = row.draft_token};
}

struct Crossing {
  int bucket;
  int above;  // in the buckets above it
};

// Where the best `wanted`, counted from the last bucket down, end. By one warp, 64 buckets a turn.
__device__ void find_crossing(const int* counts, int wanted, Crossing& found) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int above = 0;
  for (int top = kBuckets - 1;; top -= 2 * kWarp) {
    const int bucket = top - 2 * lane;
    const int upper = counts[bucket], both = upper + counts[bucket - 1];
    const int total = __reduce_add_sync(kAllLanes, both);
    if (above + total < wanted) {
      above += total;
      continue;
    }
    int up_to = both;  // with the lanes before this one
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int further = __shfl_up_sync(kAllLanes, up_to, distance);
      if (lane >= distance) up_to += further;
    }
    const int before = above + up_to - both;
    if (before < wanted && wanted <= before + upper) found = {bucket, before};
    if (before + upper < wanted && wanted <= before + both) found = {bucket - 1, before + upper};
    return;
  }
}

// The smallest rank among a row's best `wanted` tokens, by radix selection. All threads call.
__device__ unsigned long long select_rank(const float* logits, int64_t size, int wanted) {
  __shared__ int counts[kBuckets];
  __shared__ Crossing crossing;
  unsigned long long fixed = 0, prefix = 0;
  for (int shift = 64 - kRadixBits;; shift = max(shift - kRadixBits, 0)) {
    for (int b = static_cast<int>(threadIdx.x); b < kBuckets; b += static_cast<int>(blockDim.x)) {
      counts[b] = 0;
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
      const unsigned long long rank = rank_of(order_key(logits[i]), i);
      if ((rank & fixed) != prefix) continue;
      atomicAdd(&counts[rank >> shift & (kBuckets - 1)], 1);
    }
    __syncthreads();
    if (threadIdx.x < kWarp) find_crossing(counts, wanted, crossing);
    __syncthreads();
    const int bucket = crossing.bucket;
    wanted -= crossing.above;
    const int left = counts[bucket] - wanted;  // of the bucket, not wanted
    fixed |= static_cast<unsigned long long>(kBuckets - 1) << shift;
    prefix = (prefix & ~(static_cast<unsigned long long>(kBuckets - 1) << shift)) |
             static_cast<unsigned long long>(bucket) << shift;
    __syncthreads();  // before the counts are cleared
    if (left == 0 || shift == 0) return prefix;
  }
}

// The best kCandidates of each row that wants some, in order.
__global__ void select_candidates(const float* logits, int64_t shard_size, int32_t first_token,
                                  const VerifyRow* rows, ShardSummary* summaries,
                                  Candidate* candidates) {
  wait_for_earlier_kernels();
  const VerifyRow& row = rows[blockIdx.x];
  ShardSummary& summary = summaries[blockIdx.x];
  if (row.candidates_slot < 0 || row.processors.mode == VerifyMode::greedy ||
      summary.non_finite != 0 || shard_size == 0) {
    return;
  }
  __shared__ unsigned long long best[kCandidates];
  __shared__ int count;
  const float* const of_row = logits + row.logits_row * shard_size;
  const int taken = static_cast<int>(min(static_cast<int64_t>(kCandidates), shard_size));
  const unsigned long long last = select_rank(of_row, shard_size, taken);
  if (threadIdx.x < kCandidates) best[threadIdx.x] = 0;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < shard_size; i += blockDim.x) {
    const unsigned long long rank = rank_of(order_key(of_row[i]), i);
    if (rank >= last) best[atomicAdd(&count, 1)] = rank;
  }
  __syncthreads();
  // Each finds its place: ranks are distinct.
  if (static_cast<int>(threadIdx.x) < taken) {
    const unsigned long long mine = best[threadIdx.x];
    int place = 0;
    for (int i = 0; i < taken; ++i) place += best[i] > mine ? 1 : 0;
    candidates[int64_t{row.candidates_slot} * kCandidates + place] = {
        logit_of_rank(mine), first_token + token_of_rank(mine)};
  }
  if (threadIdx.x == 0) summary.num_candidates = taken;
}

__global__ void combine(SummaryMessages all, const VerifyRow* rows, int64_t num_rows,
                        RowDistribution* p, unsigned long long* disagreeing) {
  wait_for_earlier_kernels();
  // One block: the ranks that disagree, over all rows.
  unsigned long long differing = 0;
  for (int r = 1; r < all.ranks; ++r) {
    if (all.of(r).digest() != all.of(0).digest()) differing |= 1ull << r;
  }
  for (int64_t row = threadIdx.x; row < num_rows; row += blockDim.x) {
    const RowMessages of_row(all, rows[row], row);
    for (int r = 1; r < all.ranks; ++r) {
      if (of_row.summary(r).draft_token != of_row.summary(0).draft_token) differing |= 1ull << r;
    }
    p[row] = combine_row(of_row, rows[row].processors);
  }
  __syncthreads();  // p is there for all
  for (int64_t row = threadIdx.x / kWarp; row < num_rows; row += blockDim.x / kWarp) {
    if (!chooses_coupled(rows[row], p[row])) continue;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const Runner first = warp_first(coupled_runner(all, rows[row], row, p[row], lane, kWarp));
    if (lane == 0) choose(p[row], first);
  }
  differing =
      block_reduce(differing, [](unsigned long long a, unsigned long long b) { return a | b; });
  if (threadIdx.x == 0) *disagreeing = differing;
}

// A block a row.
__global__ void resolve(const RowToResolve* rows, int64_t vocab_size) {
  wait_for_earlier_kernels();
  const RowToResolve& row = rows[blockIdx.x];
  const Processors& processors = row.processors;
  RowDistribution resolved =
      filter(BlockRow{row.logits, vocab_size}, vocab_size, *row.p, processors);
  if (processors.mode == VerifyMode::coupled) {
    RaceRow whole =
        coupled_shard(row.logits, 0, static_cast<int32_t>(vocab_size), processors.temperature);
    whole.p = resolved;
    choose(resolved, coupled_chunk(whole, row.key, 0, vocab_size));
  }
  __syncthreads();
  if (threadIdx.x == 0) *row.p = resolved;
}

}  // namespace

void summarise(const float* logits, int64_t shard_size, int32_t first_token, const VerifyRow* rows,
               int64_t num_rows, ChunkSummary* chunks, ShardSummary* summaries,
               cudaStream_t stream) {
  const int64_t count = num_chunks(shard_size);
  if (count > 0) {
    const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(num_rows));
    launch_overlapped(summarise_chunks, grid, kChunkThreads, 0, stream, logits, shard_size, first_token, rows,
           chunks);
  }
  launch_overlapped(merge_chunks, static_cast<unsigned>(num_rows), kMergeThreads, 0, stream, logits,
         shard_size, first_token, rows, chunks, count, summaries);
}

void verify_summary(const float* logits, int64_t shard_size, int32_t first_token,
                    const VerifyRow* rows, int64_t num_rows, ShardSummary* summaries,
                    Candidate* candidates, void* workspace, cudaStream_t stream) {
  if (num_rows == 0) return;
  summarise(logits, shard_size, first_token, rows, num_rows, static_cast<ChunkSummary*>(workspace),
            summaries, stream);
  launch_overlapped(select_candidates, static_cast<unsigned>(num_rows), row_threads(shard_size), 0, stream,
         logits, shard_size, first_token, rows, summaries, candidates);
}

void combine_rows(const SummaryMessages& all, const VerifyRow* rows, int64_t num_rows,
                  RowDistribution* p, uint64_t* disagreeing, cudaStream_t stream) {
  launch_overlapped(combine, 1, kMergeThreads, 0, stream, all, rows, num_rows, p,
         reinterpret_cast<unsigned long long*>(disagreeing));
}

void resolve_rows(const RowToResolve* rows, int64_t num_rows, int64_t vocab_size,
                  cudaStream_t stream) {
  if (num_rows == 0) return;
  launch_overlapped(resolve, static_cast<unsigned>(num_rows),
         std::min(row_threads(vocab_size), kMaxResolveThreads), 0, stream, rows, vocab_size);
}

}  // namespace outrider::cuda
