// What this host calls itself.
#pragma once

#include <string>

namespace outrider {

std::string host_name();

}  // namespace outrider
