#include "kernels/cpu/distribution.h"

#include <algorithm>
#include <functional>

#include "kernels/coupled.h"
#include "kernels/cpu/sample.h"

namespace outrider::cpu {

namespace {

constexpr int64_t kBlock = 1024;  // tokens: what a pass looks at before it decides anything

[[gnu::always_inline]] inline int32_t largest_key(const float* logits, int64_t n) {
  int32_t largest = INT32_MIN;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t key = order_key(logits[i]);
    largest = key > largest ? key : largest;
  }
  return largest;
}

[[gnu::always_inline]] inline void find_max(const float* logits, int64_t n, int32_t first_token,
                                            ShardSummary& summary) {
  int32_t best = INT32_MIN, magnitude = 0;
  int64_t best_block = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    int32_t largest = INT32_MIN;
    for (int64_t i = 0; i < count; ++i) {
      const float logit = logits[begin + i];
      const int32_t key = order_key(logit);
      const int32_t size = __builtin_bit_cast(int32_t, logit) & 0x7fffffff;
      largest = key > largest ? key : largest;
      magnitude = size > magnitude ? size : magnitude;
    }
    if (largest > best) best = largest, best_block = begin;
  }
  int64_t argmax = best_block;
  while (argmax < n - 1 && order_key(logits[argmax]) != best) ++argmax;
  summary.max = n > 0 ? logit_of_key(best) : -kInfinity;
  summary.argmax = first_token + static_cast<int32_t>(argmax);
  summary.non_finite = magnitude >= 0x7f800000 ? 1 : 0;
}

[[gnu::always_inline]] inline double sum_of_exp(const float* logits, int64_t n, float max,
                                                float temperature) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    float e[kBlock];
    const int64_t count = std::min(kBlock, n - begin);
    for (int64_t i = 0; i < count; ++i) e[i] = exp_f32((logits[begin + i] - max) / temperature);
    int64_t padded = count;
    while (padded % kLanes != 0) e[padded++] = 0.0f;
    for (int64_t i = 0; i < padded; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += e[i + lane];
    }
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// O(n): the kCandidates-th best of the chunks' maxima bounds the kCandidates-th best token from
// below, and few tokens pass it; where many do (ties, ascending logits), the buffer is cut back to
// the best kCandidates whenever it is full.
[[gnu::always_inline]] inline int32_t select_candidates(const float* logits, int64_t n,
                                                        int32_t first_token,
                                                        Candidate* candidates) {
  constexpr int kMaxChunks = 512;
  constexpr int kBuffered = 4 * kCandidates;
  constexpr int64_t kLanes = 16;  // looked at together: most have none
  const int64_t chunk = std::max<int64_t>(64, (n + kMaxChunks - 1) / kMaxChunks);
  int32_t chunk_max[kMaxChunks], sorted[kMaxChunks];
  int num_chunks = 0;
  for (int64_t begin = 0; begin < n; begin += chunk) {
    chunk_max[num_chunks++] = largest_key(logits + begin, std::min(chunk, n - begin));
  }
  int32_t threshold = INT32_MIN;  // keys below it are not among the best
  if (num_chunks >= kCandidates) {
    std::copy_n(chunk_max, num_chunks, sorted);
    std::nth_element(sorted, sorted + kCandidates - 1, sorted + num_chunks, std::greater<>());
    threshold = sorted[kCandidates - 1];
  }
  uint64_t buffer[kBuffered];
  int count = 0;
  for (int c = 0; c < num_chunks; ++c) {
    if (chunk_max[c] < threshold) continue;
    const int64_t end = std::min(n, (c + 1) * chunk);
    for (int64_t begin = c * chunk; begin < end; begin += kLanes) {
      const int64_t lanes = std::min(kLanes, end - begin);
      if (largest_key(logits + begin, lanes) < threshold) continue;
      for (int64_t i = begin; i < begin + lanes; ++i) {
        const int32_t key = order_key(logits[i]);
        if (key < threshold) continue;
        buffer[count++] = rank_of(key, i);
        if (count < kBuffered) continue;
        std::nth_element(buffer, buffer + kCandidates - 1, buffer + count, std::greater<>());
        count = kCandidates;
        // Later tokens are larger: with an equal logit they come behind.
        const auto last = static_cast<uint32_t>(buffer[kCandidates - 1] >> 32);
        threshold = static_cast<int32_t>(last ^ 0x80000000u) + 1;
      }
    }
  }
  const int taken = std::min(count, kCandidates);
  std::partial_sort(buffer, buffer + taken, buffer + count, std::greater<>());
  for (int i = 0; i < taken; ++i) {
    const auto key = static_cast<int32_t>(static_cast<uint32_t>(buffer[i] >> 32) ^ 0x80000000u);
    const auto token = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(buffer[i]));
    candidates[i] = {logit_of_key(key), first_token + token};
  }
  return taken;
}

