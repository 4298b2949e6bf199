// A rank writes its part, says so, and reads the others' once they have said so. Parts alternate
// between two places: whoever writes the first again has seen all others arrive at the second, so
// they have read the first.
#include "comm/shared_memory_sum.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstring>

#include "comm/ordered_sum.h"
#include "core/error.h"

namespace outrider {
namespace {

constexpr int64_t kPieceElements = 16384;  // that go at a time
constexpr int kSpins = 1000;               // some 20 to 50 µs
// A wait that gives away the core for as long as this has neighbours. Where that goes for more than
// an eighth of the waits, for a while, so many of the next ones sleep. (A client beside the server
// takes a core now and then, and costs less than sleeping would.)
constexpr std::chrono::microseconds kSlice{500};
constexpr int kPerCrowdedWait = 8, kCrowded = 256, kSleepyWaits = 8000;

// Of a word that processes share; std::atomic::wait is for the threads of one.
void futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

// How often this thread was ready to run and another ran in its place. (The clock alone would count
// a host that stops the whole virtual machine.)
int64_t times_displaced() {
  rusage usage;
  CHECK(getrusage(RUSAGE_THREAD, &usage) == 0);
  return usage.ru_nivcsw;
}

}  // namespace

struct SharedMemorySum::Arrival {
  std::atomic<uint32_t> round;     // the last one that the rank has arrived at, modulo 2^32
  std::atomic<uint32_t> sleepers;  // others that sleep until it arrives
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
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
  Arrival& mine = arrivals_[rank_];
  mine.round.store(round_);
  if (mine.sleepers.load() != 0) futex(mine.round, FUTEX_WAKE, INT_MAX);
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_) await(arrivals_[rank]);
  }
  ordered_sum(parts, ranks_, n, x);
}

// Offering the core again and again is quickest where nobody wants it. Where somebody does, each of
// a step's many sums gives away a slice of time, so there who waits sleeps.
void SharedMemorySum::await(Arrival& other) {
  using Clock = std::chrono::steady_clock;
  const uint32_t before = round_ - 1;  // at which it has arrived, since the last sum is made
  if (sleepy_waits_ == 0 && crowded_ > 0) --crowded_;
  for (int spins = 0; spins < kSpins; ++spins) {
    if (other.round != before) return;
    _mm_pause();
  }
  for (bool counted = false; sleepy_waits_ == 0;) {
    const int64_t displaced = times_displaced();
    const Clock::time_point offered = Clock::now();
    sched_yield();
    const bool took_long = Clock::now() - offered > kSlice;
    if (!counted && took_long && times_displaced() > displaced) {
      counted = true;
      crowded_ += kPerCrowdedWait;
      if (crowded_ >= kCrowded) {
        crowded_ -= kPerCrowdedWait;  // one more of them, and the next ones sleep again
        sleepy_waits_ = kSleepyWaits;
      }
    }
    if (other.round != before) return;
  }
  --sleepy_waits_;
  // In one order for all: whoever arrives sees the sleeper, or the sleeper the arrival.
  ++other.sleepers;
  while (other.round == before) futex(other.round, FUTEX_WAIT, before);
  --other.sleepers;
}

}  // namespace outrider
