// attention of attention.h for one instruction set (lanes.h).
//
// Queries (a row and a head) that share a KV head meet its pages together, up to kAttentionQueries
// at a time, so each K and V is widened once for several of them. Each query's arithmetic is as if
// it were alone, and ends with its own context: what lies beyond it in a page is never used.
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/lanes_kernels.h"

namespace outrider::cpu::OUTRIDER_LANES {
namespace {

constexpr int64_t kPagesAhead = 8;  // of the one in use, fetched into the cache (see Pages)
// Queries whose sums fit the registers: five partial sums of a score each, or two chunks of values.
#if defined(__AVX512F__)
constexpr int kScoreQueries = 4;
constexpr int kValueQueries = 8;
#elif defined(__AVX2__)
constexpr int kScoreQueries = 2;
constexpr int kValueQueries = 3;
#else
constexpr int kScoreQueries = 1;
constexpr int kValueQueries = 1;
#endif

struct Query {
  const float* q;   // [head_dim]
  bf16* y;          // [head_dim]
  float* weights;   // [pages of context][kPageTokens], kWeightsStride from page to page: scores,
                    // then their exponentials
  int64_t context;  // tokens
  float sum;        // of the weights
};

// Weights of a page stand side by side for all queries: one address serves them.
constexpr int64_t kWeightsStride = kAttentionQueries * kPageTokens;

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

// sums[i], lane t: the sum of lanes kFirst, kFirst + kStep, … of the dot product of query i and the
// page's token t. Lane l of a dot product holds elements l, l + 16, …; lanes are added as sum() of
// lanes.h does, so a query's scores of 16 tokens are born in one register without a shuffle.
template <int Q, int kFirst, int kStep>
OUTRIDER_INLINE void add_lanes(const Query* queries, const bf16* k, const bf16* ahead,
                               int64_t head_dim, Lanes (&sums)[Q]) {
  if constexpr (kStep == kLanes) {
    OUTRIDER_UNROLL
    for (int i = 0; i < Q; ++i) sums[i] = broadcast(0.0f);
    for (int64_t d = kFirst; d < head_dim; d += kLanes) {
      const int64_t pair = (d - kFirst % 2) * kPageTokens;
      Lanes key;
      if constexpr (kFirst % 2 == 0) {
        __builtin_prefetch(ahead + pair, 0, 2);
        key = load_even(k + pair);
      } else {
        key = load_odd(k + pair);
      }
      OUTRIDER_UNROLL
      for (int i = 0; i < Q; ++i) sums[i] = fma(broadcast(queries[i].q[d]), key, sums[i]);
    }
  } else {
    Lanes others[Q];
    add_lanes<Q, kFirst, 2 * kStep>(queries, k, ahead, head_dim, sums);
    add_lanes<Q, kFirst + kStep, 2 * kStep>(queries, k, ahead, head_dim, others);
    OUTRIDER_UNROLL
    for (int i = 0; i < Q; ++i) sums[i] = add(sums[i], others[i]);
  }
}

// weights = q · k / sqrt(head_dim) of one page; for queries whose context does not touch it, too.
template <int Q>
void score_page(const Query* queries, const bf16* k, const bf16* ahead, int64_t head_dim,
                float scale, int64_t page) {
  Lanes sums[Q];
  add_lanes<Q, 0, 1>(queries, k, ahead, head_dim, sums);
  OUTRIDER_UNROLL
  for (int i = 0; i < Q; ++i) {
    store(queries[i].weights + page * kWeightsStride, mul(sums[i], broadcast(scale)));
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
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(pages.head_dim));
  for (int64_t page = 0; page < num_pages; ++page) {
    const bf16* k = pages.k_page(page);
    const bf16* ahead = pages.ahead_of_k(page, num_pages);
    for (int i = 0; i < count; i += kScoreQueries) {
      const int some = count - i < kScoreQueries ? count - i : kScoreQueries;
      score_some(queries + i, some, k, ahead, pages.head_dim, scale, page);
    }
  }
}

// weights = exp(weights - the largest); zeros from the context's end to the page's, as e^-inf.
void soften(Query& query) {
  const int64_t num_pages = pages_of(query.context);
  float* weights = query.weights;
  float* last = weights + (num_pages - 1) * kWeightsStride;
  const int64_t used = query.context - (num_pages - 1) * kPageTokens;  // of the last page
  for (int64_t t = used; t < kPageTokens; ++t) last[t] = -__builtin_inff();
  Lanes top = load(weights);
  for (int64_t page = 1; page < num_pages; ++page) {
    top = max(top, load(weights + page * kWeightsStride));
  }
  const float most = largest(top);
  Lanes total = broadcast(0.0f);
  for (int64_t page = 0; page < num_pages; ++page) {
    float* of_page = weights + page * kWeightsStride;
    const Lanes exponentials = exp(sub(load(of_page), broadcast(most)));
    store(of_page, exponentials);
    total = add(total, exponentials);
  }
  query.sum = sum(total);
}

// 32 elements of a head, even ones and odd ones apart.
struct Chunk {
  Lanes even, odd;
};

template <bool kWhole>
OUTRIDER_INLINE Chunk load_chunk(const bf16* head, int64_t d, int64_t head_dim) {
  constexpr int64_t kSize = 2 * kLanes;
  if (kWhole || head_dim - d >= kSize) return {load_even(head + d), load_odd(head + d)};
  bf16 padded[kSize] = {};
  for (int64_t i = 0; i < head_dim - d; ++i) padded[i] = head[d + i];
  return {load_even(padded), load_odd(padded)};
}

// sums[i][c] += weights[t] * v[t], t in [begin, end), for C chunks of the head from element d.
template <int Q, int C, bool kWhole>
OUTRIDER_INLINE void add_values(const Query* queries, const Pages& pages, int64_t d, int64_t begin,
                                int64_t end, Chunk (&sums)[Q][C]) {
  const int64_t num_pages = pages_of(end);
  for (int64_t page = begin / kPageTokens; page < num_pages; ++page) {
    const bf16* v_page = pages.v_page(page);
    const bf16* ahead = pages.ahead_of_v(page, num_pages);
    const float* weights = queries[0].weights + page * kWeightsStride;
    const int64_t first = page * kPageTokens;
    const int64_t stop = first + kPageTokens < end ? first + kPageTokens : end;
    for (int64_t t = first > begin ? first : begin; t < stop; ++t) {
      const int64_t offset = (t - first) * pages.head_dim;
      Chunk value[C];
      OUTRIDER_UNROLL
      for (int c = 0; c < C; ++c) {
        __builtin_prefetch(ahead + offset + d + c * 2 * kLanes, 0, 2);
        value[c] = load_chunk<kWhole>(v_page + offset, d + c * 2 * kLanes, pages.head_dim);
      }
      OUTRIDER_UNROLL
      for (int i = 0; i < Q; ++i) {
        const Lanes weight = broadcast(weights[i * kPageTokens + t - first]);
        OUTRIDER_UNROLL
        for (int c = 0; c < C; ++c) {
          sums[i][c].even = fma(weight, value[c].even, sums[i][c].even);
          sums[i][c].odd = fma(weight, value[c].odd, sums[i][c].odd);
        }
      }
    }
  }
}

// y = the values' weighted mean, C chunks of it from element d.
template <int Q, int C, bool kWhole>
OUTRIDER_INLINE void weigh_chunks(const Query* queries, const Pages& pages, int64_t d) {
  Chunk sums[Q][C];
  int64_t common = queries[0].context;
  OUTRIDER_UNROLL
  for (int i = 0; i < Q; ++i) {
    common = queries[i].context < common ? queries[i].context : common;
    OUTRIDER_UNROLL
    for (int c = 0; c < C; ++c) sums[i][c] = {broadcast(0.0f), broadcast(0.0f)};
  }
  add_values<Q, C, kWhole>(queries, pages, d, 0, common, sums);
  for (int i = 0; i < Q; ++i) {
    Chunk own[1][C];
    for (int c = 0; c < C; ++c) own[0][c] = sums[i][c];
    add_values<1, C, kWhole>(queries + i, pages, d, common, queries[i].context, own);
    const Lanes divisor = broadcast(queries[i].sum);
    for (int c = 0; c < C; ++c) {
      const int64_t from = d + c * 2 * kLanes;
      store_narrow(queries[i].y + from, div(own[0][c].even, divisor), div(own[0][c].odd, divisor),
                   pages.head_dim - from);
    }
  }
}

template <int Q, bool kWhole>
void weigh_values(const Query* queries, const Pages& pages) {
  constexpr int kChunks = 2 * Q <= kValueQueries ? 2 : 1;
  int64_t d = 0;
  for (; d + kChunks * 2 * kLanes <= pages.head_dim; d += kChunks * 2 * kLanes) {
    weigh_chunks<Q, kChunks, kWhole>(queries, pages, d);
  }
  for (; d < pages.head_dim; d += 2 * kLanes) weigh_chunks<Q, 1, kWhole>(queries, pages, d);
}

template <int Q = kValueQueries>
OUTRIDER_INLINE void weigh_some(const Query* queries, int count, const Pages& pages) {
  if (count == Q) {
    if (pages.head_dim % (2 * kLanes) == 0) {
      weigh_values<Q, true>(queries, pages);
    } else {
      weigh_values<Q, false>(queries, pages);
    }
  } else if constexpr (Q > 1) {
    weigh_some<Q - 1>(queries, count, pages);
  }
}

void attend(Query* queries, int count, const Pages& pages) {
  int64_t longest = 0;
  for (int i = 0; i < count; ++i) {
    longest = queries[i].context > longest ? queries[i].context : longest;
  }
  score(queries, count, pages, pages_of(longest));
  for (int i = 0; i < count; ++i) soften(queries[i]);
  for (int i = 0; i < count; i += kValueQueries) {
    weigh_some(queries + i, count - i < kValueQueries ? count - i : kValueQueries, pages);
  }
}

}  // namespace

void attention(const float* qkv, const bf16* k_pages, const bf16* v_pages, bf16* y, float* scratch,
               RowPointers map, int64_t rows, AttentionShape shape) {
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
      const Pages pages = {k_pages + kv_head * page_head,
                           v_pages + kv_head * page_head,
                           map.page_tables + map.sequences[first] * map.max_pages,
                           shape.num_kv_heads * page_head,
                           shape.head_dim,
                           next < shape.num_heads ? page_head : 0};
      Query queries[kAttentionQueries];
      int count = 0;
      for (int64_t r = first; r < last; ++r) {
        for (int64_t h = head; h < next; ++h) {
          queries[count] = {qkv + r * shape.qkv_width() + h * shape.head_dim,
                            y + (r * shape.num_heads + h) * shape.head_dim,
                            scratch + count * kPageTokens, map.positions[r] + 1, 0.0f};
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
