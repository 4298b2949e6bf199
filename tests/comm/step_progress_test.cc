// What a rank tells of its steps, and what it expects of the next.
#include "comm/step_progress.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

using std::chrono::milliseconds;

TEST(StepTimes, TheFirstStepMayTakeLong) {
  EXPECT_EQ(StepTimes().expected(1), StepTimes::kUnknown);
  EXPECT_EQ(StepTimes().expected(4096), StepTimes::kUnknown);
}

TEST(StepTimes, ARunningMeanForEachSize) {
  StepTimes times;
  times.add(1, milliseconds(10));
  times.add(256, milliseconds(400));
  EXPECT_EQ(times.expected(1), milliseconds(10));
  EXPECT_EQ(times.expected(300), milliseconds(400));
  times.add(1, milliseconds(18));
  EXPECT_EQ(times.expected(1), milliseconds(12));
  for (int i = 0; i < 100; ++i) times.add(1, milliseconds(100));
  EXPECT_EQ(times.expected(1), milliseconds(100));
  EXPECT_EQ(times.expected(256), milliseconds(400));
}

// On a host that others keep busy: it must not hide a hang that comes after it.
TEST(StepTimes, AStepThatStarvedIsHardlyExpectedAgain) {
  StepTimes times;
  times.add(1, milliseconds(100));
  times.add(1, milliseconds(29'000));
  EXPECT_EQ(times.expected(1), milliseconds(175));
}

// A long prefill after short steps is no surprise, and a short step after it is not held to less
// than what is known.
TEST(StepTimes, UnknownSizesAreScaledFromTheNearest) {
  StepTimes times;
  times.add(4, milliseconds(10));
  EXPECT_EQ(times.expected(512), milliseconds(1280));
  EXPECT_EQ(times.expected(1), milliseconds(10));
  times.add(64, milliseconds(50));
  EXPECT_EQ(times.expected(512), milliseconds(400));
  EXPECT_EQ(times.expected(int64_t{1} << 40), milliseconds(50LL << 24));
}

TEST(StepProgress, TellsStateStepAndExpectation) {
  StepProgress progress;
  EXPECT_EQ(progress.report().state, RankState::joining);
  progress.joined();
  EXPECT_EQ(progress.report().state, RankState::loading);
  progress.ready();
  EXPECT_EQ(progress.report().state, RankState::idle);
  EXPECT_EQ(progress.report().step, 0u);
  progress.begin_step(1);
  EXPECT_EQ(progress.report().state, RankState::in_step);
  EXPECT_EQ(progress.report().step, 1u);
  EXPECT_EQ(progress.report().expected, StepTimes::kUnknown);
  progress.end_step();
  EXPECT_EQ(progress.report().state, RankState::idle);
  EXPECT_EQ(progress.report().collectives, 0u);
  progress.begin_step(1);
  progress.begin_collective();
  EXPECT_EQ(progress.report().collectives, 1u);
  EXPECT_EQ(progress.report().step, 2u);
  EXPECT_LT(progress.report().expected, StepTimes::kUnknown);
}

}  // namespace
}  // namespace outrider
