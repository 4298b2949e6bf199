// An engine that has work and begins no step: what it tells of itself, and what is made of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <vector>

#include "comm/liveness.h"
#include "comm/step_progress.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::StartsWith;

// A judge of its own rank, which says `own` every interval; its peers are idle.
class Judged {
 public:
  explicit Judged(int rank = 0, std::vector<int> peers = {1})
      : peers_(std::move(peers)), judge_(rank, peers_, LivenessLimits(), now_) {}

  ProgressReport own{.state = RankState::idle, .step = 7};

  // The loss that shows within `time`.
  std::optional<Loss> pass(milliseconds time) {
    for (milliseconds t{0}; t < time; t += LivenessLimits().interval) {
      now_ += LivenessLimits().interval;
      for (const int peer : peers_) judge_.heard(peer, {.state = RankState::idle, .step = 7});
      if (auto loss = judge_.judge(own, now_)) return loss;
    }
    return std::nullopt;
  }

 private:
  const std::vector<int> peers_;
  LivenessJudge::Clock::time_point now_;
  LivenessJudge judge_;
};

TEST(BetweenSteps, AnEngineThatRestsIsWell) {
  for (const uint64_t turn : {0, 1}) {  // it has not begun, it has nothing to do
    Judged judged;
    judged.own.turn = turn;
    EXPECT_FALSE(judged.pass(seconds(3600)));
  }
}

TEST(BetweenSteps, AnEngineThatHasWorkAndBeginsNoStepHangs) {
  for (const std::vector<int>& peers : {std::vector<int>{1}, std::vector<int>()}) {
    Judged judged(0, peers);
    judged.pass(seconds(3600));
    judged.own.turn = 8;
    EXPECT_FALSE(judged.pass(milliseconds(9'900)));
    const std::optional<Loss> loss = judged.pass(milliseconds(500));
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->rank, 0);
    EXPECT_THAT(loss->reason, StartsWith("it has not begun its next step for 10."));
  }
}

TEST(BetweenSteps, AnEngineThatGoesOnIsWell) {
  Judged judged;
  for (int i = 0; i < 100; ++i) {
    judged.own.turn = 2 + i;
    if (i % 3 == 0) ++judged.own.step;
    ASSERT_FALSE(judged.pass(seconds(9))) << i;
  }
}

TEST(BetweenSteps, BehindALongStepItHasLonger) {
  Judged judged;
  judged.own.expected = seconds(2);
  judged.own.turn = 8;
  EXPECT_FALSE(judged.pass(milliseconds(19'500)));
  EXPECT_TRUE(judged.pass(seconds(1)));
}

// It counts from the step's end.
TEST(BetweenSteps, AStepIsNoPause) {
  Judged judged;
  judged.own = {.state = RankState::in_step, .step = 8, .expected = seconds(1), .turn = 8};
  EXPECT_FALSE(judged.pass(milliseconds(9'500)));
  judged.own.state = RankState::idle;
  judged.own.turn = 9;
  EXPECT_FALSE(judged.pass(milliseconds(9'500)));
}

TEST(BetweenSteps, OnlyRankZeroIsJudged) {
  Judged judged(1, {0});
  judged.own.turn = 8;
  EXPECT_FALSE(judged.pass(seconds(3600)));
}

TEST(BetweenSteps, ThereIsWorkUntilARest) {
  StepProgress progress;
  progress.ready();
  progress.expect_work();  // of an engine that has not begun
  EXPECT_FALSE(progress.report().has_work());
  progress.begin_step(1);
  progress.end_step();
  const uint64_t behind_the_step = progress.report().turn;
  EXPECT_TRUE(progress.report().has_work());
  progress.rest();
  EXPECT_FALSE(progress.report().has_work());
  progress.expect_work();
  const uint64_t expected = progress.report().turn;
  EXPECT_GT(expected, behind_the_step);
  progress.expect_work();  // nothing new to whoever works
  EXPECT_EQ(progress.report().turn, expected);
  progress.work();
  EXPECT_GT(progress.report().turn, expected);
}

// Its main thread does nothing any more, and who wakes it shows that.
TEST(BetweenSteps, AnEngineThatDoesNotWakeIsLost) {
  StepProgress progress;
  progress.ready();
  progress.rest();
  std::promise<Loss> lost;
  const LivenessLimits limits{.interval = milliseconds(1),
                              .longest_between_steps = milliseconds(20)};
  const Liveness alone(
      0, {}, progress, [&lost](const Loss& loss) { lost.set_value(loss); }, limits);
  progress.expect_work();
  const Loss loss = lost.get_future().get();
  EXPECT_EQ(loss.rank, 0);
  EXPECT_THAT(loss.reason, StartsWith("it has not begun its next step for "));
}

}  // namespace
}  // namespace outrider
