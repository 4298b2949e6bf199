#include "comm/exchange_cost.h"

#include <algorithm>

namespace outrider {

ExchangeCost& ExchangeCost::operator+=(const ExchangeCost& other) {
  exchanges += other.exchanges;
  bytes += other.bytes;
  launches += other.launches;
  return *this;
}

int64_t sum_scratch_bytes(int ranks, int64_t max_elements, Numerics numerics) {
  if (nccl_sums(ranks, numerics)) return 0;
  const int64_t gathered = std::min(max_elements, kGatherMaxFloats);
  const int64_t block = max_elements > kGatherMaxFloats ? sum_block(ranks, max_elements) : 0;
  return ranks * std::max(gathered, block) * static_cast<int64_t>(sizeof(float));
}

ExchangeCost all_reduce_sum_cost(int ranks, int64_t elements, Numerics numerics) {
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(float));
  if (ranks == 1 || elements == 0) return {};
  if (nccl_sums(ranks, numerics)) return {1, 2 * (ranks - 1) * bytes / ranks, 1};
  if (elements <= kGatherMaxFloats) return {1, (ranks - 1) * bytes, 2};
  const int64_t block = sum_block(ranks, elements);
  ExchangeCost cost = all_reduce_sum_cost(ranks, elements - ranks * block, numerics);
  return cost += {2, 2 * (ranks - 1) * block * static_cast<int64_t>(sizeof(float)), 3};
}

ExchangeCost all_gather_cost(int ranks, int64_t bytes) {
  if (ranks == 1 || bytes == 0) return {};
  return {1, (ranks - 1) * bytes, 1};
}

}  // namespace outrider
