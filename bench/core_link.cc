#include "bench/core_link.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "comm/shared_memory.h"
#include "core/buffer.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBlockBytes = size_t{1} << 16;  // fits the first caches beyond a core's smallest
// Few: where ranks have to share a core, each handing over may wait for a time slice.
constexpr int kBlocks = 51, kBatches = 21, kLinesABatch = 20;
constexpr int kSpins = 1000;  // before the core is offered to others

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Noise only ever adds to what a bound is made of.
double least(const std::vector<double>& samples) {
  return *std::min_element(samples.begin(), samples.end());
}

struct alignas(64) Flag {
  std::atomic<int64_t> round = 0;

  void await(int64_t wanted) const {
    for (int spins = 0; round.load(std::memory_order_acquire) < wanted; ++spins) {
      if (spins < kSpins) {
        _mm_pause();
      } else {
        sched_yield();
      }
    }
  }
};

struct Shared {
  Flag flags[2];  // of ranks 0 and 1
  alignas(64) uint64_t block[kBlockBytes / sizeof(uint64_t)];
};

// What ranks 0 and 1 find out, each its part; the parts it does not know stay 0.
CoreLink measure_part(Shared& shared, int rank) {
  Flag &mine = shared.flags[rank], &other = shared.flags[1 - rank];
  const std::vector<std::byte> part(kBlockBytes);
  std::vector<double> write, read, line;
  for (int64_t round = 1; round <= kBlocks; ++round) {
    if (rank == 1) other.await(round);
    const Clock::time_point start = Clock::now();
    if (rank == 0) {
      std::memcpy(shared.block, part.data(), kBlockBytes);  // as the sum puts its part there
      std::atomic_thread_fence(std::memory_order_seq_cst);  // all have left the core
      write.push_back(seconds_since(start));
    } else {
      uint64_t sum = 0;
      for (const uint64_t word : shared.block) sum ^= word;
      volatile uint64_t used = sum;
      static_cast<void>(used);
      read.push_back(seconds_since(start));
    }
    mine.round.store(round, std::memory_order_release);
    if (rank == 0) other.await(round);
  }
  int64_t round = kBlocks;
  for (int batch = 0; batch < kBatches; ++batch) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kLinesABatch; ++i) {
      ++round;
      if (rank == 1) other.await(round);
      mine.round.store(round, std::memory_order_release);
      if (rank == 0) other.await(round);
    }
    line.push_back(seconds_since(start) / (2 * kLinesABatch));
  }
  if (rank == 1) return {.read_rate = kBlockBytes / least(read)};
  return {.line_seconds = least(line), .write_rate = kBlockBytes / least(write)};
}

}  // namespace

std::optional<CoreLink> measure_core_link(Communicator& communicator) {
  const int ranks = communicator.size();
  CHECK(ranks >= 2);
  const Buffer memory = map_shared_memory(communicator, sizeof(Shared));
  if (memory.data() == nullptr) return std::nullopt;
  CoreLink part;
  if (communicator.rank() < 2) {
    part = measure_part(*static_cast<Shared*>(memory.data()), communicator.rank());
  }
  std::vector<CoreLink> parts(ranks);
  Stream stream;
  communicator.all_gather(TensorView(&part, DType::u8, {sizeof part}),
                          TensorView(parts.data(), DType::u8, {ranks, sizeof part}), stream);
  return CoreLink{.line_seconds = parts[0].line_seconds,
                  .read_rate = parts[1].read_rate,
                  .write_rate = parts[0].write_rate};
}

}  // namespace outrider