[[gnu::always_inline]] inline void summarise_body(const float* logits, int64_t n,
                                                  int32_t first_token, const VerifyRow& row,
                                                  ShardSummary& summary, Candidate* candidates) {
  summary = {};
  summary.runner = kNobody;
  summary.shard_size = static_cast<int32_t>(n);
  summary.draft_token = row.token();
  find_max(logits, n, first_token, summary);
  const int64_t drafted = int64_t{summary.draft_token} - first_token;
  const bool owned = summary.draft_token >= 0 && 0 <= drafted && drafted < n;
  summary.draft_logit = owned ? logits[drafted] : -kInfinity;
  if (row.processors.mode == VerifyMode::greedy || summary.non_finite != 0) return;
  if (row.processors.needs_sum()) {
    summary.sum_exp = sum_of_exp(logits, n, summary.max, row.processors.temperature);
  }
  if (row.candidates_slot >= 0) {
    summary.num_candidates = select_candidates(
        logits, n, first_token, candidates + int64_t{row.candidates_slot} * kCandidates);
  }
}

OUTRIDER_MULTIVERSION(void, summarise,
                      (const float* logits, int64_t n, int32_t first_token, const VerifyRow& row,
                       ShardSummary& summary, Candidate* candidates),
                      (logits, n, first_token, row, summary, candidates));

struct WholeRow {
  const float* logits;
  int64_t size;
  Isa isa;
};

constexpr int kRadixBits = 11;

// Adds up, for each bucket (bits [shift, shift + kRadixBits) of the key), the tokens whose key is
// at least `least` and has the bits `above` where `fixed` is set.
[[gnu::always_inline]] inline void histogram_body(const WholeRow& whole, const RowDistribution& row,
                                                  uint32_t least, uint32_t above, uint32_t fixed,
                                                  int shift, int64_t* counts, uint64_t* masses) {
  for (int64_t begin = 0; begin < whole.size; begin += kBlock) {
    const float* logits = whole.logits + begin;
    const int64_t count = std::min(kBlock, whole.size - begin);
    uint32_t keys[kBlock];
    float e[kBlock];
    for (int64_t i = 0; i < count; ++i) {
      keys[i] = static_cast<uint32_t>(order_key(logits[i])) ^ 0x80000000u;
    }
    if (fixed == 0) {
      for (int64_t i = 0; i < count; ++i) e[i] = exp_f32((logits[i] - row.max) / row.temperature);
    }
    for (int64_t i = 0; i < count; ++i) {
      if (keys[i] < least || (keys[i] & fixed) != above) continue;
      if (fixed != 0) e[i] = exp_f32((logits[i] - row.max) / row.temperature);
      const uint32_t bucket = keys[i] >> shift & ((1u << kRadixBits) - 1);
      ++counts[bucket];
      masses[bucket] += mass_of(e[i]);
    }
  }
}

OUTRIDER_MULTIVERSION(void, histogram,
                      (const WholeRow& whole, const RowDistribution& row, uint32_t least,
                       uint32_t above, uint32_t fixed, int shift, int64_t* counts,
                       uint64_t* masses),
                      (whole, row, least, above, fixed, shift, counts, masses));

