#include "comm/exchange_cost.h"

namespace outrider {

ExchangeCost& ExchangeCost::operator+=(const ExchangeCost& other) {
  exchanges += other.exchanges;
  bytes += other.bytes;
  launches += other.launches;
  return *this;
}

ExchangeCost all_reduce_sum_cost(int ranks, int64_t elements) {
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(float));
  if (ranks == 1 || elements == 0) return {};
  if (ranks == 2) return {1, bytes, 1};
  if (elements <= kGatherMaxFloats) return {1, (ranks - 1) * bytes, 2};
  return {2, 2 * (ranks - 1) * bytes / ranks, 3};
}

ExchangeCost all_gather_cost(int ranks, int64_t bytes) {
  if (ranks == 1 || bytes == 0) return {};
  return {1, (ranks - 1) * bytes, 1};
}

}  // namespace outrider
