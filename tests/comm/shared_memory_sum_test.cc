#include "comm/shared_memory_sum.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "comm/ordered_sum.h"
#include "core/buffer.h"

namespace outrider {
namespace {

// What rank `rank` brings to a round: its sums depend on the order in which parts are added.
float part_of(int rank, int64_t round, int64_t i) {
  const float large = (round + i) % 2 == 0 ? 1e8f : -1e8f;
  return rank == 0 ? large : rank == 1 ? 1.0f + static_cast<float>(i % 7) : -large;
}

// Ranks that are never told to wait for each other between rounds, and sums of one piece, of
// several, and of sizes that change from round to round.
TEST(SharedMemorySum, AddsInRankOrderRoundAfterRound) {
  for (int ranks : {2, 3}) {
    const Buffer memory = allocate_host(SharedMemorySum::bytes(ranks));
    const auto work = [&](int rank) {
      SharedMemorySum shared(memory.data(), rank, ranks);
      for (int64_t round = 0; round < 300; ++round) {
        const int64_t n = round % 100 == 99 ? 40'000 : 1 + round * 37 % 5000;
        std::vector<float> x(n), parts(ranks * n), expected(n);
        for (int64_t i = 0; i < n; ++i) {
          x[i] = part_of(rank, round, i);
          for (int other = 0; other < ranks; ++other) {
            parts[other * n + i] = part_of(other, round, i);
          }
        }
        ordered_sum(parts.data(), ranks, n, expected.data());
        shared.sum(x.data(), n);
        // And on it goes: a rank that left would be waited for.
        EXPECT_EQ(std::memcmp(x.data(), expected.data(), n * sizeof(float)), 0)
            << "rank " << rank << ", round " << round;
      }
    };
    std::vector<std::thread> others;
    for (int rank = 1; rank < ranks; ++rank) others.emplace_back(work, rank);
    work(0);
    for (std::thread& other : others) other.join();
  }
}

int64_t times_slept() {
  rusage usage;
  EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
  return usage.ru_nvcsw;  // switches that the thread asked for: sched_yield() is none of these
}

// Where others compute on the same cores, a rank that only offered its own would give away a slice
// of time in each round.
TEST(SharedMemorySum, SleepsBesideOthersWhoWantTheCores) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point patience = Clock::now() + std::chrono::seconds(20);
  std::atomic<bool> done = false;
  std::vector<std::jthread> others;
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i) {
    others.emplace_back([&] {
      while (!done) continue;
    });
  }
  const Buffer memory = allocate_host(SharedMemorySum::bytes(2));
  std::atomic<int> num_asleep = 0;
  const auto work = [&](int rank) {
    SharedMemorySum shared(memory.data(), rank, 2);
    const int64_t slept_before = times_slept();
    for (int round = 0;; ++round) {
      const bool slept = times_slept() > slept_before + 100;  // no accident
      float x[2] = {part_of(rank, round, 0), slept || Clock::now() > patience ? 1.0f : 0.0f};
      shared.sum(x, 2);
      EXPECT_EQ(x[0], part_of(0, round, 0) + part_of(1, round, 0)) << "round " << round;
      if (x[1] == 0) continue;  // the same for both
      num_asleep += slept ? 1 : 0;
      return;
    }
  };
  { const std::jthread one(work, 1), zero(work, 0); }
  done = true;
  EXPECT_GT(num_asleep, 0);
}

}  // namespace
}  // namespace outrider
