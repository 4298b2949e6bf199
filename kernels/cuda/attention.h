// Rotary embedding, the write into the paged KV cache, and attention over it.
//
// Pages of k: [num_pages, num_kv_heads, kPageTokens, head_dim]. Pages of v, where head_dim is a
// multiple of 16: [num_pages, num_kv_heads, head_dim / 16] blocks of 512 bytes, each two right
// operands of mma.m16n8k16 over the page's positions, 16 bytes a lane; otherwise as k. Values are
// finite where nothing was written, too: they are weighed by zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/bf16.h"
#include "kernels/attention_types.h"
#include "kernels/cuda/stream.h"

namespace outrider::cuda {

// Rotates q and k by their positions (the half-split form of Hugging Face's Llama), in place, and
// writes k and v, rounded to bf16, to their pages. Rows of position -1 are left out. Where an
// element is not finite, the whole key becomes NaN and such values zero: so rows that see the
// position become NaN, and rows of the same tile that weigh it by zero stay what they are.
// Bound: rows * qkv_width * 8 bytes. No sums but of a rotation's two products. Twin:
// ../cpu/attention.cc.
void rope_and_cache(float* qkv,  // [rows, (num_heads + 2 * num_kv_heads) * head_dim]: q, k, v
                    const float* cos_table,  // [max_positions, head_dim / 2], or null: q and k
                                             // stay as they are
                    const float* sin_table,  // [max_positions, head_dim / 2], or null
                    bf16* k_pages, bf16* v_pages, RowPointers map, int64_t rows,
                    AttentionShape shape, cudaStream_t stream);

constexpr int kMaxHeadDim = 256;
constexpr int kSplitTokens = 128;  // positions whose part of a sum is made in one piece

// Bytes of workspace in which `rows` rows that see up to `context` positions are attended to
// together. With less, attention goes through them a few at a time; it needs those of one row.
size_t attention_workspace_bytes(int64_t rows, int64_t context, AttentionShape shape);

// Each row attends to positions 0 … its own of its sequence, all read back from the pages in bf16
// (its own chunk too, so that chunking cannot show); rows of position -1 become zeros. q is rounded
// to bf16; scores are scaled in fp32; weights are rounded to bf16, and it is the rounded ones that
// are summed.
//
// Order: positions are cut into splits of kSplitTokens, from 0. In a split: scores by one chain of
// mma.m16n8k16 over head_dim; the largest of them; weights 2^(score - largest); their sum, in 8
// groups of 16 positions; values by one chain over all of the split, in order. Splits are then
// added in order, each scaled to the largest maximum. It depends on the row's context alone.
//
// Bound: the KV bytes of each sequence's context, once for neighbouring rows of a sequence with up
// to 64 queries of a KV head (32 above head_dim 128); in long prefill, 4 operations for each query,
// position and element of a head. Twin: ../cpu/attention.cc.
void attention(const float* qkv,  // as above; q alone is read
               const bf16* k_pages, const bf16* v_pages,
               bf16* y,  // [rows, num_heads * head_dim]
               void* workspace, size_t workspace_bytes, RowPointers map, int64_t rows,
               int64_t context,  // at least 1; no row's position reaches it
               AttentionShape shape, cudaStream_t stream);

constexpr int64_t kFewRows = 16;  // that attention_of_few takes
constexpr int64_t kFewMaxHeadDim = 128;
constexpr int64_t kFewCounters =
    4096;  // of groups of rows and heads: no more than rows times heads

// rope_and_cache and attention in one kernel, the same bits: steps of few rows wait for each
// other's latency more than for memory. head_dim is a multiple of 16, up to kFewMaxHeadDim;
// workspace is for all rows over whole page tables. What stands in qkv stays as it is. If it reads
// early, pages that no row of these writes to, and the map, are read before the kernels before it
// in the stream are over: another pass that wrote them is, since passes begin with embed; another
// launch of the same pass and layer is not. Bound: as attention; two latencies of memory, and of
// its second-level cache some more. Order: attention's. Twins: of both, in ../cpu/attention.cc.
void attention_of_few(
    const float* qkv, const float* cos_table, const float* sin_table, bf16* k_pages, bf16* v_pages,
    bf16* y, void* workspace,
    unsigned* arrivals,  // [kFewCounters], zero before and after
    RowPointers map, int64_t rows, bool reads_early, AttentionShape shape,
    int64_t num_multiprocessors,  // that blocks are made for: the bits are the same
    cudaStream_t stream);

}  // namespace outrider::cuda
