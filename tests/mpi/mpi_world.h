// The World of the program that runs these tests under mpirun: main.cc owns it.
#pragma once

#include "comm/world.h"

namespace outrider::testing {

World& mpi_world();

}  // namespace outrider::testing
