// Counts what operator new hands out on this thread: observing a step allocates nothing.
#include <gtest/gtest.h>

#include "engine/metrics.h"
#include "testing/counted_allocations.h"

namespace outrider {
namespace {

TEST(EngineMetrics, AStepAllocatesNothing) {
  EngineMetrics metrics;
  const int64_t before = allocations.count;
  metrics.step_phase(StepPhase::draft, 0.01);
  metrics.verified(4, 2);
  metrics.prefix_lookup(100, 48);
  metrics.set_kv_cache_usage(0.5);
  metrics.next_chunk(0.001);
  metrics.set_requests(1, 2);
  EXPECT_EQ(allocations.count, before);
  EXPECT_FALSE(metrics.text().empty());
  EXPECT_GT(allocations.count, before);  // the count counts
}

}  // namespace
}  // namespace outrider
