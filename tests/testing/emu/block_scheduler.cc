#include "testing/emu/block_scheduler.h"

#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "testing/emu/include/emu/device.h"

constinit thread_local uint3 threadIdx = {};
constinit thread_local uint3 blockIdx = {};
constinit thread_local dim3 blockDim;
constinit thread_local dim3 gridDim;

namespace emu {
namespace {

uint32_t lane_bit(int lane) { return uint32_t{1} << lane; }

std::string triple(const uint3& v) {
  return std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z);
}

const char* file_of(const std::source_location& where) {
  const char* const slash = std::strrchr(where.file_name(), '/');
  return slash == nullptr ? where.file_name() : slash + 1;
}

std::string place(const std::source_location& where) {
  return std::string(file_of(where)) + ":" + std::to_string(where.line()) + " in " +
         where.function_name();
}

}  // namespace

static thread_local BlockScheduler* running_scheduler = nullptr;

BlockScheduler& BlockScheduler::current() { return *running_scheduler; }

// SplitMix64 (Steele et al. 2014).
uint64_t BlockScheduler::random() {
  uint64_t z = random_ += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

void BlockScheduler::begin(dim3 grid, dim3 block, uint3 index, void* shared, size_t shared_bytes,
                           bool overlapped, const std::function<void()>& kernel) {
  grid_ = grid;
  block_ = block;
  index_ = index;
  shared_ = shared;
  shared_bytes_ = shared_bytes;
  overlapped_ = overlapped;
  kernel_ = &kernel;
  num_threads_ = static_cast<int>(block.x * block.y * block.z);
  num_exited_ = 0;
  failure_[0] = '\0';
  while (static_cast<int>(threads_.size()) < num_threads_) {
    Thread& thread = threads_.emplace_back();
    thread.fiber = std::make_unique<Fiber>(&run_thread, this, static_cast<int>(threads_.size()));
  }
  start_warps();
}

std::string BlockScheduler::go_on(bool earlier_ended) {
  gridDim = grid_;
  blockDim = block_;
  blockIdx = index_;
  earlier_ended_ = earlier_ended;
  uint32_t at_earlier = 0;
  for (int w = 0; earlier_ended && w < num_warps(); ++w) {
    warps_[w].ready |= std::exchange(warps_[w].at_earlier, 0);
  }
  running_scheduler = this;
  std::string failure;
  do {
    run_warps();
    if (failed()) {
      failure = describe_block() + ", " + failure_;
    } else if (num_exited_ < num_threads_ && !release_barrier()) {
      for (int w = 0; w < num_warps(); ++w) at_earlier |= warps_[w].at_earlier;
      if (at_earlier != 0) {
        read_copies();
        break;
      }
      failure = describe_block() + ": " + describe_waiting();
    }
  } while (failure.empty() && num_exited_ < num_threads_);
  running_scheduler = nullptr;
  if (!failure.empty()) abandon();
  return failure;
}

// A copy may read as soon as it is asked for, and so before earlier kernels have ended.
void BlockScheduler::read_copies() {
  for (int i = 0; i < num_threads_; ++i) {
    for (PendingCopy& copy : threads_[i].copies) copy.read();
  }
}

void BlockScheduler::abandon() {
  for (int i = 0; i < num_threads_; ++i) threads_[i].fiber->restart();
}

void BlockScheduler::wait_for_earlier_kernels() {
  threads_[running_].has_waited = true;
  if (earlier_ended_) return;
  warp().at_earlier |= lane_bit(lane());
  wait();
}

// Body of every fiber: one thread of a block after the other.
void BlockScheduler::run_thread(void* scheduler) {
  auto* const self = static_cast<BlockScheduler*>(scheduler);
  while (true) {
    (*self->kernel_)();
    if (self->overlapped_ && !self->threads_[self->running_].has_waited) {
      self->fail("ends without having waited for the kernels before it");
    }
    self->warp().exited |= lane_bit(self->lane());
    ++self->num_exited_;
    self->wait();
  }
}

// Of the warp whose turn it is, the lane that goes on; null: none of them can. Those that can go
// round from a lane that is drawn, upwards or downwards.
Fiber* BlockScheduler::next() {
  Warp& lanes = warps_[round_.warp];
  if (round_.left == 0) {
    if (lanes.ready == 0) return nullptr;
    const uint64_t draw = random();
    round_.start = static_cast<int>(draw % kWarpLanes);
    round_.upwards = (draw & kWarpLanes) != 0;
    round_.left = std::rotr(lanes.ready, round_.start);
  }
  const int i = round_.upwards ? std::countr_zero(round_.left) : 31 - std::countl_zero(round_.left);
  round_.left &= ~lane_bit(i);
  const int lane = (round_.start + i) % kWarpLanes;
  lanes.ready &= ~lane_bit(lane);
  running_ = round_.warp * kWarpLanes + lane;
  threadIdx = threads_[running_].index;
  return threads_[running_].fiber.get();
}

// Until it is this thread's turn again; meanwhile others of its warp go on.
void BlockScheduler::wait() {
  Fiber& mine = *threads_[running_].fiber;
  Fiber* const other = failed() ? nullptr : next();
  if (other == nullptr) {
    mine.yield();
  } else {
    mine.hand_over_to(*other);
  }
}

void BlockScheduler::start_warps() {
  for (int i = 0; i < num_threads_; ++i) {
    const auto at = static_cast<unsigned>(i);
    threads_[i].index = {at % block_.x, at / block_.x % block_.y, at / block_.x / block_.y};
    threads_[i].has_waited = false;
    threads_[i].copies.clear();
    threads_[i].copy_group = 0;
  }
  for (int w = 0; w < num_warps(); ++w) {
    const int lanes = std::min(num_threads_ - w * kWarpLanes, kWarpLanes);
    warps_[w].ready = lanes == kWarpLanes ? ~uint32_t{0} : lane_bit(lanes) - 1;
    warps_[w].at_operation = warps_[w].at_barrier = warps_[w].at_earlier = 0;
    warps_[w].exited = warps_[w].predicates = 0;
  }
}

void BlockScheduler::run_warps() {
  for (int i = 0; i < num_warps(); ++i) {
    warp_order_[i] = i;
    std::swap(warp_order_[i], warp_order_[random() % (i + 1)]);
  }
  for (int i = 0; i < num_warps(); ++i) {
    round_ = {.warp = warp_order_[i]};
    if (Fiber* const first = next(); first != nullptr) first->resume();
    if (failed()) return;
  }
}

void BlockScheduler::warp_collective(uint32_t mask, WarpOperation operation, void* operand,
                                     const std::source_location& where) {
  Warp& self = warp();
  const int lane = this->lane();
  self.mask[lane] = mask;
  self.operation[lane] = operation;
  self.operand[lane] = operand;
  self.where[lane] = where;
  self.at_operation |= lane_bit(lane);
  if ((self.at_operation & mask) != mask) {
    check_mask(mask, where);
    return wait();
  }
  void* operands[kWarpLanes];
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int i = std::countr_zero(left);
    // Somebody waits for other lanes, or for another operation: he will be told where he waits.
    if (self.mask[i] != mask || self.operation[i] != operation) return wait();
    operands[i] = self.operand[i];
  }
  operation(mask, operands);
  self.at_operation &= ~mask;
  self.ready |= mask & ~lane_bit(lane);
}

