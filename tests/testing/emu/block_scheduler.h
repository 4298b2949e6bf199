// BlockScheduler: runs the threads of a block as fibers of the calling thread, one block at a time.
//
// Warps run one after the other, each until all of its lanes wait at a barrier of the block or have
// exited, so that a warp is as far ahead of the others as it can be. In which order, and in which
// order a warp's lanes run, is drawn anew at every barrier. A block that begins before its turn
// stops where its threads wait for earlier kernels. Where some threads wait for others that
// will never come, the block has failed, and what it was doing is forgotten.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "testing/emu/fiber.h"
#include "testing/emu/include/emu/types.h"

namespace emu {

constexpr int kWarpLanes = 32;
constexpr int kMaxBlockThreads = 1024;

// Of one block; `operands` are the lanes' own, null for lanes outside `mask`.
using WarpOperation = void (*)(uint32_t mask, void* const* operands);

// A copy that cp.async began and no wait has completed.
struct PendingCopy {
  void* to;
  const void* from;  // null: of `bytes`
  int group;
  std::array<std::byte, 16> bytes{};  // zeros, or what was there when it was read

  void read() {
    if (from != nullptr) std::memcpy(bytes.data(), from, bytes.size());
    from = nullptr;
  }
};

class BlockScheduler {
 public:
  // The one whose block this (operating system's) thread runs.
  static BlockScheduler& current();

  // Where orders are drawn from.
  void seed(uint64_t seed) { random_ = seed; }
  uint64_t random();

  // A block whose threads run `kernel` once each. overlapped: every one of them has to wait for
  // earlier kernels.
  void begin(dim3 grid, dim3 block, uint3 index, void* shared, size_t shared_bytes, bool overlapped,
             const std::function<void()>& kernel);
  // Runs it, to its end or, where earlier kernels have not ended, to where no thread can go on
  // without them. Returns what went wrong, empty where nothing did.
  std::string go_on(bool earlier_ended);
  // Forgets the block, wherever it is.
  void abandon();

  // On a fiber, from here on.

  // Waits until every lane of `mask` has called this with the same mask and operation, which the
  // last of them carries out for all.
  void warp_collective(uint32_t mask, WarpOperation operation, void* operand,
                       const std::source_location& where);
  // Waits for all threads of the block, at the same place. Returns how many gave `true`.
  int block_barrier(bool predicate, const std::source_location& where);
  // Ends the block: what is wrong, as printf takes it. Nothing of the caller's is destroyed.
  [[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 2, 3)));

  void* shared() const { return shared_; }
  bool in_shared(const void* data, size_t bytes) const;
  int lane() const { return running_ % kWarpLanes; }
  void wait_for_earlier_kernels();
  std::vector<PendingCopy>& pending_copies() { return threads_[running_].copies; }
  int& copy_group() { return threads_[running_].copy_group; }

 private:
  struct Thread {
    uint3 index = {};
    bool has_waited = false;  // for earlier kernels
    int copy_group = 0;       // that the next cp.async belongs to
    std::vector<PendingCopy> copies;
    std::unique_ptr<Fiber> fiber;
  };

  // Where its lanes are, a bit each, and what they wait for.
  struct Warp {
    uint32_t ready, at_operation, at_barrier, at_earlier, exited;
    uint32_t predicates;  // that they gave at the barrier
    uint32_t mask[kWarpLanes];
    WarpOperation operation[kWarpLanes];
    void* operand[kWarpLanes];
    std::source_location where[kWarpLanes];
  };

  // The lanes of a warp that go round.
  struct Round {
    int warp;
    uint32_t left;  // a bit each, counted from lane `start` on
    int start;
    bool upwards;
  };

  static void run_thread(void* scheduler);
  bool failed() const { return failure_[0] != '\0'; }
  Warp& warp() { return warps_[running_ / kWarpLanes]; }
  int num_warps() const { return (num_threads_ + kWarpLanes - 1) / kWarpLanes; }
  Fiber* next();
  void wait();
  void start_warps();
  void read_copies();
  void run_warps();
  void check_mask(uint32_t mask, const std::source_location& where);
  bool release_barrier();
  std::string describe_waiting() const;
  std::string describe_block() const;

  uint64_t random_ = 1;
  std::vector<Thread> threads_;  // as many as any block had so far
  Warp warps_[kMaxBlockThreads / kWarpLanes];
  int warp_order_[kMaxBlockThreads / kWarpLanes];
  Round round_ = {};
  int num_threads_ = 0;  // of this block, as what follows
  int num_exited_ = 0;
  int barrier_count_ = 0;
  int running_ = 0;
  char failure_[1024] = "";
  dim3 grid_, block_;
  uint3 index_ = {};
  void* shared_ = nullptr;
  size_t shared_bytes_ = 0;
  bool overlapped_ = false;
  bool earlier_ended_ = true;
  const std::function<void()>* kernel_ = nullptr;
};

}  // namespace emu
