// Counts what operator new hands out on this thread: observing a step allocates nothing.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "engine/metrics.h"

namespace {

thread_local int64_t num_allocations = 0;

void* allocate(size_t bytes) {
  ++num_allocations;
  void* data = std::malloc(bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t) noexcept { std::free(data); }

namespace outrider {
namespace {

TEST(EngineMetrics, AStepAllocatesNothing) {
  EngineMetrics metrics;
  const int64_t before = num_allocations;
  metrics.step_phase(StepPhase::draft, 0.01);
  metrics.verified(4, 2);
  metrics.prefix_lookup(100, 48);
  metrics.set_kv_cache_usage(0.5);
  metrics.next_chunk(0.001);
  metrics.set_requests(1, 2);
  EXPECT_EQ(num_allocations, before);
  EXPECT_FALSE(metrics.text().empty());
  EXPECT_GT(num_allocations, before);  // the count counts
}

}  // namespace
}  // namespace outrider
