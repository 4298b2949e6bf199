// How many pages the KV cache has: between what one sequence of the longest kind needs and what all
// slots could ever use.
#pragma once

#include <cstdint>

#include "engine/executor.h"

namespace outrider {

// The longest prompt and answer. Not checked against the config: loading does.
int64_t max_positions_of(const EngineOptions& options, const ModelConfig& config);

struct KvPoolLimits {
  int64_t least = 0;  // pages: the longest sequence, a step behind it, one that admission spares
  int64_t most = 0;
};
KvPoolLimits kv_pool_limits(const EngineOptions& options, const ModelConfig& config);

// Pages of the target's cache, the same on all ranks, whose shares of a page differ in bytes: what
// --kv-cache-tokens says, else what 1 GiB on the fullest rank holds. Throws Error where that is too
// little.
int64_t num_kv_pages(const EngineOptions& options, const ModelConfig& config, int num_ranks);

}  // namespace outrider
