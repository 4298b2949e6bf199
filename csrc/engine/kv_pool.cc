#include "engine/kv_pool.h"

#include <algorithm>
#include <string>

#include "engine/page_pool.h"
#include "model/shard.h"

namespace outrider {

namespace {

constexpr int64_t kKvCacheBytes = int64_t{1} << 30;  // of a rank, where nothing else was asked for

}  // namespace

KvPoolLimits kv_pool_limits(const EngineOptions& options, const ModelConfig& config) {
  const int64_t least =
      PagePool::pages_for(longest_context(config, options.max_positions) + kMaxDraftTokens + 1) + 1;
  return {least, options.max_sequences * least};
}

int64_t num_kv_pages(const EngineOptions& options, const ModelConfig& config, int num_ranks) {
  const auto [least, most] = kv_pool_limits(options, config);
  if (options.kv_cache_tokens > 0) {
    const int64_t pages = PagePool::pages_for(options.kv_cache_tokens);
    if (pages < least) {
      throw Error("--kv-cache-tokens is " + std::to_string(options.kv_cache_tokens) +
                  "; expected at least " + std::to_string(least * kPageTokens) +
                  ", for one sequence of --max-positions");
    }
    return pages;
  }
  int64_t page_bytes = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    page_bytes = std::max(
        page_bytes,
        KvCache::page_bytes(config.num_layers, Shard::of(config, rank, num_ranks).attention));
  }
  return std::clamp(kKvCacheBytes / page_bytes, least, most);
}

}  // namespace outrider
