// What a program that was built without CUDA has in place of NCCL.
#include "comm/nccl/nccl_communicator.h"
#include "core/error.h"

namespace outrider {
namespace {

[[noreturn]] void refuse() { throw Error("this program was built without CUDA"); }

}  // namespace

std::string nccl_version() { return ""; }

bool nccl_fits(int, int) { return false; }

void check_nccl_library() { refuse(); }

std::string make_nccl_id() { refuse(); }

std::unique_ptr<Communicator> make_nccl_communicator(int, int, const std::string&, Numerics) {
  refuse();
}

void let_nccl_share_devices(int) { refuse(); }

}  // namespace outrider
