// attention of attention.h for one instruction set (lanes.h).
//
// Queries (a row and a head) that share a KV head meet its pages together, kAttentionQueries at a
// time, so each K and V is widened once for all of them. Each query's arithmetic is as if it were
// alone, and ends with its own context: what lies beyond it in a page is never used.
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/lanes_kernels.h"

namespace outrider::cpu::OUTRIDER_LANES {
namespace {

constexpr int64_t kPagesAhead = 2;  // of the one in use, fetched into the cache
#if defined(__AVX512F__)
constexpr int kValueChunks = 4;  // Q * this many sums in registers
#else
constexpr int kValueChunks = 1;
#endif

struct Query {
  const float* q;   // [head_dim]
  bf16* y;          // [head_dim]
  float* weights;   // [context rounded up to a page]: scores, then their exponentials
  int64_t context;  // tokens
  float sum;        // of the weights
};

// One KV head's pages of one sequence.
struct Pages {
  const bf16* k;
  const bf16* v;
  const int32_t* table;
  int64_t page_stride;  // elements
  int64_t head_dim;

  OUTRIDER_INLINE const bf16* k_page(int64_t page) const { return k + table[page] * page_stride; }
  OUTRIDER_INLINE const bf16* v_page(int64_t page) const { return v + table[page] * page_stride; }
};

OUTRIDER_INLINE int64_t pages_of(int64_t context) {
  return (context + kPageTokens - 1) / kPageTokens;
}

// 16 elements from d on; where heads are not whole (a multiple of 16), those that there are.
template <bool kWhole, typename T>
OUTRIDER_INLINE Lanes load_chunk(const T* head, int64_t d, int64_t head_dim) {
  if constexpr (kWhole) return load(head + d);
  return load(head + d, head_dim - d);
}

// weights = q · k / sqrt(head_dim), for the whole pages that the longest context touches.
template <int Q, bool kWhole>
OUTRIDER_INLINE void score(const Query* queries, const Pages& pages, int64_t num_pages) {
  const int64_t head_dim = pages.head_dim;
  const Lanes scale = broadcast(1.0f / __builtin_sqrtf(static_cast<float>(head_dim)));
  for (int64_t page = 0; page < num_pages; ++page) {
    const bf16* k = pages.k_page(page);
    const bf16* ahead = pages.k_page(page + kPagesAhead < num_pages ? page + kPagesAhead : page);
    Lanes dots[Q][kPageTokens];
    for (int64_t t = 0; t < kPageTokens; ++t) {
      Lanes dot[Q];
      OUTRIDER_UNROLL
      for (int i = 0; i < Q; ++i) dot[i] = broadcast(0.0f);
      for (int64_t d = 0; d < head_dim; d += kLanes) {
        __builtin_prefetch(ahead + t * head_dim + d);
        const Lanes key = load_chunk<kWhole>(k + t * head_dim, d, head_dim);
        OUTRIDER_UNROLL
        for (int i = 0; i < Q; ++i) {
          dot[i] = fma(load_chunk<kWhole>(queries[i].q, d, head_dim), key, dot[i]);
        }
      }
      OUTRIDER_UNROLL
      for (int i = 0; i < Q; ++i) dots[i][t] = dot[i];
    }
    OUTRIDER_UNROLL
    for (int i = 0; i < Q; ++i) {
      if (page < pages_of(queries[i].context)) {
        store(queries[i].weights + page * kPageTokens, mul(sums(dots[i]), scale));
      }
    }
  }
}

// weights = exp(weights - the largest); zeros from the context's end to the page's.
OUTRIDER_INLINE void soften(Query& query) {
  const int64_t size = pages_of(query.context) * kPageTokens;
  float* weights = query.weights;
  for (int64_t t = query.context; t < size; ++t) weights[t] = -__builtin_inff();
  Lanes top = load(weights);
  for (int64_t t = kLanes; t < size; t += kLanes) top = max(top, load(weights + t));
  const float most = largest(top);
  for (int64_t t = 0; t < size; ++t) weights[t] = exp_f32(weights[t] - most);
  for (int64_t t = query.context; t < size; ++t) weights[t] = 0.0f;
  Lanes total = broadcast(0.0f);
  for (int64_t t = 0; t < size; t += kLanes) total = add(total, load(weights + t));
  query.sum = sum(total);
}

// sums[i][c] += weights[t] * v[t], t in [begin, end), for C chunks of the head from element d.
template <int Q, int C, bool kWhole>
OUTRIDER_INLINE void add_values(const Query* queries, const Pages& pages, int64_t d, int64_t begin,
                                int64_t end, Lanes (&sums)[Q][C]) {
  const int64_t num_pages = pages_of(end);
  for (int64_t page = begin / kPageTokens; page < num_pages; ++page) {
    const bf16* v_page = pages.v_page(page);
    const bf16* ahead = pages.v_page(page + kPagesAhead < num_pages ? page + kPagesAhead : page);
    const int64_t first = page * kPageTokens;
    const int64_t stop = first + kPageTokens < end ? first + kPageTokens : end;
    for (int64_t t = first > begin ? first : begin; t < stop; ++t) {
      const int64_t offset = (t - first) * pages.head_dim;
      Lanes value[C];
      OUTRIDER_UNROLL
      for (int c = 0; c < C; ++c) {
        __builtin_prefetch(ahead + offset + d + c * kLanes);
        value[c] = load_chunk<kWhole>(v_page + offset, d + c * kLanes, pages.head_dim);
      }
      OUTRIDER_UNROLL
      for (int i = 0; i < Q; ++i) {
        const Lanes weight = broadcast(queries[i].weights[t]);
        OUTRIDER_UNROLL
        for (int c = 0; c < C; ++c) sums[i][c] = fma(weight, value[c], sums[i][c]);
      }
    }
  }
}

template <int Q, int C, bool kWhole>
OUTRIDER_INLINE void weigh_values(const Query* queries, const Pages& pages, int64_t d) {
  Lanes sums[Q][C];
  int64_t common = queries[0].context;
  OUTRIDER_UNROLL
  for (int i = 0; i < Q; ++i) {
    common = queries[i].context < common ? queries[i].context : common;
    OUTRIDER_UNROLL
    for (int c = 0; c < C; ++c) sums[i][c] = broadcast(0.0f);
  }
  add_values<Q, C, kWhole>(queries, pages, d, 0, common, sums);
  for (int i = 0; i < Q; ++i) {
    Lanes own[1][C];
    for (int c = 0; c < C; ++c) own[0][c] = sums[i][c];
    add_values<1, C, kWhole>(queries + i, pages, d, common, queries[i].context, own);
    for (int c = 0; c < C; ++c) {
      store_narrow(queries[i].y + d + c * kLanes, div(own[0][c], broadcast(queries[i].sum)),
                   pages.head_dim - d - c * kLanes);
    }
  }
}

template <int Q, bool kWhole>
void attend(Query* queries, const Pages& pages) {
  int64_t longest = 0;
  for (int i = 0; i < Q; ++i) {
    longest = queries[i].context > longest ? queries[i].context : longest;
  }
  score<Q, kWhole>(queries, pages, pages_of(longest));
  for (int i = 0; i < Q; ++i) soften(queries[i]);
  int64_t d = 0;
  for (; d + kValueChunks * kLanes <= pages.head_dim; d += kValueChunks * kLanes) {
    weigh_values<Q, kValueChunks, kWhole>(queries, pages, d);
  }
  for (; d < pages.head_dim; d += kLanes) weigh_values<Q, 1, kWhole>(queries, pages, d);
}

template <bool kWhole>
void attend_some(Query* queries, int count, const Pages& pages) {
  static_assert(kAttentionQueries == 4);
  if (count == 1) attend<1, kWhole>(queries, pages);
  if (count == 2) attend<2, kWhole>(queries, pages);
  if (count == 3) attend<3, kWhole>(queries, pages);
  if (count == 4) attend<4, kWhole>(queries, pages);
}

}  // namespace

void attention(const float* qkv, const bf16* k_pages, const bf16* v_pages, bf16* y, float* scratch,
               int64_t scratch_stride, RowPointers map, int64_t rows, AttentionShape shape) {
  const int64_t page_head = kPageTokens * shape.head_dim;
  for (int64_t first = 0, last = 0; first < rows; first = last) {
    // Neighbouring rows of one sequence.
    while (last < rows && map.sequences[last] == map.sequences[first]) ++last;
    for (int64_t head = 0, next = 0; head < shape.num_heads; head = next) {
      // Neighbouring heads of one KV head.
      const int64_t kv_head = (head + shape.head_offset) / shape.group_size;
      while (next < shape.num_heads && (next + shape.head_offset) / shape.group_size == kv_head) {
        ++next;
      }
      const Pages pages = {k_pages + kv_head * page_head, v_pages + kv_head * page_head,
                           map.page_tables + map.sequences[first] * map.max_pages,
                           shape.num_kv_heads * page_head, shape.head_dim};
      Query queries[kAttentionQueries];
      int count = 0;
      for (int64_t r = first; r < last; ++r) {
        for (int64_t h = head; h < next; ++h) {
          queries[count] = {qkv + r * shape.qkv_width() + h * shape.head_dim,
                            y + (r * shape.num_heads + h) * shape.head_dim,
                            scratch + count * scratch_stride, map.positions[r] + 1, 0.0f};
          if (++count == kAttentionQueries || (r + 1 == last && h + 1 == next)) {
            if (shape.head_dim % kLanes == 0) {
              attend_some<true>(queries, count, pages);
            } else {
              attend_some<false>(queries, count, pages);
            }
            count = 0;
          }
        }
      }
    }
  }
}

}  // namespace outrider::cpu::OUTRIDER_LANES
