#include "engine/follower.h"

#include <chrono>

namespace outrider {

namespace {

// How long a rank polls for the next plan before it sleeps in the kernel: longer than the gap
// between two steps of a running request, far shorter than anybody's pause.
constexpr std::chrono::microseconds kSpin{200};

}  // namespace

void run_follower(Executor& executor, ControlClient& control) {
  while (const auto plan = control.receive(kSpin)) executor.execute(*plan);
}

}  // namespace outrider
