// In a program of its own, in the place of engine/follower.cc: ranks that once read another plan
// than rank 0 wrote.
#include <chrono>

#include "engine/follower.h"
#include "engine/step_plan.h"

namespace outrider {

namespace {

constexpr std::chrono::microseconds kSpin{200};
constexpr uint64_t kStraysAt = 1000;

}  // namespace

void run_follower(Executor& executor, ControlClient& control) {
  while (const auto bytes = control.receive(kSpin)) {
    StepPlan plan = StepPlan::parse(*bytes);
    if (plan.step == kStraysAt) ++plan.step;
    executor.execute(plan.serialise());
  }
}

}  // namespace outrider
