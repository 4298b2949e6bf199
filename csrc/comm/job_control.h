// The control channel of the ranks that mpirun has started: how they find each other, and what they
// have to tell each other before there is a communicator.
#pragma once

#include <memory>
#include <string>

#include "comm/control_channel.h"
#include "comm/world.h"

namespace outrider {

// This rank's end: `server` on rank 0, `client` on every other.
struct JobControl {
  std::unique_ptr<ControlServer> server;
  std::unique_ptr<ControlClient> client;

  // What rank 0 passed, on every rank. Collective; throws Error where rank 0 is gone.
  std::string broadcast(const std::string& text);
};

// Collective. Throws Error where a rank does not come.
JobControl open_control(World& world);

}  // namespace outrider
