#include "comm/job_control.h"

#include <chrono>
#include <string>

#include "comm/greeting.h"
#include "core/error.h"

namespace outrider {
namespace {

constexpr std::chrono::seconds kConnectTimeout{60};

}  // namespace

std::string JobControl::broadcast(const std::string& text) {
  if (server != nullptr) {
    server->publish({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
    return text;
  }
  const auto message = client->receive({});
  if (!message) throw Error("rank 0 has ended");
  return {message->begin(), message->end()};
}

JobControl open_control(World& world) {
  JobControl control;
  if (world.rank() > 0) {
    const std::string address = world.broadcast_string("");
    const std::string secret = world.broadcast_string("");
    control.client = std::make_unique<ControlClient>(address, world.rank(), secret);
    return control;
  }
  const std::string secret = make_control_secret();
  control.server = std::make_unique<ControlServer>(
      world.size() - 1, secret, control_host(world.local_size() == world.size()));
  world.broadcast_string(control.server->address());
  world.broadcast_string(secret);
  control.server->accept_all(kConnectTimeout);
  return control;
}

}  // namespace outrider
