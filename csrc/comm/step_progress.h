// StepProgress: what a rank's engine thread tells of itself, for the heartbeat's thread to pass on.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace outrider {

// joining: the communicator comes about, for which each rank waits for all others.
enum class RankState : uint8_t { joining = 0, loading = 1, idle = 2, in_step = 3 };

struct ProgressReport {
  RankState state = RankState::joining;
  uint64_t step = 0;                      // the last one begun, counted from 1
  std::chrono::milliseconds expected{0};  // how long that step should take
  uint64_t collectives = 0;               // begun in it, so far
  // Of rank 0's engine: 0 before it has begun, 1 while it has nothing to do, else another one
  // behind each step and each rest. Where that stays, and no step begins, the engine hangs.
  uint64_t turn = 0;
  bool has_work() const { return turn > 1; }
};

// How long a step of so many rows should take, from those before it: a running mean for each power
// of two of rows, scaled from the nearest where there is none.
class StepTimes {
 public:
  // Nothing is known of the first step, and a sanitizer's build may be a hundred times slower.
  static constexpr std::chrono::milliseconds kUnknown{12'000};

  std::chrono::milliseconds expected(int64_t rows) const;
  void add(int64_t rows, std::chrono::duration<double, std::milli> taken);

 private:
  std::array<double, 32> mean_ms_{};  // [log2(rows)]; 0: none yet
};

// One thread, the one that runs steps, writes, but for expect_work(); any thread reads.
class StepProgress {
 public:
  void joined();  // the communicator is there
  void ready();   // the weights are loaded
  // rows: tokens that the step takes through the target, on all its sequences.
  void begin_step(int64_t rows);
  void begin_collective();
  void end_step();  // and work()

  // Rank 0's engine: what it does between steps is work, unless it rests.
  void rest();
  void work();
  // Thread-safe, and to be called before whoever rests is woken.
  void expect_work();

  ProgressReport report() const;

 private:
  static constexpr uint64_t kResting = 1;

  std::atomic<uint64_t> position_ = 0;  // step << 2 | state
  std::atomic<int64_t> expected_ms_ = 0;
  std::atomic<uint64_t> collectives_ = 0;
  std::atomic<uint64_t> turn_ = 0, num_turns_ = kResting;

  // The writer's alone.
  StepTimes times_;
  int64_t rows_ = 0;
  std::chrono::steady_clock::time_point begun_;
};

}  // namespace outrider
