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

// What sample_drafts keeps in its scratch, in this order.
struct Parts {
  ChunkSummary* chunks;     // [rows, chunks]
  Runner* runners;          // the same, once the chunks are merged
  ShardSummary* summaries;  // [rows]
  VerifyRow* rows;          // [rows]

  Parts(void* parts, int64_t num_rows, int64_t vocab_size) {
    chunks = static_cast<ChunkSummary*>(parts);
    runners = static_cast<Runner*>(parts);
    summaries = reinterpret_cast<ShardSummary*>(chunks + num_rows * num_chunks(vocab_size));
    rows = reinterpret_cast<VerifyRow*>(summaries + num_rows);
  }
};
static_assert(sizeof(ChunkSummary) % 8 == 0 && sizeof(Runner) <= sizeof(ChunkSummary));

__global__ void describe_rows(const DraftRow* drafts, int64_t num_rows, VerifyRow* rows) {
  wait_for_earlier_kernels();
  const int64_t r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= num_rows) return;
  rows[r] = {.logits_row = static_cast<int32_t>(r),
             .draft_token = -1,
             .candidates_slot = -1,
             .processors = drafts[r].processors,
             .key = {},
             .races = 0};
}

// A row of the draft's is whole: its summary is its distribution, and a filtered one is resolved
// from its logits at once.
__global__ void finish_rows(const float* logits, int64_t vocab_size, const DraftRow* drafts,
                            const ShardSummary* summaries, RowDistribution* q) {
  wait_for_earlier_kernels();
  const DraftRow& draft = drafts[blockIdx.x];
  const Candidate* none = nullptr;
  RowDistribution row = combine_summaries(&summaries[blockIdx.x], &none, 1, draft.processors);
  if (row.resolved == 0) {
    const BlockRow whole{logits + blockIdx.x * vocab_size, vocab_size};
    row = filter(whole, vocab_size, row, draft.processors);
  }
  if (threadIdx.x == 0) q[draft.drafted] = row;
}

__device__ inline bool races(const DraftRow& draft, const RowDistribution& q) {
  return q.non_finite == 0 && draft.processors.mode != VerifyMode::greedy;
}

// Verification of a row drawn by rejection reads its logits again, finite or not: they are kept.
__global__ void __launch_bounds__(kChunkThreads)
    race_rows(const float* logits, int64_t vocab_size, const DraftRow* drafts,
              const RowDistribution* q, float* q_logits, Runner* runners) {
  wait_for_earlier_kernels();
  const DraftRow& draft = drafts[blockIdx.y];
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
  const Runner best =
      draft.processors.mode == VerifyMode::coupled
          ? coupled_first(row, coupled_key(draft.key, draft.offset), begin, kChunk)
          : weighted_first(row, draft.key, draft.offset, Purpose::draft, begin, kChunk);
  if (threadIdx.x == 0) runners[blockIdx.y * gridDim.x + blockIdx.x] = best;
}

__global__ void draw_tokens(const DraftRow* drafts, int64_t num_rows, const RowDistribution* q,
                            const Runner* runners, int64_t count, int32_t* drafted) {
  wait_for_earlier_kernels();
  const int64_t r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= num_rows) return;
  const DraftRow& draft = drafts[r];
  const RowDistribution& row = q[draft.drafted];
  int32_t token = row.non_finite != 0 ? 0 : row.choice;
  if (races(draft, row)) {
    Runner best = kNobody;
    for (int64_t c = 0; c < count; ++c) best = first_of(best, runners[r * count + c]);
    token = best.token;
  }
  drafted[draft.drafted] = token;
}

}  // namespace

size_t verify_workspace_bytes(int64_t rows, int64_t vocab_size) {
  return rows *
         (num_chunks(vocab_size) * sizeof(ChunkSummary) + sizeof(ShardSummary) + sizeof(VerifyRow));
}

size_t verify_arrivals_bytes(int64_t rows) { return rows * sizeof(unsigned); }

void sample_drafts(const float* logits, int64_t vocab_size, const DraftRow* rows, int64_t num_rows,
                   int32_t* drafted, RowDistribution* q, float* q_logits,
                   const VerifyScratch& scratch, cudaStream_t stream) {
  if (num_rows == 0) return;
  const Parts parts(scratch.parts, num_rows, vocab_size);
  const auto n = static_cast<unsigned>(num_rows);
  const unsigned few = (n + kMergeThreads - 1) / kMergeThreads;
  const int64_t chunks = num_chunks(vocab_size);
  launch_overlapped(describe_rows, few, kMergeThreads, 0, stream, rows, num_rows, parts.rows);
  summarise(logits, vocab_size, 0, parts.rows, num_rows, parts.chunks, scratch.arrivals,
            parts.summaries, stream);
  launch_overlapped(finish_rows, n, row_threads(vocab_size), 0, stream, logits, vocab_size, rows,
                    parts.summaries, q);
  launch_overlapped(race_rows, dim3(static_cast<unsigned>(chunks), n), kChunkThreads, 0, stream,
                    logits, vocab_size, rows, q, q_logits, parts.runners);
  launch_overlapped(draw_tokens, few, kMergeThreads, 0, stream, rows, num_rows, q, parts.runners,
                    chunks, drafted);
}

}  // namespace outrider::cuda
