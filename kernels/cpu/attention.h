// Rotary embedding, the write into the paged KV cache, and attention over it.
#pragma once

#include <cstdint>

#include "core/bf16.h"
#include "kernels/attention_types.h"
#include "kernels/cpu/isa.h"

namespace outrider::cpu {

// Rotates q and k by their positions (the half-split form of Hugging Face's Llama), in place, and
// writes k and v, rounded to bf16, to their pages. Pages of v: [num_pages, num_kv_heads,
// kPageTokens, head_dim]; of k, so that 16 tokens meet a query in one register: [num_pages,
// num_kv_heads, head_dim / 2, kPageTokens, 2].
void rope_and_cache(float* qkv,  // [rows, (num_heads + 2 * num_kv_heads) * head_dim]: q, k, v
                    const float* cos_table,  // [max_positions, head_dim / 2], or null: q and k
                                             // stay as they are
                    const float* sin_table,  // [max_positions, head_dim / 2], or null
                    bf16* k_pages, bf16* v_pages, RowPointers map, int64_t rows,
                    AttentionShape shape, Isa isa);

constexpr int kAttentionQueries = 8;  // that read a page together

// Each row attends to positions 0 … its own of its sequence, all read back from the pages in bf16
// (its own chunk too, so that chunking cannot show). Scores q·k / sqrt(head_dim) and the softmax in
// fp32. Bound: the KV bytes of each row's context. Order: dot products in 16 lanes by fma and a
// fixed tree; the maximum over the whole context first; the sum of exponentials in 16 lanes by
// position; values accumulated by position, by fma; divided by the sum last. It depends on the
// row's context alone. Twin: ../cuda/attention.cu.
void attention(const float* qkv,  // as above; q alone is read
               const bf16* k_pages, const bf16* v_pages,
               bf16* y,         // [rows, num_heads * head_dim]
               float* scratch,  // [pages of the longest context, kAttentionQueries, kPageTokens]
               RowPointers map, int64_t rows, AttentionShape shape, Isa isa);

}  // namespace outrider::cpu
