#include "kernels/cuda/launch.h"
#include "kernels/cuda/processors.h"
#include "kernels/cuda/ptx.cuh"

namespace outrider::cuda {

namespace {

constexpr int64_t kEditChunk = 4096;  // tokens of a block: each goes through the whole list
constexpr unsigned kEditThreads = 256;

// A block a chunk of a row. Listed tokens are left to the threads that go through the list, so that
// every token is read and written by one thread alone.
__global__ void edit_chunks(const LogitEdit* edits) {
  wait_for_earlier_kernels();
  const LogitEdit row = edits[blockIdx.y];
  if (row.to == nullptr) return;
  __shared__ int32_t drafted[kMaxDraftTokens];
  if (static_cast<int32_t>(threadIdx.x) < row.num_drafted) {
    drafted[threadIdx.x] = row.drafted[threadIdx.x];
  }
  __syncthreads();
  const int64_t begin = blockIdx.x * kEditChunk;
  const int64_t end = min(begin + kEditChunk, int64_t{row.size});
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const int64_t token = row.first_token + i;
    const TokenState state = row.tokens[token];
    if ((state & kTokenListed) != 0) continue;
    row.to[i] = edited_logit(row, row.from[i], 0.0f, false, state,
                             times_drafted(drafted, row.num_drafted, token));
  }
  for (int32_t e = static_cast<int32_t>(threadIdx.x); e < row.num_listed;
       e += static_cast<int32_t>(blockDim.x)) {
    const ListedToken listed = row.listed[e];
    const int64_t i = int64_t{listed.token} - row.first_token;
    if (i < begin || i >= end) continue;
    row.to[i] = edited_logit(row, row.from[i], listed.bias,
                             row.ends_masked != 0 && listed.ends != 0, row.tokens[listed.token],
                             times_drafted(drafted, row.num_drafted, listed.token));
  }
}

}  // namespace

void edit_logits(const LogitEdit* edits, int64_t n, int64_t largest_size, cudaStream_t stream) {
  const int64_t chunks = (largest_size + kEditChunk - 1) / kEditChunk;
  if (n == 0 || chunks == 0) return;
  launch_overlapped(edit_chunks, dim3(static_cast<unsigned>(chunks), static_cast<unsigned>(n)),
                    kEditThreads, 0, stream, edits);
}

}  // namespace outrider::cuda