// The same by radix selection on the logits' keys: at each level, counts and masses of the buckets
// tell in which of them the prefix ends. In the last one all logits are equal.
Prefix find_prefix(const WholeRow& whole, const RowDistribution& row, float min_logit,
                   int64_t max_count, double max_mass) {
  constexpr int kBuckets = 1 << kRadixBits;
  const uint32_t least = static_cast<uint32_t>(order_key(min_logit)) ^ 0x80000000u;
  Prefix prefix;
  int64_t count = 0;
  uint32_t above = 0;                    // the bits of the key that earlier levels have fixed
  uint32_t fixed = 0;                    // which bits these are
  for (const int shift : {21, 10, 0}) {  // the last level sees one bit again
    int64_t counts[kBuckets] = {};
    uint64_t masses[kBuckets] = {};
    OUTRIDER_DISPATCH(whole.isa, histogram,
                      (whole, row, least, above, fixed, shift, counts, masses));
    int bucket = kBuckets - 1;
    for (; bucket >= 0; --bucket) {
      if (count + counts[bucket] >= max_count ||
          static_cast<double>(prefix.mass + masses[bucket]) >= max_mass) {
        break;
      }
      count += counts[bucket];
      prefix.mass += masses[bucket];
    }
    if (bucket < 0) return prefix;  // the whole row, down to min_logit
    above |= static_cast<uint32_t>(bucket) << shift;
    fixed |= static_cast<uint32_t>(kBuckets - 1) << shift;
  }
  prefix.crossed = true;
  prefix.last.logit = logit_of_key(static_cast<int32_t>(above ^ 0x80000000u));
  const uint64_t mass = mass_of(exp_f32((prefix.last.logit - row.max) / row.temperature));
  for (int64_t i = 0; i < whole.size; ++i) {
    if (whole.logits[i] != prefix.last.logit) continue;
    prefix.mass += mass;
    prefix.last.token = static_cast<int32_t>(i);
    if (++count >= max_count || static_cast<double>(prefix.mass) >= max_mass) break;
  }
  return prefix;
}

}  // namespace

void verify_summary(const float* logits, int64_t shard_size, int32_t first_token,
                    const VerifyRow* rows, int64_t num_rows, ShardSummary* summaries,
                    Candidate* candidates, Isa isa) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const float* row = logits + rows[r].logits_row * shard_size;
    OUTRIDER_DISPATCH(isa, summarise,
                      (row, shard_size, first_token, rows[r], summaries[r], candidates));
    if (rows[r].races == 0 || summaries[r].non_finite != 0) continue;
    const auto size = static_cast<int32_t>(shard_size);
    summaries[r].runner =
        coupled_race(coupled_shard(row, first_token, size, rows[r].processors.temperature),
                     rows[r].key, Purpose::coupled, isa);
  }
}

uint64_t combine_rows(const SummaryMessages& all, const VerifyRow* rows, int64_t num_rows,
                      RowDistribution* p) {
  uint64_t disagreeing = 0;
  for (int r = 1; r < all.ranks; ++r) {
    if (all.of(r).digest() != all.of(0).digest()) disagreeing |= uint64_t{1} << r;
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    const RowMessages of_row(all, rows[row], row);
    for (int r = 1; r < all.ranks; ++r) {
      if (of_row.summary(r).draft_token != of_row.summary(0).draft_token) {
        disagreeing |= uint64_t{1} << r;
      }
    }
    p[row] = combine_row(of_row, rows[row].processors);
    if (!chooses_coupled(rows[row], p[row])) continue;
    choose(p[row], coupled_runner(all, rows[row], row, p[row], 0, 1));
  }
  return disagreeing;
}

RowDistribution resolve_row(const RowDistribution& unresolved, const float* logits,
                            int64_t vocab_size, const Processors& processors, const RandomKey& key,
                            Isa isa) {
  RowDistribution row =
      filter(WholeRow{logits, vocab_size, isa}, vocab_size, unresolved, processors);
  if (processors.mode == VerifyMode::coupled) {
    choose(row, coupled_race(draft_row(logits, vocab_size, row), key, Purpose::coupled, isa));
  }
  return row;
}

void resolve_rows(const RowToResolve* rows, int64_t num_rows, int64_t vocab_size, Isa isa) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const RowToResolve& row = rows[r];
    *row.p = resolve_row(*row.p, row.logits, vocab_size, row.processors, row.key, isa);
  }
}

RowDistribution process_row(const float* logits, int64_t vocab_size, const Processors& processors,
                            Isa isa) {
  const VerifyRow whole{.logits_row = 0,
                        .draft_token = -1,
                        .candidates_slot = processors.filtered() ? 0 : -1,
                        .processors = processors,
                        .key = {},
                        .races = 0};
  ShardSummary summary;
  Candidate candidates[kCandidates];
  verify_summary(logits, vocab_size, 0, &whole, 1, &summary, candidates, isa);
  const Candidate* list = candidates;
  const RowDistribution row = combine_summaries(&summary, &list, 1, processors);
  if (row.resolved != 0) return row;
  return filter(WholeRow{logits, vocab_size, isa}, vocab_size, row, processors);
}

}  // namespace outrider::cpu
