// The control channel of the ranks that mpirun has started: how they find each other.
#pragma once

#include <memory>

#include "comm/control_channel.h"
#include "comm/world.h"

namespace outrider {

// Both are collective: rank 0 opens the channel while every other rank joins it. Each throws Error
// where a rank does not come.
std::unique_ptr<ControlServer> open_control(World& world);
ControlClient join_control(World& world);

}  // namespace outrider
