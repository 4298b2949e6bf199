#include "kernels/cpu/attention.h"

#include "kernels/cpu/lanes_kernels.h"

namespace outrider::cpu {

void rope_and_cache(float* qkv, const float* cos_table, const float* sin_table, bf16* k_pages,
                    bf16* v_pages, RowPointers map, int64_t rows, AttentionShape shape, Isa isa) {
  const auto kernel = isa == Isa::scalar ? scalar::rope_and_cache
                      : isa == Isa::avx2 ? avx2::rope_and_cache
                                         : avx512::rope_and_cache;
  kernel(qkv, cos_table, sin_table, k_pages, v_pages, map, rows, shape);
}

int64_t attention_scratch_size(int64_t max_pages, int64_t head_dim) {
  const int64_t of_q = (head_dim + kPageTokens - 1) / kPageTokens;
  return (of_q + max_pages) * kAttentionQueries * kPageTokens;
}

void attention(const float* qkv, const bf16* k_pages, const bf16* v_pages, bf16* y, float* scratch,
               RowPointers map, int64_t rows, AttentionShape shape, Isa isa) {
  const auto kernel = isa == Isa::scalar   ? scalar::attention
                      : isa == Isa::avx2   ? avx2::attention
                      : isa == Isa::avx512 ? avx512::attention
                                           : avx512_bf16::attention;
  kernel(qkv, k_pages, v_pages, y, scratch, map, rows, shape);
}

}  // namespace outrider::cpu
