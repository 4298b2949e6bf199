// What the operations of a Backend cost on a GPU: bytes through its memory, operations of its
// matrix units, kernels of the CUDA backend. Pure arithmetic; sizes as in backend.h.
//
// An operand counts once, however often a cache gives it again, so bytes are the least that there
// can be. Weights count as the kernel that reads them has them: packed, or as cuBLASLt wants them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/numerics.h"
#include "kernels/activation.h"
#include "kernels/attention_types.h"
#include "kernels/weight_format.h"

namespace outrider {

// That cuBLASLt may use, where numerics are fast.
constexpr int64_t kFastLinearWorkspaceBytes = int64_t{32} << 20;
// Fewer rows wait for the weights' bytes in any case: those the other kernel streams.
constexpr int64_t kFastLinearMinRows = 65;
// Whether cuBLASLt makes a product, if it has something for the shape.
constexpr bool cuda_linear_is_fast(int64_t rows, Numerics numerics,
                                   WeightFormat format = WeightFormat::bf16) {
  return numerics == Numerics::fast && rows >= kFastLinearMinRows && format == WeightFormat::bf16;
}
// The most that the CUDA backend keeps of attention's partial results, unless sixteen rows over
// whole page tables have more.
constexpr int64_t kAttentionScratchBytes = int64_t{128} << 20;

struct OperationCost {
  int64_t weight_bytes = 0;      // of parameters, read
  int64_t kv_bytes = 0;          // of the KV cache, read and written
  int64_t activation_bytes = 0;  // of everything else, read and written
  int64_t flops = 0;             // of matrix products
  int64_t launches = 0;          // kernels

  int64_t bytes() const { return weight_bytes + kv_bytes + activation_bytes; }
  OperationCost& operator+=(const OperationCost& other);
  bool operator==(const OperationCost&) const = default;
};

// Rows that the CUDA backend pads a replayed pass of `rows` to: a product costs the same for 1 to 8
// rows, and for every 16 above, so that what is saved by padding to less is the rest of a pass.
int64_t cuda_padded_rows(int64_t rows);

// Positions that it lays attention's scratch memory out for, in a pass of `rows` rows whose longest
// sees `context`: 2048, 4, 16 … times as many, or for few rows, of which there is room for any, no
// bound.
int64_t cuda_padded_context(int64_t rows, int64_t context);

// Bytes of an [n, k] matrix in the CUDA backend's layout: whole panels of 16 rows, whole steps of
// 32 elements along k; int8: and a scale a row.
int64_t cuda_packed_bytes(int64_t n, int64_t k, WeightFormat format = WeightFormat::bf16);

OperationCost copy_tokens_cost(int64_t n);
OperationCost embed_cost(int64_t rows, int64_t hidden);
OperationCost linear_cost(int64_t rows, int64_t n, int64_t k, bool bias,
                          Numerics numerics = Numerics::exact,
                          WeightFormat format = WeightFormat::bf16);
// width: of what the activation gives.
OperationCost linear_activated_cost(int64_t rows, int64_t width, int64_t k, bool bias,
                                    Activation activation, Numerics numerics = Numerics::exact,
                                    WeightFormat format = WeightFormat::bf16);
OperationCost rms_norm_cost(int64_t rows, int64_t hidden, bool adds);
OperationCost layer_norm_cost(int64_t rows, int64_t hidden, bool adds);
OperationCost gather_rows_cost(int64_t rows, int64_t hidden);
OperationCost expand_logits_cost(int64_t rows, int64_t num_scored, int64_t vocab_size);
OperationCost table_logits_cost(int64_t rows, int64_t vocab_size);

// Rows of a pass that attend: `each` neighbours in each of `sequences`, at positions `context` …,
// and `padding` rows that are nobody's.
struct AttendingRows {
  int64_t sequences = 1;
  int64_t each = 1;
  int64_t context = 0;
  int64_t padding = 0;

  int64_t rows() const { return sequences * each + padding; }
};

OperationCost rope_and_cache_cost(const AttendingRows& rows, const AttentionShape& shape,
                                  bool rotates);
// Parts that the rows are attended to in, each by two kernels: as many rows together as scratch
// memory has room for, with the splits of `context` positions (RowMap::context). max_positions:
// what a page table holds.
int64_t cuda_attention_parts(int64_t rows, int64_t context, int64_t max_positions,
                             const AttentionShape& shape);
// Neighbouring rows of a sequence read its keys and values once together.
OperationCost attention_cost(const AttendingRows& rows, int64_t max_positions,
                             const AttentionShape& shape);
// Whether the CUDA backend rotates, caches and attends in one kernel.
bool cuda_attends_in_one(int64_t rows, const AttentionShape& shape);
// Where it does, of the sum of both, for rows that are somebody's: what is rotated is not written
// back, and q is not read again.
int64_t attending_in_one_saves_bytes(int64_t rows, const AttentionShape& shape, bool rotates);
OperationCost rope_and_attend_cost(const AttendingRows& rows, int64_t max_positions,
                                   const AttentionShape& shape, bool rotates);

// What linear_activated keeps of up to max_rows rows of n outputs: the product that cuBLASLt made
// and another kernel activates; else nothing.
int64_t cuda_activation_scratch_bytes(int64_t max_rows, int64_t n, Numerics numerics);

// What attention keeps of partial results for passes of up to max_rows rows: of all of them over
// whole page tables, unless that were too much; and its counters.
int64_t cuda_attention_scratch_bytes(int64_t max_rows, int64_t max_positions,
                                     const AttentionShape& shape);

// What the kernels that draw and verify keep of up to max_rows rows (or sequences).
int64_t cuda_verify_scratch_bytes(int64_t max_rows, int64_t vocab_size);
int64_t cuda_verify_arrivals_bytes(int64_t max_rows);

// Drafting and verification; a row of logits is read from memory once.
// kept: rows that are drawn by rejection, and written.
OperationCost sample_drafts_cost(int64_t rows, int64_t vocab_size, int64_t kept, bool all_greedy);
OperationCost verify_summary_cost(int64_t rows, int64_t num_slots, int64_t shard_size);
OperationCost combine_and_accept_cost();
OperationCost race_step_cost(int64_t sequences, int64_t shard_size);
OperationCost commit_step_cost();
OperationCost race_and_commit_cost(int64_t sequences, int64_t shard_size);

}  // namespace outrider
