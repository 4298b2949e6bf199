#include "testing/emu/grid.h"

#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "testing/emu/block_scheduler.h"
#include "testing/emu/environment.h"
#include "testing/emu/static_shared.h"

namespace emu {

namespace {

constexpr unsigned char kPoisonByte = 0xff;
constexpr int kMostEarly = 3;  // blocks of a thread that have begun and wait

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

// Of this thread: one for blocks that run to their end, and those for blocks that begin early.
struct Schedulers {
  Schedulers() { whole.seed(environment_number("OUTRIDER_EMU_SEED", 1)); }

  BlockScheduler whole;
  std::vector<std::unique_ptr<BlockScheduler>> free;
  int num_early = 0;
};

const std::shared_ptr<Schedulers>& schedulers() {
  thread_local const auto schedulers = std::make_shared<Schedulers>();
  return schedulers;
}

}  // namespace

void seed_orders(uint64_t seed) { schedulers()->whole.seed(seed); }

// A block that waits for earlier kernels.
class Grid::Early {
 public:
  Early(const Grid& grid, uint64_t block) : block_(block), shared_(grid.shared_bytes_) {
    ++all_->num_early;
    if (all_->free.empty()) all_->free.push_back(std::make_unique<BlockScheduler>());
    scheduler_ = std::move(all_->free.back());
    all_->free.pop_back();
    scheduler_->seed(all_->whole.random());
    shared_.poison();
    scheduler_->begin(grid.grid_, grid.block_, grid.index_of(block), shared_.data(),
                      grid.shared_bytes_, grid.overlapped_, grid.body_);
  }
  ~Early() {
    if (!ended_) scheduler_->abandon();
    --all_->num_early;
    all_->free.push_back(std::move(scheduler_));
  }
  Early(const Early&) = delete;
  Early& operator=(const Early&) = delete;

  uint64_t block() const { return block_; }

  std::string begin() {
    poison_static_shared();
    std::string failure = scheduler_->go_on(false);
    static_shared_ = save_static_shared();
    ended_ = !failure.empty();
    return failure;
  }
  std::string end() {
    restore_static_shared(static_shared_);
    ended_ = true;
    return scheduler_->go_on(true);
  }

 private:
  std::shared_ptr<Schedulers> all_ = schedulers();
  uint64_t block_;
  SharedMemory shared_;
  std::vector<std::byte> static_shared_;
  std::unique_ptr<BlockScheduler> scheduler_;
  bool ended_ = false;
};

Grid::Grid(dim3 grid, dim3 block, size_t shared_bytes, bool overlapped, std::function<void()> body)
    : grid_(grid),
      block_(block),
      shared_bytes_(shared_bytes),
      overlapped_(overlapped),
      body_(std::move(body)),
      count_(uint64_t{grid.x} * grid.y * grid.z) {}

Grid::~Grid() = default;

uint3 Grid::index_of(uint64_t block) const {
  return {static_cast<unsigned>(block % grid_.x), static_cast<unsigned>(block / grid_.x % grid_.y),
          static_cast<unsigned>(block / grid_.x / grid_.y)};
}

std::string Grid::begin() {
  Schedulers& all = *schedulers();
  if (early_ != nullptr || all.num_early == kMostEarly || all.whole.random() % 2 == 0) return "";
  early_ = std::make_unique<Early>(*this, all.whole.random() % count_);
  return early_->begin();
}

std::string Grid::run() {
  BlockScheduler& blocks = schedulers()->whole;
  const std::unique_ptr<Early> early = std::move(early_);
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
    poison_static_shared();
    blocks.begin(grid_, block_, index_of(at), shared.data(), shared_bytes_, overlapped_, body_);
    failure = blocks.go_on(true);
  }
  if (early_last && failure.empty()) failure = early->end();
  return failure;
}

}  // namespace emu
