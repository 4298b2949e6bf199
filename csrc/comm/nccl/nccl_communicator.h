// Communicator over NCCL, for tensors in the memory of GPUs, one a rank. A program built without
// CUDA has this too, and is told so.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "core/numerics.h"

namespace outrider {

// NCCL's version as it was loaded, "2.28.9"; empty where the program was built without CUDA.
std::string nccl_version();

// Whether a program built for one version of NCCL (as NCCL_VERSION_CODE counts) can use another:
// the same major version, and a minor one that is no older.
bool nccl_fits(int built, int loaded);

// Throws Error where the library that was loaded does not fit.
void check_nccl_library();

// What the ranks of a group have in common: made by one, given to all. Bytes, not text.
std::string make_nccl_id();

// Collective; on the calling thread's device, from which alone it is called. Throws Error where the
// group does not come about. A group of one needs no id and no NCCL. Fast: NCCL adds, in an order
// of its own, which is equal on all ranks.
std::unique_ptr<Communicator> make_nccl_communicator(int rank, int size, const std::string& id,
                                                     Numerics numerics = Numerics::exact);

// Before the first of these: several ranks of this host share a GPU, for which NCCL, slower by far,
// has to believe that each is a host of its own. All ranks are on this host. What the environment
// says already, but for NCCL_HOSTID, stays.
void let_nccl_share_devices(int local_rank);

}  // namespace outrider
