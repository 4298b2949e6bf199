// The registry of calls, without gRPC.
#include "server/calls.h"

#include <gtest/gtest.h>

#include <memory>

#include "engine/metrics.h"
#include "server/logging.h"
#include "server/service_rate.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;

// Refused ones come as long as clients ask, and would keep a server that drains from its end.
TEST(CallRegistry, WaitsForAdmittedCalls) {
  EngineMetrics metrics;
  ServiceRate service_rate;
  RequestLog log(LogFormat::text);
  CallRegistry registry;
  const auto call = std::make_shared<StreamCall>(
      nullptr, registry, CallLimits{}, CallRecord({metrics, log, service_rate, nullptr}, "id"));
  registry.add(call.get());
  EXPECT_TRUE(registry.wait_for_admitted(milliseconds(0)));
  ASSERT_TRUE(registry.admit(call.get(), /*tenant=*/0, /*max=*/0));
  EXPECT_FALSE(registry.wait_for_admitted(milliseconds(0)));
  registry.remove(call.get());
  EXPECT_TRUE(registry.wait_for_admitted(milliseconds(0)));
}

}  // namespace
}  // namespace outrider
