// How many pages the KV cache has: between what one sequence of the longest kind needs and what all
// slots could ever use.
#pragma once

#include <cstdint>

#include "engine/executor.h"

namespace outrider {

struct KvPoolLimits {
  int64_t least = 0;  // pages: the longest sequence, a step behind it, one that admission spares
  int64_t most = 0;
};
// Throws Error where --max-positions is more than the model allows.
KvPoolLimits kv_pool_limits(const EngineOptions& options, const ModelConfig& config);

// Pages of the target's cache, the same on all ranks, whose shares of a page differ in bytes: what
// --kv-cache-tokens says, else what 1 GiB on the fullest rank holds. Throws Error where that is too
// little, and as kv_pool_limits does.
int64_t num_kv_pages(const EngineOptions& options, const ModelConfig& config, int num_ranks);

}  // namespace outrider
