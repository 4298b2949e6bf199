#include "kernels/cpu/attention.h"

#include <algorithm>

#include "kernels/cpu/lanes_kernels.h"

namespace outrider::cpu {
namespace {

void rotate(float* head, const float* cos_row, const float* sin_row, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = head[i];
    const float b = head[i + half];
    head[i] = a * cos_row[i] - b * sin_row[i];
    head[i + half] = b * cos_row[i] + a * sin_row[i];
  }
}

}  // namespace

void rope_and_cache(float* qkv, const float* cos_table, const float* sin_table, bf16* k_pages,
                    bf16* v_pages, RowPointers map, int64_t rows, AttentionShape shape) {
  const int64_t head_dim = shape.head_dim;
  const int64_t half = head_dim / 2;
  for (int64_t r = 0; r < rows; ++r) {
    float* q = qkv + r * shape.qkv_width();
    const float* k = q + shape.num_heads * head_dim;
    const float* v = k + shape.num_kv_heads * head_dim;
    const int64_t position = map.positions[r];
    for (int64_t h = 0; h < shape.num_heads + shape.num_kv_heads; ++h) {
      rotate(q + h * head_dim, cos_table + position * half, sin_table + position * half, half);
    }
    const int64_t page = map.page_tables[map.sequences[r] * map.max_pages + position / kPageTokens];
    for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
      const int64_t to =
          ((page * shape.num_kv_heads + h) * kPageTokens + position % kPageTokens) * head_dim;
      for (int64_t i = 0; i < head_dim; ++i) {
        k_pages[to + i] = to_bf16(k[h * head_dim + i]);
        v_pages[to + i] = to_bf16(v[h * head_dim + i]);
      }
    }
  }
}

void attention(const float* qkv, const bf16* k_pages, const bf16* v_pages, bf16* y, float* scratch,
               RowPointers map, int64_t rows, AttentionShape shape, Isa isa) {
  if (rows == 0) return;
  const int64_t longest = *std::max_element(map.positions, map.positions + rows) + 1;
  const int64_t stride = (longest + kPageTokens - 1) / kPageTokens * kPageTokens;
  const auto kernel = isa == Isa::scalar ? scalar::attention
                      : isa == Isa::avx2 ? avx2::attention
                                         : avx512::attention;
  kernel(qkv, k_pages, v_pages, y, scratch, stride, map, rows, shape);
}

}  // namespace outrider::cpu
