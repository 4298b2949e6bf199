// The group of one rank: nothing is sent. The draft model and single-process runs use it.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace outrider {

std::unique_ptr<Communicator> make_self_communicator();

}  // namespace outrider
