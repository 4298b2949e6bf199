// Counts what operator new hands out on this thread: neither observing a step nor asking how the
// engine stands allocates anything, and who asks never waits for a step.
#include <gtest/gtest.h>

#include <thread>

#include "engine/metrics.h"
#include "testing/checkpoints.h"
#include "testing/counted_allocations.h"
#include "testing/engine_harness.h"
#include "testing/held_sink.h"

namespace outrider {
namespace {

TEST(EngineMetrics, AStepAllocatesNothing) {
  EngineMetrics metrics;
  const int64_t before = allocations.count;
  metrics.step_phase(StepPhase::draft, 0.01);
  metrics.verified(4, {.num_drafted = 4, .num_accepted = 2});
  metrics.prefix_lookup(100, 48);
  metrics.set_kv_cache_usage(0.5);
  metrics.next_chunk(0.001);
  metrics.set_requests(1, 2);
  EXPECT_EQ(allocations.count, before);
  EXPECT_FALSE(metrics.text().empty());
  EXPECT_GT(allocations.count, before);  // the count counts
}

TEST(EngineStats, NeitherAllocateNorWaitForAStep) {
  const auto backend = make_cpu_backend();
  const auto self = make_self_communicator();
  Executor executor({.model = test_checkpoint("tiny")}, *backend, *self);
  Engine engine(executor, nullptr);
  const auto sink = std::make_shared<HeldSink>();
  engine.submit(greedy_request(5, 1, 10, 0, "random"), sink);
  std::thread steps([&] { engine.run(); });
  sink->wait_until_held();  // the step loop stands still
  const int64_t before = allocations.count;
  const EngineStats stats = engine.stats();
  EXPECT_EQ(allocations.count, before);
  EXPECT_EQ(stats.kv_pages, executor.num_pages());
  sink->let_go();
  engine.stop();
  steps.join();
}

}  // namespace
}  // namespace outrider
