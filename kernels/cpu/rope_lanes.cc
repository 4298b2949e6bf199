// rope_and_cache of attention.h for one instruction set (lanes.h).
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/lanes_kernels.h"

namespace outrider::cpu::OUTRIDER_LANES {
namespace {

OUTRIDER_INLINE void rotate(float* head, const float* cos_row, const float* sin_row, int64_t half) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Lanes a = load(head + i), b = load(head + half + i);
    const Lanes c = load(cos_row + i), s = load(sin_row + i);
    store(head + i, sub(mul(a, c), mul(b, s)));
    store(head + half + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = head[i];
    const float b = head[i + half];
    head[i] = a * cos_row[i] - b * sin_row[i];
    head[i + half] = b * cos_row[i] + a * sin_row[i];
  }
}

// 16 numbers, zeros behind the first `count`, rounded to bf16; true where all of them are finite.
OUTRIDER_INLINE bool round_some(const float* x, int64_t count, bf16 (&rounded)[kLanes]) {
  store_narrow(rounded, load(x, count));
  bool finite = true;
  for (const bf16 element : rounded) finite &= (element.bits & 0x7f80u) != 0x7f80u;
  return finite;
}

// Writes a token's key and value. What is not finite is kept out of the sums of rows that do not
// see the token: the value is zero in its place, and the key says NaN.
OUTRIDER_INLINE void cache_token(const float* k, const float* v, bf16* k_page, bf16* v_page,
                                 int64_t token, int64_t head_dim) {
  constexpr bf16 kNan = {0x7fc0};
  bf16 rounded[kLanes];
  bool finite = true;
  bf16* const values = v_page + token / 2 * 2 * head_dim + token % 2;
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const int64_t count = head_dim - d < kLanes ? head_dim - d : kLanes;
    if (!round_some(v + d, count, rounded)) {
      finite = false;
      for (bf16& value : rounded) value = (value.bits & 0x7f80u) == 0x7f80u ? bf16{} : value;
    }
    for (int64_t i = 0; i < count; ++i) values[2 * (d + i)] = rounded[i];
  }
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    finite &= round_some(k + d, head_dim - d, rounded);
  }
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const int64_t count = head_dim - d < kLanes ? head_dim - d : kLanes;
    round_some(k + d, count, rounded);
    for (bf16& element : rounded) element = finite ? element : kNan;
    bf16* const to = k_page + d * kPageTokens + 2 * token;
    for (int64_t i = 0; i < count; i += 2) {
      __builtin_memcpy(to + i * kPageTokens, rounded + i, 2 * sizeof(bf16));
    }
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
    const int64_t token = position % kPageTokens;
    const int64_t rotated = cos_table == nullptr ? 0 : shape.num_heads + shape.num_kv_heads;
    for (int64_t h = 0; h < rotated; ++h) {
      rotate(q + h * head_dim, cos_table + position * half, sin_table + position * half, half);
    }
    const int64_t page = map.page_tables[map.sequences[r] * map.max_pages + position / kPageTokens];
    for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
      const int64_t page_head = (page * shape.num_kv_heads + h) * kPageTokens * head_dim;
      cache_token(k + h * head_dim, v + h * head_dim, k_pages + page_head, v_pages + page_head,
                  token, head_dim);
    }
  }
}

}  // namespace outrider::cpu::OUTRIDER_LANES
