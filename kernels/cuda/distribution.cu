#include <algorithm>
#include <limits>

#include "kernels/cuda/distribution.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/race.cuh"
#include "kernels/cuda/resolve.cuh"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/summarise.cuh"
#include "kernels/distribution.h"

namespace outrider::cuda {

namespace {

constexpr unsigned kMaxResolveThreads = 512;  // which leaves each of them 128 registers

// A block a chunk of a row; the last of a row's blocks merges them. rows: no kernel before has
// written them.
__global__ void __launch_bounds__(kChunkThreads, 8)
    summarise_rows(const float* logits, int64_t shard_size, int32_t first_token,
                   const VerifyRow* rows, ChunkSummary* chunks, unsigned* arrivals,
                   ShardSummary* summaries) {
  const VerifyRow& row = rows[blockIdx.y];
  const RowToSummarise shard{logits + row.logits_row * shard_size, static_cast<int32_t>(shard_size),
                             first_token, row.processors.needs_sum(), row.processors.temperature};
  const bool races = row.races != 0;
  wait_for_earlier_kernels();
  ChunkSummary* const of_row = chunks + int64_t{blockIdx.y} * gridDim.x;
  const ChunkSummary mine = summarise_chunk(shard, races ? &row.key : nullptr);
  if (threadIdx.x == 0) of_row[blockIdx.x] = mine;
  if (!is_last_block(&arrivals[blockIdx.y], gridDim.x)) return;
  const ShardSummary summary = merge_chunks(shard, races, row.token(), of_row, gridDim.x);
  if (threadIdx.x == 0) summaries[blockIdx.y] = summary;
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
    choose(resolved, coupled_first(whole, row.key, Purpose::coupled, 0, whole.size));
  }
  __syncthreads();
  if (threadIdx.x == 0) *row.p = resolved;
}

}  // namespace

void verify_summary(const float* logits, int64_t shard_size, int32_t first_token,
                    const VerifyRow* rows, int64_t num_rows, int64_t num_slots,
                    ShardSummary* summaries, Candidate* candidates, const VerifyScratch& scratch,
                    cudaStream_t stream) {
  if (num_rows == 0) return;
  const dim3 grid(static_cast<unsigned>(num_chunks(shard_size)), static_cast<unsigned>(num_rows));
  launch_overlapped(summarise_rows, grid, kChunkThreads, 0, stream, logits, shard_size, first_token,
                    rows, static_cast<ChunkSummary*>(scratch.parts), scratch.arrivals, summaries);
  if (num_slots == 0) return;
  launch_overlapped(select_candidates, static_cast<unsigned>(num_rows), row_threads(shard_size), 0,
                    stream, logits, shard_size, first_token, rows, summaries, candidates);
}

void resolve_rows(const RowToResolve* rows, int64_t num_rows, int64_t vocab_size,
                  cudaStream_t stream) {
  if (num_rows == 0) return;
  launch_overlapped(resolve, static_cast<unsigned>(num_rows),
                    std::min(row_threads(vocab_size), kMaxResolveThreads), 0, stream, rows,
                    vocab_size);
}

}  // namespace outrider::cuda
