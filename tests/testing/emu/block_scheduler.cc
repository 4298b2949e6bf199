#include "testing/emu/block_scheduler.h"

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

BlockScheduler& BlockScheduler::current() {
  thread_local BlockScheduler scheduler;
  return scheduler;
}

// SplitMix64 (Steele et al. 2014).
uint64_t BlockScheduler::random() {
  uint64_t z = random_ += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

std::string BlockScheduler::run(dim3 grid, dim3 block, uint3 index, void* shared,
                                size_t shared_bytes, const std::function<void()>& kernel) {
  grid_ = gridDim = grid;
  block_ = blockDim = block;
  index_ = blockIdx = index;
  shared_ = shared;
  shared_bytes_ = shared_bytes;
  kernel_ = &kernel;
  num_threads_ = static_cast<int>(block.x * block.y * block.z);
  num_exited_ = 0;
  failure_[0] = '\0';
  while (static_cast<int>(threads_.size()) < num_threads_) {
    Thread& thread = threads_.emplace_back();
    thread.fiber = std::make_unique<Fiber>(&run_thread, this, static_cast<int>(threads_.size()));
  }
  for (int i = 0; i < num_threads_; ++i) {
    threads_[i].state = State::ready;
    threads_[i].copies.clear();
    threads_[i].copy_group = 0;
  }

  std::string failure;
  do {
    run_warps();
    if (failed()) {
      failure = describe_block() + ", " + failure_;
    } else if (num_exited_ < num_threads_ && !release_barrier()) {
      failure = describe_block() + ": " + describe_waiting();
    }
  } while (failure.empty() && num_exited_ < num_threads_);
  if (!failure.empty()) {
    for (int i = 0; i < num_threads_; ++i) threads_[i].fiber->restart();
  }
  return failure;
}

// Body of every fiber: one thread of a block after the other.
void BlockScheduler::run_thread(void* scheduler) {
  auto* const self = static_cast<BlockScheduler*>(scheduler);
  while (true) {
    (*self->kernel_)();
    self->threads_[self->running_].state = State::exited;
    ++self->num_exited_;
    self->wait();
  }
}

void BlockScheduler::resume(int thread) {
  running_ = thread;
  const auto i = static_cast<unsigned>(thread);
  threadIdx = {i % block_.x, i / block_.x % block_.y, i / block_.x / block_.y};
  threads_[thread].fiber->resume();
}

void BlockScheduler::wait() { threads_[running_].fiber->yield(); }

void BlockScheduler::run_warps() {
  const int num_warps = (num_threads_ + kWarpLanes - 1) / kWarpLanes;
  warp_order_.resize(num_warps);
  for (int i = 0; i < num_warps; ++i) {
    warp_order_[i] = i;
    std::swap(warp_order_[i], warp_order_[random() % (i + 1)]);
  }
  for (int warp : warp_order_) {
    run_warp(warp);
    if (failed()) return;
  }
}

// Until none of its lanes can go on.
void BlockScheduler::run_warp(int warp) {
  const int first = warp * kWarpLanes;
  while (true) {
    const uint64_t draw = random();
    const int start = static_cast<int>(draw % kWarpLanes);
    const int stride = static_cast<int>(draw / kWarpLanes % kWarpLanes) | 1;  // odd: meets them all
    bool any = false;
    for (int i = 0; i < kWarpLanes; ++i) {
      const int thread = first + (start + i * stride) % kWarpLanes;
      if (thread >= num_threads_ || threads_[thread].state != State::ready) continue;
      any = true;
      resume(thread);
      if (failed()) return;
    }
    if (!any) return;
  }
}

void BlockScheduler::warp_collective(uint32_t mask, WarpOperation operation, void* operand,
                                     const std::source_location& where) {
  Thread& self = threads_[running_];
  self.mask = mask;
  self.operation = operation;
  self.operand = operand;
  self.where = where;
  self.state = State::at_warp;
  if ((mask & lane_bit(lane())) == 0) {
    fail("lane %d is not in the mask it gives at %s:%u in %s", lane(), file_of(where), where.line(),
         where.function_name());
  }
  const int first = running_ - lane();
  void* operands[kWarpLanes] = {};
  bool complete = true;
  for (int i = 0; i < kWarpLanes && complete; ++i) {
    if ((mask & lane_bit(i)) == 0) continue;
    if (first + i >= num_threads_) {
      fail("the mask names lane %d, which the block has not, at %s:%u in %s", i, file_of(where),
           where.line(), where.function_name());
    }
    const Thread& other = threads_[first + i];
    complete = other.state == State::at_warp && other.mask == mask && other.operation == operation;
    operands[i] = other.operand;
  }
  if (!complete) return wait();
  operation(mask, operands);
  for (int i = 0; i < kWarpLanes; ++i) {
    if (mask & lane_bit(i)) threads_[first + i].state = State::ready;
  }
}

int BlockScheduler::block_barrier(bool predicate, const std::source_location& where) {
  Thread& self = threads_[running_];
  self.predicate = predicate;
  self.where = where;
  self.state = State::at_barrier;
  wait();
  return barrier_count_;
}

// False where not every thread waits there.
bool BlockScheduler::release_barrier() {
  barrier_count_ = 0;
  for (int i = 0; i < num_threads_; ++i) {
    const Thread& thread = threads_[i];
    if (thread.state != State::at_barrier || thread.where.line() != threads_[0].where.line() ||
        thread.where.file_name() != threads_[0].where.file_name()) {
      return false;
    }
    barrier_count_ += thread.predicate;
  }
  for (int i = 0; i < num_threads_; ++i) threads_[i].state = State::ready;
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
    const Thread& thread = threads_[i];
    ++counts[thread.state == State::exited ? "have exited"
             : thread.state == State::at_warp
                 ? "wait for lanes of their warp at " + place(thread.where)
                 : "wait for the block at " + place(thread.where)];
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