void BlockScheduler::check_mask(uint32_t mask, const std::source_location& where) {
  if ((mask & lane_bit(lane())) == 0) {
    fail("lane %d is not in the mask it gives at %s:%u in %s", lane(), file_of(where), where.line(),
         where.function_name());
  }
  const int lanes = num_threads_ - running_ / kWarpLanes * kWarpLanes;
  if (lanes < kWarpLanes && mask >> lanes != 0) {
    fail("the mask names lane %d, which the block has not, at %s:%u in %s",
         lanes + std::countr_zero(mask >> lanes), file_of(where), where.line(),
         where.function_name());
  }
}

int BlockScheduler::block_barrier(bool predicate, const std::source_location& where) {
  Warp& self = warp();
  const int lane = this->lane();
  self.where[lane] = where;
  self.at_barrier |= lane_bit(lane);
  if (predicate) self.predicates |= lane_bit(lane);
  wait();
  return barrier_count_;
}

// False where not every thread waits there.
bool BlockScheduler::release_barrier() {
  barrier_count_ = 0;
  const std::source_location& first = warps_[0].where[0];
  for (int i = 0; i < num_threads_; ++i) {
    const Warp& warp = warps_[i / kWarpLanes];
    const int lane = i % kWarpLanes;
    if ((warp.at_barrier & lane_bit(lane)) == 0 || warp.where[lane].line() != first.line() ||
        warp.where[lane].file_name() != first.file_name()) {
      return false;
    }
  }
  for (int w = 0; w < num_warps(); ++w) {
    Warp& warp = warps_[w];
    barrier_count_ += std::popcount(warp.predicates);
    warp.predicates = 0;
    warp.ready = std::exchange(warp.at_barrier, 0);
  }
  return true;
}

bool BlockScheduler::in_shared(const void* data, size_t bytes) const {
  const auto* const begin = static_cast<const std::byte*>(shared_);
  const auto* const at = static_cast<const std::byte*>(data);
  return begin <= at && at + bytes <= begin + shared_bytes_;
}

void BlockScheduler::fail(const char* format, ...) {
  const int length = std::snprintf(failure_, sizeof failure_, "thread (%u, %u, %u): ", threadIdx.x,
                                   threadIdx.y, threadIdx.z);
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(failure_ + length, sizeof failure_ - length, format, arguments);
  va_end(arguments);
  wait();
  std::abort();  // nobody resumes it
}

std::string BlockScheduler::describe_block() const {
  return "block (" + triple(index_) + ") of (" + triple(grid_) + ") x (" + triple(block_) + ")";
}

std::string BlockScheduler::describe_waiting() const {
  std::map<std::string, int> counts;
  for (int i = 0; i < num_threads_; ++i) {
    const Warp& warp = warps_[i / kWarpLanes];
    const uint32_t bit = lane_bit(i % kWarpLanes);
    const std::source_location& where = warp.where[i % kWarpLanes];
    ++counts[(warp.exited & bit) != 0       ? "have exited"
             : (warp.at_barrier & bit) != 0 ? "wait for the block at " + place(where)
                                            : "wait for lanes of their warp at " + place(where)];
  }
  std::string text = "some threads wait for others that never come:";
  const char* separator = " ";
  for (const auto& [what, count] : counts) {
    text += separator + std::to_string(count) + " " + what;
    separator = ", ";
  }
  return text;
}

}  // namespace emu
