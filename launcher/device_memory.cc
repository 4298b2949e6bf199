#include "launcher/device_memory.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "core/error.h"
#include "core/host_name.h"
#include "engine/kv_pool.h"
#include "engine/page_pool.h"
#include "kernels/verify_types.h"
#include "model/kv_cache.h"
#include "model/shard.h"
#include "model/weights.h"
#include "spec/step_cost.h"

namespace outrider {
namespace {

// Of a host's memory, to whoever asks what to give instead: the rest is for what steps work in.
constexpr double kAdvisedShare = 0.9;

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// Of two tables, of which the second holds the first as well, and of their rows.
int64_t count_table_bytes(const std::filesystem::path& file, const ModelConfig& config) {
  std::error_code error;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(file, error));
  if (error) throw Error("--draft-counts " + file.string() + ": " + error.message());
  return 2 * bytes + 2 * config.vocab_size * static_cast<int64_t>(sizeof(TableRow));
}

}  // namespace

int ranks_on_gpu(int gpu, int num_gpus, int local_ranks) {
  return local_ranks / num_gpus + (gpu < local_ranks % num_gpus ? 1 : 0);
}

int64_t memory_budget(CudaMemory memory, double utilization, int sharers) {
  const auto usable = static_cast<int64_t>(utilization * static_cast<double>(memory.total));
  return std::max<int64_t>(usable - (memory.total - memory.free), 0) / sharers;
}

int64_t plan_kv_tokens(const EngineOptions& options, Numerics numerics, int rank, int ranks,
                       const std::string& gpu, int64_t budget) {
  const ModelConfig config = ModelConfig::load(options.model);
  std::optional<ModelConfig> draft;
  if (options.draft) draft = ModelConfig::load_draft(*options.draft);
  std::optional<DraftHeadConfig> head;
  if (options.draft_head) head = DraftHeadConfig::load(*options.draft_head);
  MemoryCost cost = memory_cost(config, Shard::of(config, rank, ranks), draft ? &*draft : nullptr,
                                {options.max_sequences, options.max_rows,
                                 longest_context(config, options.max_positions), numerics},
                                head ? &*head : nullptr);
  if (options.draft_counts) cost.draft_weights += count_table_bytes(*options.draft_counts, config);
  cost.context = 0;  // it is not free any more
  const KvPoolLimits limits = kv_pool_limits(options, config);
  const int64_t wanted =
      std::max(limits.least, PagePool::pages_for(std::max<int64_t>(options.kv_cache_tokens, 0)));
  const int64_t pages = kv_tokens_that_fit(cost, budget) / kPageTokens;
  if (pages < wanted) {
    throw Error(absl::StrFormat(
        "%s has %.3f GiB for this rank; expected at least %.3f GiB: %.3f for the weights, %.3f for "
        "the draft's, %.3f to work in, %.3f for NCCL and graphs, %.3f for %d positions of KV "
        "cache%s",
        gpu, gib(budget), gib(fixed_bytes(cost) + wanted * cost.page_bytes), gib(cost.weights),
        gib(cost.draft_weights), gib(cost.workspace), gib(cost.reserved),
        gib(wanted * cost.page_bytes), wanted * kPageTokens,
        wanted > limits.least ? ", as --kv-cache-tokens says" : " (--max-positions)"));
  }
  if (options.kv_cache_tokens > 0) return options.kv_cache_tokens;
  return std::min(pages, limits.most) * kPageTokens;
}

void check_host_memory(const EngineOptions& options, int rank, int ranks, int local_ranks,
                       int64_t available) {
  const ModelConfig config = ModelConfig::load(options.model);
  const Shard own = Shard::of(config, rank, ranks);
  int64_t weights = weight_bytes(config, own).held;
  int64_t page_bytes = KvCache::page_bytes(config.num_layers, own.attention);
  int64_t least_weights = weights, least_page_bytes = page_bytes;
  for (int other = 0; other < ranks; ++other) {
    const Shard shard = Shard::of(config, other, ranks);
    least_weights = std::min(least_weights, weight_bytes(config, shard).held);
    least_page_bytes =
        std::min(least_page_bytes, KvCache::page_bytes(config.num_layers, shard.attention));
  }
  weights += (local_ranks - 1) * least_weights;
  page_bytes += (local_ranks - 1) * least_page_bytes;
  if (options.draft) {  // whole on each rank, but they may share its weights
    const ModelConfig draft = ModelConfig::load_draft(*options.draft);
    const Shard whole = Shard::of(draft, 0, 1);
    weights += weight_bytes(draft, whole).held;
    page_bytes += local_ranks * KvCache::page_bytes(draft.num_layers, whole.attention);
  }
  const int64_t pages = options.kv_cache_tokens > 0 ? num_kv_pages(options, config, ranks) : 0;
  if (weights + pages * page_bytes <= available) return;
  std::string cache;
  if (pages > 0) {
    cache = absl::StrFormat(", %.3f for %d positions of KV cache, as --kv-cache-tokens says",
                            gib(pages * page_bytes), pages * kPageTokens);
    const auto advised = static_cast<int64_t>(kAdvisedShare * static_cast<double>(available));
    const int64_t fit = (advised - weights) / page_bytes;
    if (fit >= kv_pool_limits(options, config).least) {
      cache += absl::StrFormat("; %d would do", fit * kPageTokens);
    }
  }
  throw Error(absl::StrFormat(
      "%s has %.3f GiB of memory left for its %d rank%s; expected at least %.3f GiB: %.3f for "
      "weights%s",
      host_name(), gib(available), local_ranks, local_ranks == 1 ? "" : "s",
      gib(weights + pages * page_bytes), gib(weights), cache));
}

}  // namespace outrider
