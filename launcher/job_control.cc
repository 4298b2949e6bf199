// See job_control.h.
#include "launcher/job_control.h"

#include <chrono>
#include <string>

#include "comm/greeting.h"

namespace outrider {
namespace {

constexpr std::chrono::seconds kConnectTimeout{60};

}  // namespace

std::unique_ptr<ControlServer> open_control(World& world) {
  const std::string secret = make_control_secret();
  auto control = std::make_unique<ControlServer>(world.size() - 1, secret,
                                                 control_host(world.local_size() == world.size()));
  world.broadcast_string(control->address());
  world.broadcast_string(secret);
  control->accept_all(kConnectTimeout);
  return control;
}

ControlClient join_control(World& world) {
  const std::string address = world.broadcast_string("");
  const std::string secret = world.broadcast_string("");
  return {address, world.rank(), secret};
}

}  // namespace outrider
