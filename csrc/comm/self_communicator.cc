#include "comm/self_communicator.h"

#include <cstring>

namespace outrider {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  bool is_near() const override { return true; }

  void all_reduce_sum(TensorView x, Stream&) override {
    CHECK(x.dtype() == DType::f32 && x.contiguous());
  }
  void all_gather(TensorView mine, TensorView all, Stream&) override {
    CHECK(mine.contiguous() && all.contiguous() && all.bytes() == mine.bytes());
    if (mine.bytes() > 0) std::memcpy(all.raw(), mine.raw(), mine.bytes());
  }
  void broadcast(TensorView x, int root, Stream&) override { CHECK(x.contiguous() && root == 0); }
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<SelfCommunicator>();
}

}  // namespace outrider
