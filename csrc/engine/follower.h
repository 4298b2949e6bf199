// What every rank but 0 runs.
#pragma once

#include "comm/control_channel.h"
#include "engine/executor.h"

namespace outrider {

// Executes rank 0's plans on the calling thread until its goodbye. Throws Error where rank 0 is
// lost or the ranks disagree.
void run_follower(Executor& executor, ControlClient& control);

}  // namespace outrider
