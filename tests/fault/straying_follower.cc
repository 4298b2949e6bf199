// In a program of its own, in the place of engine/follower.cc: ranks that once read another plan
// than rank 0 wrote. OUTRIDER_STRAY_FAILS: they fail there instead. OUTRIDER_STRAY_HANGS: what
// ends, on rank 0 too, hangs as it is unwound.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "core/error.h"
#include "engine/follower.h"
#include "engine/step_plan.h"

// Read before any thread is started.
static const bool fails = std::getenv("OUTRIDER_STRAY_FAILS") != nullptr;
static const bool hangs = std::getenv("OUTRIDER_STRAY_HANGS") != nullptr;

// In libc's place: the thread that takes signals never ends, and StopSignals waits for its end.
extern "C" int sigwaitinfo(const sigset_t* signals, siginfo_t* info) {
  while (hangs) pause();
  return sigtimedwait(signals, info, nullptr);
}

namespace outrider {

namespace {

constexpr std::chrono::microseconds kSpin{200};
constexpr uint64_t kStraysAt = 1000;

}  // namespace

void run_follower(Executor& executor, ControlClient& control) {
  while (const auto bytes = control.receive(kSpin)) {
    StepPlan plan = StepPlan::parse(*bytes);
    if (plan.step == kStraysAt) {
      if (fails) throw Error("it has strayed");
      ++plan.step;
    }
    executor.execute(plan.serialise());
  }
}

}  // namespace outrider
