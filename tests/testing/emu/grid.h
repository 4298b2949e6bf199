// Grid: the blocks of a kernel that was launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace emu {

class StaticShared;

// Where this thread's orders, and what begins early, are drawn from (OUTRIDER_EMU_SEED).
void seed_orders(uint64_t seed);

// Forgets the blocks that have begun early on this thread: the device has failed.
void abandon_early_blocks();

// A graph may run one many times, and threads the same one at once: what has begun of it is the
// thread's.
class Grid {
 public:
  // kernel: its address, of which `body` calls one thread. overlapped: every thread of it has to
  // wait for earlier kernels.
  Grid(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, bool overlapped,
       std::function<void()> body);

  // Each returns what went wrong, empty where nothing did.

  // While earlier kernels have not ended: runs one of its blocks to where that waits for them, if
  // none has begun, and the lot falls so.
  std::string begin() const;
  // Its blocks, one after the other, in an order that is drawn. What has begun goes on first or
  // last.
  std::string run() const;

 private:
  friend class EarlyBlock;

  uint3 index_of(uint64_t block) const;

  const StaticShared& static_shared_;
  dim3 grid_, block_;
  size_t shared_bytes_;
  bool overlapped_;
  std::function<void()> body_;
  uint64_t count_;  // of blocks
};

}  // namespace emu
