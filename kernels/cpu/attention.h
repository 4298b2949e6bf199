// Rotary embedding, the write into the paged KV cache, and attention over it.
#pragma once

#include <cstdint>

#include "core/bf16.h"
#include "kernels/attention_types.h"
#include "kernels/cpu/isa.h"

namespace outrider::cpu {

// Rotates q and k by their positions (the half-split form of Hugging Face's Llama), in place, and
// writes k and v, rounded to bf16, to their pages. Pages of k: [num_pages, num_kv_heads,
// head_dim / 2, kPageTokens, 2], so that 16 tokens meet a query in one register; of v: [num_pages,
// num_kv_heads, kPageTokens / 2, head_dim, 2]: pairs of what is summed over stand together. Where
// an element is not finite, the whole key becomes NaN and such values zero: so rows that see the
// position become NaN, and neighbours that weigh it by zero stay what they are.
void rope_and_cache(float* qkv,  // [rows, (num_heads + 2 * num_kv_heads) * head_dim]: q, k, v
                    const float* cos_table,  // [max_positions, head_dim / 2], or null: q and k
                                             // stay as they are
                    const float* sin_table,  // [max_positions, head_dim / 2], or null
                    bf16* k_pages, bf16* v_pages, RowPointers map, int64_t rows,
                    AttentionShape shape, Isa isa);

constexpr int kAttentionQueries = 8;  // that read a page together

// Floats of scratch that attention needs, for contexts of up to max_pages pages.
int64_t attention_scratch_size(int64_t max_pages, int64_t head_dim);

// Each row attends to positions 0 … its own of its sequence, all read back from the pages in bf16
// (its own chunk too, so that chunking cannot show). q is rounded to bf16; scores are scaled by
// log2(e) / sqrt(head_dim) in fp32; weights 2^(score - largest) are rounded to bf16, and it is the
// rounded ones that are summed.
//
// Order: products are added in pairs, as linear.h says of vdpbf16ps. A dot product is two chains
// over head_dim, of the even and of the odd pairs; the maximum over the whole context first; the
// sum of weights in 16 lanes by position; values by one chain over pairs of positions; divided by
// the sum last. It depends on the row's context alone. Bound: the KV bytes of each row's context,
// once for eight queries of a KV head; from some four queries on, the 4 operations for each query,
// position and element of a head. Twin: ../cuda/attention.cu.
void attention(const float* qkv,  // as above; q alone is read
               const bf16* k_pages, const bf16* v_pages,
               bf16* y,         // [rows, num_heads * head_dim]
               float* scratch,  // [attention_scratch_size]
               RowPointers map, int64_t rows, AttentionShape shape, Isa isa);

}  // namespace outrider::cpu
