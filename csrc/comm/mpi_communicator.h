// Communicator over MPI's collectives that move bytes; the sums are ours. World makes it.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace outrider {

// Over MPI_COMM_WORLD, which must be started and return its errors. numa_node: where this rank's
// threads stand, for share. Collective.
std::unique_ptr<Communicator> make_mpi_communicator(int numa_node);

// Throws Error naming the call where an MPI function did not return MPI_SUCCESS.
void check_mpi(int result, const char* call);

}  // namespace outrider
