// Drawing drafted tokens on the device. Twin: ../cpu/sample.cc, whose header says what is computed.
#pragma once

#include <cstdint>

#include "kernels/cuda/distribution.h"
#include "kernels/cuda/stream.h"
#include "kernels/verify_types.h"

namespace outrider::cuda {

// One launch where all rows are greedy, else three. Order of the sums: verify_summary's
// (distribution.h); races have none.
// Bound: num_rows * vocab_size * 4 bytes, twice (the second time from the second-level cache), and
// ~60 instructions a token for the races of rows that are not greedy; rows drawn by rejection are
// written as well.
void sample_drafts(float* logits, int64_t vocab_size, const DraftRow* rows, int64_t num_rows,
                   bool all_greedy, int32_t* drafted, RowDistribution* q, float* q_logits,
                   const VerifyScratch& scratch, cudaStream_t stream);

}  // namespace outrider::cuda
