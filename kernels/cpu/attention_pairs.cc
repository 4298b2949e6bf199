// attention of attention.h for one instruction set (lanes.h).
//
// Queries (a row and a head) that share a KV head meet its pages together, up to kAttentionQueries
// at a time, so each K and V is loaded once for several of them. Each query's sums are as if it
// were alone: what others see beyond its own context has the weight zero.
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/lanes_kernels.h"

namespace outrider::cpu::OUTRIDER_LANES {
namespace {

constexpr int64_t kPagesAhead = 8;  // of the one in use, fetched into the cache (see Pages)
// Queries whose sums fit the registers, two for a score; and sums of values that do.
#if defined(__AVX512F__)
constexpr int kScoreQueries = 8;
constexpr int kValueQueries = 8;
constexpr int kValueSums = 16;
#elif defined(__AVX2__)
constexpr int kScoreQueries = 2;
constexpr int kValueQueries = 4;
constexpr int kValueSums = 4;
#else
constexpr int kScoreQueries = 1;
constexpr int kValueQueries = 1;
constexpr int kValueSums = 1;
#endif

// The scratch holds 16 numbers at a time for each of the queries, side by side, so that one address
// serves them all: first q, rounded; then, page by page, scores that become weights.
constexpr int64_t kStride = kAttentionQueries * kLanes;
constexpr int64_t kFactorsStride = kLanes * sizeof(float) / sizeof(Factor);  // to the next query
static_assert(kLanes == kPageTokens);

struct Query {
  float* q;         // of this query in the scratch
  float* weights;   // likewise, of the first page
  int64_t context;  // tokens
  float sum;        // of the weights
  bf16* y;          // [head_dim]
};

OUTRIDER_INLINE Factor* as_factors(float* of_scratch) {
  return reinterpret_cast<Factor*>(of_scratch);
}

// One KV head's pages of one sequence. They are fetched in the order in which they are met: those
// of K, those of V, those of the next head's K.
struct Pages {
  const bf16* k;
  const bf16* v;
  const int32_t* table;
  int64_t page_stride;  // elements
  int64_t head_dim;
  int64_t next_head;  // elements from this KV head to the next that is met; 0 if there is none

  OUTRIDER_INLINE const bf16* k_page(int64_t page) const { return k + table[page] * page_stride; }
  OUTRIDER_INLINE const bf16* v_page(int64_t page) const { return v + table[page] * page_stride; }

  // What to fetch while `page` of K or of V is in use, of num_pages.
  OUTRIDER_INLINE const bf16* ahead_of_k(int64_t page, int64_t num_pages) const {
    const int64_t ahead = page + kPagesAhead;
    return ahead < num_pages ? k_page(ahead) : v_page(beyond(ahead, num_pages));
  }
  OUTRIDER_INLINE const bf16* ahead_of_v(int64_t page, int64_t num_pages) const {
    const int64_t ahead = page + kPagesAhead;
    return ahead < num_pages ? v_page(ahead) : k_page(beyond(ahead, num_pages)) + next_head;
  }

