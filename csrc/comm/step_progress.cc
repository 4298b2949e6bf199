#include "comm/step_progress.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace outrider {
namespace {

constexpr double kNewest = 0.25;  // the weight of the newest step in the mean
// No step counts for more than so many times the mean: after one that starved, a hang is still
// found in time.
constexpr double kMost = 4;

size_t bucket_of(int64_t rows) {
  return std::bit_width(static_cast<uint32_t>(std::clamp<int64_t>(rows, 1, INT32_MAX))) - 1;
}

}  // namespace

std::chrono::milliseconds StepTimes::expected(int64_t rows) const {
  const size_t bucket = bucket_of(rows);
  const auto rounded = [](double ms) {
    return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(ms)));
  };
  // More rows take longer, but no more than in proportion.
  for (size_t smaller = bucket + 1; smaller-- > 0;) {
    if (mean_ms_[smaller] > 0) return rounded(std::ldexp(mean_ms_[smaller], bucket - smaller));
  }
  for (size_t larger = bucket; larger < mean_ms_.size(); ++larger) {
    if (mean_ms_[larger] > 0) return rounded(mean_ms_[larger]);
  }
  return kUnknown;
}

void StepTimes::add(int64_t rows, std::chrono::duration<double, std::milli> taken) {
  double& mean = mean_ms_[bucket_of(rows)];
  mean =
      mean == 0 ? taken.count() : mean + kNewest * (std::min(taken.count(), kMost * mean) - mean);
}

void StepProgress::joined() {
  position_.store(static_cast<uint64_t>(RankState::loading), std::memory_order_release);
}

void StepProgress::ready() {
  position_.store(static_cast<uint64_t>(RankState::idle), std::memory_order_release);
}

void StepProgress::begin_step(int64_t rows) {
  rows_ = rows;
  collectives_.store(0, std::memory_order_relaxed);
  begun_ = std::chrono::steady_clock::now();
  // Before the position: who reads the new step never judges it by a shorter step's time.
  expected_ms_.store(times_.expected(rows).count(), std::memory_order_release);
  const uint64_t step = (position_.load(std::memory_order_relaxed) >> 2) + 1;
  position_.store(step << 2 | static_cast<uint64_t>(RankState::in_step), std::memory_order_release);
}

void StepProgress::begin_collective() {
  collectives_.store(collectives_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void StepProgress::end_step() {
  times_.add(rows_, std::chrono::steady_clock::now() - begun_);
  work();
  const uint64_t step = position_.load(std::memory_order_relaxed) >> 2;
  position_.store(step << 2 | static_cast<uint64_t>(RankState::idle), std::memory_order_release);
}

void StepProgress::rest() { turn_.store(kResting); }

void StepProgress::work() { turn_.store(++num_turns_); }

void StepProgress::expect_work() {
  uint64_t resting = kResting;
  turn_.compare_exchange_strong(resting, ++num_turns_);
}

ProgressReport StepProgress::report() const {
  const uint64_t position = position_.load(std::memory_order_acquire);
  return {.state = static_cast<RankState>(position & 3),
          .step = position >> 2,
          .expected = std::chrono::milliseconds(expected_ms_.load(std::memory_order_acquire)),
          .collectives = collectives_.load(std::memory_order_relaxed),
          .turn = turn_.load()};
}

}  // namespace outrider
