#include "testing/emu/grid.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "testing/emu/block_scheduler.h"
#include "testing/emu/environment.h"
#include "testing/emu/static_shared.h"

namespace emu {

namespace {

constexpr unsigned char kPoisonByte = 0xff;
constexpr size_t kMostEarly = 3;  // blocks of a thread that have begun and wait

// Dynamic shared memory of one block after the other.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes) : bytes_(bytes) {
    if (posix_memalign(&data_, 128, bytes) != 0) std::abort();
  }
  ~SharedMemory() { std::free(data_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void* data() const { return data_; }
  void poison() { std::memset(data_, kPoisonByte, bytes_); }

 private:
  size_t bytes_;
  void* data_ = nullptr;
};

}  // namespace

// Where a block of a kernel waits for earlier kernels.
class EarlyBlock {
 public:
  const Grid* grid() const { return grid_; }  // null: free
  uint64_t block() const { return block_; }

  std::string begin(const Grid& grid, uint64_t block, uint64_t seed) {
    grid_ = &grid;
    block_ = block;
    shared_.emplace(grid.shared_bytes_).poison();
    grid.static_shared_.poison();
    scheduler_.seed(seed);
    scheduler_.begin(grid.grid_, grid.block_, grid.index_of(block), shared_->data(),
                     grid.shared_bytes_, grid.overlapped_, grid.body_);
    const std::string failure = scheduler_.go_on(false);
    grid.static_shared_.save(static_shared_);
    if (failure.empty()) return "";
    grid_ = nullptr;
    return failure + " (begun before earlier kernels had ended)";
  }
  std::string end() {
    std::exchange(grid_, nullptr)->static_shared_.restore(static_shared_);
    return scheduler_.go_on(true);
  }
  void abandon() {
    if (std::exchange(grid_, nullptr) != nullptr) scheduler_.abandon();
  }

 private:
  const Grid* grid_ = nullptr;
  uint64_t block_ = 0;
  std::optional<SharedMemory> shared_;
  std::vector<std::byte> static_shared_;
  BlockScheduler scheduler_;
};

namespace {

struct OfThread {
  OfThread() { whole.seed(environment_number("OUTRIDER_EMU_SEED", 1)); }

  // What has begun of the grid; of null: a free one. Null: there is none.
  EarlyBlock* find(const Grid* grid) {
    const auto found = std::find_if(early.begin(), early.end(),
                                    [&](const EarlyBlock& block) { return block.grid() == grid; });
    return found == early.end() ? nullptr : &*found;
  }

  BlockScheduler whole;  // of blocks that run to their end
  std::array<EarlyBlock, kMostEarly> early;
};

OfThread& of_thread() {
  thread_local OfThread of_thread;
  return of_thread;
}

}  // namespace

void seed_orders(uint64_t seed) { of_thread().whole.seed(seed); }

void abandon_early_blocks() {
  for (EarlyBlock& block : of_thread().early) block.abandon();
}

Grid::Grid(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, bool overlapped,
           std::function<void()> body)
    : static_shared_(StaticShared::of(kernel)),
      grid_(grid),
      block_(block),
      shared_bytes_(shared_bytes),
      overlapped_(overlapped),
      body_(std::move(body)),
      count_(uint64_t{grid.x} * grid.y * grid.z) {}

uint3 Grid::index_of(uint64_t block) const {
  return {static_cast<unsigned>(block % grid_.x), static_cast<unsigned>(block / grid_.x % grid_.y),
          static_cast<unsigned>(block / grid_.x / grid_.y)};
}

std::string Grid::begin() const {
  OfThread& all = of_thread();
  EarlyBlock* const free = all.find(nullptr);
  if (free == nullptr || all.find(this) != nullptr || all.whole.random() % 2 == 0) return "";
  const uint64_t block = all.whole.random() % count_;
  return free->begin(*this, block, all.whole.random());
}

std::string Grid::run() const {
  BlockScheduler& blocks = of_thread().whole;
  EarlyBlock* const early = of_thread().find(this);
  const bool early_last = early != nullptr && blocks.random() % 2 == 0;
  std::string failure;
  if (early != nullptr && !early_last) failure = early->end();
  SharedMemory shared(shared_bytes_);
  uint64_t stride = 1 + blocks.random() % count_;
  while (std::gcd(stride, count_) != 1) ++stride;
  uint64_t at = blocks.random() % count_;
  for (uint64_t i = 0; i < count_ && failure.empty(); ++i, at = (at + stride) % count_) {
    if (early != nullptr && at == early->block()) continue;
    shared.poison();
    static_shared_.poison();
    blocks.begin(grid_, block_, index_of(at), shared.data(), shared_bytes_, overlapped_, body_);
    failure = blocks.go_on(true);
  }
  if (early_last && failure.empty()) failure = early->end();
  return failure;
}

}  // namespace emu
