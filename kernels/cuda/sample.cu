#include <algorithm>

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

__device__ inline bool races(const DraftRow& draft, const RowDistribution& q) {
  return q.non_finite == 0 && draft.processors.mode != VerifyMode::greedy;
}

// A row of the draft's is whole: its summary is its distribution, unless it is filtered. By the
// last of its blocks; one that runs no race draws its token at once. drafts: no kernel before has
// written them. The block that has the masked token masks it.
__global__ void __launch_bounds__(kChunkThreads, 8)
    summarise_drafts(float* logits, int64_t vocab_size, const DraftRow* drafts,
                     ChunkSummary* chunks, unsigned* arrivals, RowDistribution* q,
                     int32_t* drafted) {
  const DraftRow& draft = drafts[blockIdx.y];
  const RowToSummarise row{logits + blockIdx.y * vocab_size, static_cast<int32_t>(vocab_size), 0,
                           draft.processors.needs_sum(), draft.processors.temperature};
  wait_for_earlier_kernels();
  if (draft.masked >= 0) {
    const int32_t token = drafted[draft.masked];
    if (token / kChunk == static_cast<int32_t>(blockIdx.x) && threadIdx.x == 0) {
      logits[blockIdx.y * vocab_size + token] = kUnscoredLogit;
    }
    __syncthreads();
  }
  ChunkSummary* const of_row = chunks + int64_t{blockIdx.y} * gridDim.x;
  const ChunkSummary mine = summarise_chunk(row, nullptr);
  if (threadIdx.x == 0) of_row[blockIdx.x] = mine;
  if (!is_last_block(&arrivals[blockIdx.y], gridDim.x)) return;
  const ShardSummary summary = merge_chunks(row, false, -1, of_row, gridDim.x);
  if (threadIdx.x != 0) return;
  const Candidate* none = nullptr;
  const RowDistribution whole = combine_summaries(&summary, &none, 1, draft.processors);
  q[draft.drafted] = whole;
  if (!races(draft, whole)) drafted[draft.drafted] = whole.non_finite != 0 ? 0 : whole.choice;
}

// A block a row: filtered ones are resolved from their logits.
__global__ void filter_drafts(const float* logits, int64_t vocab_size, const DraftRow* drafts,
                              RowDistribution* q) {
  const DraftRow& draft = drafts[blockIdx.x];
  wait_for_earlier_kernels();
  if (q[draft.drafted].resolved != 0) return;
  const BlockRow whole{logits + blockIdx.x * vocab_size, vocab_size};
  const RowDistribution row = filter(whole, vocab_size, q[draft.drafted], draft.processors);
  __syncthreads();  // all have read it
  if (threadIdx.x == 0) q[draft.drafted] = row;
}

// A block a chunk of a row; the last of a row's blocks draws the token. Verification of a row drawn
// by rejection reads its logits again, finite or not: they are kept.
__global__ void __launch_bounds__(kChunkThreads, 6)
    race_drafts(const float* logits, int64_t vocab_size, const DraftRow* drafts,
                const RowDistribution* q, float* q_logits, Runner* runners, unsigned* arrivals,
                int32_t* drafted) {
  const DraftRow& draft = drafts[blockIdx.y];
  wait_for_earlier_kernels();
  const int32_t begin = chunk_begin(blockIdx.x, 0);
  const int64_t end = min(begin + kChunk, vocab_size);
  if (draft.processors.mode == VerifyMode::rejection) {
    const float* const from = logits + blockIdx.y * vocab_size;
    float* const to = q_logits + draft.drafted * vocab_size;
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) to[i] = from[i];
  }
  if (!races(draft, q[draft.drafted])) return;
  const RaceRow row{.p_logits = logits + blockIdx.y * vocab_size,
                    .q_logits = nullptr,
                    .p = q[draft.drafted],
                    .q = q[draft.drafted],
                    .excluded = -1,
                    .first_token = 0,
                    .size = static_cast<int32_t>(vocab_size)};
  const Runner best = draft.processors.mode == VerifyMode::coupled
                          ? coupled_first(row, coupled_key(draft.key, draft.offset),
                                          coupled_purpose(draft), begin, kChunk)
                          : weighted_first(row, draft.key, draft.offset, begin, kChunk);
  Runner* const of_row = runners + int64_t{blockIdx.y} * gridDim.x;
  if (threadIdx.x == 0) of_row[blockIdx.x] = best;
  if (!is_last_block(&arrivals[blockIdx.y], gridDim.x)) return;
  Runner first = kNobody;
  for (unsigned c = threadIdx.x; c < gridDim.x; c += blockDim.x) {
    first = first_of(first, of_row[c]);
  }
  first = block_first(first);
  if (threadIdx.x == 0) drafted[draft.drafted] = first.token;
}

}  // namespace

size_t verify_workspace_bytes(int64_t rows, int64_t vocab_size) {
  return rows * num_chunks(vocab_size) * sizeof(ChunkSummary);
}

size_t verify_arrivals_bytes(int64_t rows) { return rows * sizeof(unsigned); }

void sample_drafts(float* logits, int64_t vocab_size, const DraftRow* rows, int64_t num_rows,
                   bool all_greedy, int32_t* drafted, RowDistribution* q, float* q_logits,
                   const VerifyScratch& scratch, cudaStream_t stream) {
  if (num_rows == 0) return;
  static_assert(sizeof(Runner) <= sizeof(ChunkSummary));
  const auto n = static_cast<unsigned>(num_rows);
  const dim3 grid(static_cast<unsigned>(num_chunks(vocab_size)), n);
  launch_overlapped(summarise_drafts, grid, kChunkThreads, 0, stream, logits, vocab_size, rows,
                    static_cast<ChunkSummary*>(scratch.parts), scratch.arrivals, q, drafted);
  if (all_greedy) return;
  launch_overlapped(filter_drafts, n, row_threads(vocab_size), 0, stream, logits, vocab_size, rows,
                    q);
  launch_overlapped(race_drafts, grid, kChunkThreads, 0, stream, logits, vocab_size, rows, q,
                    q_logits, static_cast<Runner*>(scratch.parts), scratch.arrivals, drafted);
}

}  // namespace outrider::cuda