 private:
  OUTRIDER_INLINE static int64_t beyond(int64_t ahead, int64_t num_pages) {
    return ahead - num_pages < num_pages ? ahead - num_pages : num_pages - 1;
  }
};

OUTRIDER_INLINE int64_t pages_of(int64_t context) {
  return (context + kPageTokens - 1) / kPageTokens;
}

// weights = q · k * scale of one page, for queries whose context does not touch it, too. The dot
// product is two chains, over even and odd pairs.
template <int Q>
void score_page(const Query* queries, const bf16* k, const bf16* ahead, int64_t head_dim,
                float scale, int64_t page) {
  Lanes even[Q], odd[Q];
  OUTRIDER_UNROLL
  for (int i = 0; i < Q; ++i) even[i] = odd[i] = broadcast(0.0f);
  for (int64_t d = 0; d < head_dim; d += 4) {
    const Factor* q = as_factors(queries[0].q + d / kLanes * kStride) + d % kLanes;
    const bool both = d + 2 < head_dim;
    __builtin_prefetch(ahead + d * kPageTokens, 0, 2);
    const Pairs first = load_pairs(k + d * kPageTokens);
    OUTRIDER_UNROLL
    for (int i = 0; i < Q; ++i) even[i] = add_products(q + i * kFactorsStride, first, even[i]);
    if (!both) break;
    __builtin_prefetch(ahead + (d + 2) * kPageTokens, 0, 2);
    const Pairs second = load_pairs(k + (d + 2) * kPageTokens);
    OUTRIDER_UNROLL
    for (int i = 0; i < Q; ++i) odd[i] = add_products(q + 2 + i * kFactorsStride, second, odd[i]);
  }
  OUTRIDER_UNROLL
  for (int i = 0; i < Q; ++i) {
    store(queries[0].weights + page * kStride + i * kLanes,
          mul(add(even[i], odd[i]), broadcast(scale)));
  }
}

template <int Q = kScoreQueries>
OUTRIDER_INLINE void score_some(const Query* queries, int count, const bf16* k, const bf16* ahead,
                                int64_t head_dim, float scale, int64_t page) {
  if (count == Q) {
    score_page<Q>(queries, k, ahead, head_dim, scale, page);
  } else if constexpr (Q > 1) {
    score_some<Q - 1>(queries, count, k, ahead, head_dim, scale, page);
  }
}

void score(const Query* queries, int count, const Pages& pages, int64_t num_pages) {
  constexpr float kLog2E = 1.44269504f;
  const float scale = kLog2E / __builtin_sqrtf(static_cast<float>(pages.head_dim));
  for (int64_t page = 0; page < num_pages; ++page) {
    const bf16* k = pages.k_page(page);
    const bf16* ahead = pages.ahead_of_k(page, num_pages);
    for (int i = 0; i < count; i += kScoreQueries) {
      const int some = count - i < kScoreQueries ? count - i : kScoreQueries;
      score_some(queries + i, some, k, ahead, pages.head_dim, scale, page);
    }
  }
}

// weights = 2^(weights - the largest), rounded; zeros from the context's end to num_pages'.
void soften(Query& query, int64_t num_pages) {
  const int64_t own_pages = pages_of(query.context);
  float* const last = query.weights + (own_pages - 1) * kStride;
  const int64_t used = query.context - (own_pages - 1) * kPageTokens;  // of the last page
  for (int64_t t = used; t < kPageTokens; ++t) last[t] = -__builtin_inff();
  Lanes top = load(query.weights);
  for (int64_t page = 1; page < own_pages; ++page) {
    top = max(top, load(query.weights + page * kStride));
  }
  const Lanes most = broadcast(largest(top));
  Lanes total = broadcast(0.0f);
  for (int64_t page = 0; page < own_pages; ++page) {
    float* const weights = query.weights + page * kStride;
    const Lanes exact = exp2_of_negative(sub(load(weights), most));
    total = add(total, store_factors(as_factors(weights), exact));
  }
  for (int64_t page = own_pages; page < num_pages; ++page) {
    store_factors(as_factors(query.weights + page * kStride), broadcast(0.0f));
  }
  query.sum = sum(total);
}

// Elements d … d + 15 of a pair of tokens. kWhole: all of them are in the head.
template <bool kWhole>
OUTRIDER_INLINE Pairs load_values(const bf16* tokens, int64_t d, int64_t head_dim) {
  if (kWhole) return load_pairs(tokens + 2 * d);
  bf16 padded[2 * kLanes] = {};
  for (int64_t i = 0; i < 2 * (head_dim - d); ++i) padded[i] = tokens[2 * d + i];
  return load_pairs(padded);
}

// sums[i][c] += weights * v of a pair of tokens, the second of which may not be there, for C times
// 16 elements of the head from d.
template <int Q, int C, bool kWhole, bool kBoth>
OUTRIDER_INLINE void add_values(const Factor* weights, const bf16* tokens, int64_t d,
                                int64_t head_dim, Lanes (&sums)[Q][C]) {
  Pairs values[C];
  OUTRIDER_UNROLL
  for (int c = 0; c < C; ++c) {
    values[c] = load_values<kWhole>(tokens, d + c * kLanes, head_dim);
    if (!kBoth) values[c] = without_second(values[c]);
  }
  OUTRIDER_UNROLL
  for (int i = 0; i < Q; ++i) {
    OUTRIDER_UNROLL
    for (int c = 0; c < C; ++c) {
      sums[i][c] = add_products(weights + i * kFactorsStride, values[c], sums[i][c]);
    }
  }
}

// y = the weighted mean of the values of `num_tokens`, C times 16 elements of it from d.
template <int Q, int C, bool kWhole>
OUTRIDER_INLINE void weigh_elements(const Query* queries, const Pages& pages, int64_t d,
                                    int64_t num_tokens) {
  Lanes sums[Q][C];
  OUTRIDER_UNROLL
  for (int i = 0; i < Q; ++i) {
    OUTRIDER_UNROLL
    for (int c = 0; c < C; ++c) sums[i][c] = broadcast(0.0f);
  }
  const int64_t num_pages = pages_of(num_tokens);
  const int64_t head_dim = pages.head_dim;
  for (int64_t page = 0; page < num_pages; ++page) {
    const bf16* v = pages.v_page(page);
    const bf16* ahead = pages.ahead_of_v(page, num_pages);
    const Factor* weights = as_factors(queries[0].weights + page * kStride);
    const int64_t left = num_tokens - page * kPageTokens;
    const int64_t there = left < kPageTokens ? left : kPageTokens;
    for (int64_t t = 0; t + 2 <= there; t += 2) {
      OUTRIDER_UNROLL
      for (int c = 0; c < C; ++c) {
        __builtin_prefetch(ahead + t * head_dim + 2 * (d + c * kLanes), 0, 2);
      }
      add_values<Q, C, kWhole, true>(weights + t, v + t * head_dim, d, head_dim, sums);
    }
    if (there % 2 != 0) {
      const int64_t t = there - 1;
      add_values<Q, C, kWhole, false>(weights + t, v + t * head_dim, d, head_dim, sums);
    }
  }
  OUTRIDER_UNROLL
  for (int i = 0; i < Q; ++i) {
    const Lanes divisor = broadcast(queries[i].sum);
    OUTRIDER_UNROLL
    for (int c = 0; c < C; ++c) {
      // A zero's sign may come of weights that are zero.
      const Lanes mean = add(div(sums[i][c], divisor), broadcast(0.0f));
      bf16* const y = queries[i].y + d + c * kLanes;
      if constexpr (kWhole) {
        store_narrow(y, mean);
      } else {
        store_narrow(y, mean, head_dim - d);
      }
    }
  }
}

template <int Q>
void weigh_values(const Query* queries, const Pages& pages, int64_t num_tokens) {
  constexpr int kSums = kValueSums / Q;
  constexpr int C = kSums >= 4 ? 4 : kSums >= 2 ? 2 : 1;
  int64_t d = 0;
  for (; d + C * kLanes <= pages.head_dim; d += C * kLanes) {
    weigh_elements<Q, C, true>(queries, pages, d, num_tokens);
  }
  for (; d + kLanes <= pages.head_dim; d += kLanes) {
    weigh_elements<Q, 1, true>(queries, pages, d, num_tokens);
  }
  if (d < pages.head_dim) weigh_elements<Q, 1, false>(queries, pages, d, num_tokens);
}

template <int Q = kValueQueries>
OUTRIDER_INLINE void weigh_some(const Query* queries, int count, const Pages& pages,
                                int64_t num_tokens) {
  if (count == Q) {
    weigh_values<Q>(queries, pages, num_tokens);
  } else if constexpr (Q > 1) {
    weigh_some<Q - 1>(queries, count, pages, num_tokens);
  }
}

void attend(Query* queries, int count, const Pages& pages) {
  int64_t longest = 0;
  for (int i = 0; i < count; ++i) {
    longest = queries[i].context > longest ? queries[i].context : longest;
  }
  const int64_t num_pages = pages_of(longest);
  score(queries, count, pages, num_pages);
  for (int i = 0; i < count; ++i) soften(queries[i], num_pages);
  for (int i = 0; i < count; i += kValueQueries) {
    const int some = count - i < kValueQueries ? count - i : kValueQueries;
    weigh_some(queries + i, some, pages, longest);
  }
}

}  // namespace

void attention(const float* qkv, const bf16* k_pages, const bf16* v_pages, bf16* y, float* scratch,
               RowPointers map, int64_t rows, AttentionShape shape) {
  const int64_t head_dim = shape.head_dim;
  const int64_t page_head = kPageTokens * head_dim;
  for (int64_t first = 0, last = 0; first < rows; first = last) {
    // Neighbouring rows of one sequence.
    while (last < rows && map.sequences[last] == map.sequences[first]) ++last;
    for (int64_t head = 0, next = 0; head < shape.num_heads; head = next) {
      // Neighbouring heads of one KV head.
      const int64_t kv_head = (head + shape.head_offset) / shape.group_size;
      while (next < shape.num_heads && (next + shape.head_offset) / shape.group_size == kv_head) {
        ++next;
      }
      const Pages pages = {k_pages + kv_head * page_head,
                           v_pages + kv_head * page_head,
                           map.page_tables + map.sequences[first] * map.max_pages,
                           shape.num_kv_heads * page_head,
                           head_dim,
                           next < shape.num_heads ? page_head : 0};
      Query queries[kAttentionQueries];
      int count = 0;
      for (int64_t r = first; r < last; ++r) {
        for (int64_t h = head; h < next; ++h) {
          float* const of_query = scratch + count * kLanes;
          float* const weights = of_query + (head_dim + kLanes - 1) / kLanes * kStride;
          queries[count] = {of_query, weights, map.positions[r] + 1, 0.0f,
                            y + (r * shape.num_heads + h) * head_dim};
          const float* q = qkv + r * shape.qkv_width() + h * head_dim;
          for (int64_t d = 0; d < head_dim; d += kLanes) {
            store_factors(as_factors(of_query + d / kLanes * kStride), load(q + d, head_dim - d));
          }
          if (++count == kAttentionQueries || (r + 1 == last && h + 1 == next)) {
            attend(queries, count, pages);
            count = 0;
          }
        }
      }
    }
  }
}

}  // namespace outrider::cpu::OUTRIDER_LANES
