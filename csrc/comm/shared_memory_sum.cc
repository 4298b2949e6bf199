// A rank writes its part, says so, and reads the others' once they have said so. Parts alternate
// between two places: whoever writes the first again has seen all others arrive at the second, so
// they have read the first.
#include "comm/shared_memory_sum.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "comm/ordered_sum.h"
#include "core/error.h"

namespace outrider {
namespace {

constexpr int64_t kPieceElements = 16384;  // that go at a time
constexpr int kSpins = 1000;               // some 50 µs before the core is offered to others

}  // namespace

struct SharedMemorySum::Arrival {
  std::atomic<uint64_t> round;
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
};

size_t SharedMemorySum::bytes(int ranks) {
  return ranks * (sizeof(Arrival) + 2 * kPieceElements * sizeof(float));
}

SharedMemorySum::SharedMemorySum(void* memory, int rank, int ranks)
    : arrivals_(static_cast<Arrival*>(memory)),
      parts_(reinterpret_cast<float*>(arrivals_ + ranks)),
      rank_(rank),
      ranks_(ranks) {
  CHECK(0 <= rank && rank < ranks && ranks >= 2);
}

void SharedMemorySum::sum(float* x, int64_t n) {
  for (int64_t begin = 0; begin < n; begin += kPieceElements) {
    sum_piece(x + begin, std::min(n - begin, kPieceElements));
  }
}

void SharedMemorySum::sum_piece(float* x, int64_t n) {
  ++round_;
  float* parts = parts_ + round_ % 2 * ranks_ * kPieceElements;  // [ranks, n]
  std::memcpy(parts + rank_ * n, x, n * sizeof(float));
  arrivals_[rank_].round.store(round_, std::memory_order_release);
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_) await(arrivals_[rank]);
  }
  ordered_sum(parts, ranks_, n, x);
}

void SharedMemorySum::await(const Arrival& other) const {
  for (int spins = 0; other.round.load(std::memory_order_acquire) < round_; ++spins) {
    if (spins < kSpins) {
      _mm_pause();
    } else {
      sched_yield();
    }
  }
}

}  // namespace outrider
