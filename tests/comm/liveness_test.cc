// When a peer counts as lost: the judgement over a time of the test's own, then the threads over
// loopback.
#include "comm/liveness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace outrider {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

ProgressReport joining() { return {}; }
ProgressReport loading() { return {.state = RankState::loading}; }
ProgressReport idle(uint64_t step) { return {.state = RankState::idle, .step = step}; }
ProgressReport in_step(uint64_t step, milliseconds expected = milliseconds(10)) {
  return {.state = RankState::in_step, .step = step, .expected = expected};
}

constexpr double kTick = 0.5;  // two intervals, in seconds: how late a loss may show

// A judge, and what each rank says to it every interval.
class Bench {
 public:
  explicit Bench(int rank = 0, std::vector<int> peers = {1, 2})
      : judge_(rank, peers, LivenessLimits(), now_) {
    for (const int peer : peers) says_[peer] = idle(0);
  }

  ProgressReport own = idle(0);
  ProgressReport& peer(int rank) { return *says_[rank]; }
  void silence(int rank) { says_[rank].reset(); }

  // The loss that shows within `time`, and when.
  std::optional<Loss> pass(milliseconds time) {
    for (milliseconds t{0}; t < time; t += kInterval) {
      if (auto loss = tick(kInterval)) return loss;
    }
    return std::nullopt;
  }
  std::optional<Loss> tick(milliseconds time) {
    now_ += time;
    for (const auto& [rank, report] : says_) {
      if (report) judge_.heard(rank, *report);
    }
    const auto loss = judge_.judge(own, now_);
    elapsed_ += time;
    return loss;
  }
  // Seconds until a loss shows.
  double until_loss() {
    elapsed_ = milliseconds(0);
    loss = pass(seconds(2000));
    return std::chrono::duration<double>(elapsed_).count();
  }
  std::optional<Loss> loss;

  LivenessJudge& judge() { return judge_; }

 private:
  static constexpr milliseconds kInterval{250};

  LivenessJudge::Clock::time_point now_;
  milliseconds elapsed_{0};
  LivenessJudge judge_;
  std::map<int, std::optional<ProgressReport>> says_;
};

TEST(LivenessJudge, IdleRanksThatBreatheAreWell) {
  Bench bench;
  EXPECT_FALSE(bench.pass(seconds(3600)));
}

TEST(LivenessJudge, ASilentPeerIsLostAfterFiveSeconds) {
  Bench bench;
  bench.pass(seconds(10));
  bench.silence(2);
  EXPECT_NEAR(bench.until_loss(), 5, kTick);
  EXPECT_EQ(bench.loss->rank, 2);
  EXPECT_THAT(bench.loss->reason, HasSubstr("nothing was heard from it for 5."));
}

TEST(LivenessJudge, ASilentPeerIsLostAfterThreeSecondsInAStep) {
  Bench bench;
  bench.pass(seconds(10));
  // However long the step may take: it breathes apart from its steps.
  bench.own = in_step(1, seconds(100));
  bench.silence(1);
  EXPECT_NEAR(bench.until_loss(), 3, kTick);
  EXPECT_EQ(bench.loss->rank, 1);
}

TEST(LivenessJudge, AStepThatDoesNotEndHangs) {
  Bench bench;
  bench.own = bench.peer(1) = bench.peer(2) = in_step(7);
  EXPECT_NEAR(bench.until_loss(), 3, kTick);
  EXPECT_THAT(bench.loss->reason, AllOf(HasSubstr("step 7 has not advanced on any rank for 3."),
                                        HasSubstr("; expected were 10 ms for all of it")));
}

// Ranks that get little of a processor: every collective is late, and yet the next one comes.
TEST(LivenessJudge, AStepThatAdvancesIsNoHang) {
  Bench bench;
  bench.own = bench.peer(1) = bench.peer(2) = in_step(7);
  for (int collective = 0; collective < 10; ++collective) {
    for (ProgressReport* report : {&bench.own, &bench.peer(1), &bench.peer(2)}) {
      ++report->collectives;
    }
    ASSERT_FALSE(bench.pass(milliseconds(2750))) << collective;
  }
  EXPECT_NEAR(bench.until_loss(), 0.25, kTick);  // 3 s after the last one
}

TEST(LivenessJudge, AStepThatAdvancesForEverIsLostAfterTenTimesAsLong) {
  Bench bench;
  bench.own = bench.peer(1) = bench.peer(2) = in_step(7);
  double taken = 0;
  do {
    for (ProgressReport* report : {&bench.own, &bench.peer(1), &bench.peer(2)}) {
      ++report->collectives;
    }
    bench.loss = bench.tick(milliseconds(250));
    taken += 0.25;
  } while (!bench.loss && taken < 1000);
  EXPECT_NEAR(taken, 30, kTick);
  EXPECT_THAT(bench.loss->reason, HasSubstr("step 7 has not ended on any rank for 30."));
}

TEST(LivenessJudge, NamesTheRankThatTheOthersWaitForInACollective) {
  Bench bench;
  bench.own = bench.peer(1) = bench.peer(2) = in_step(7);
  bench.own.collectives = bench.peer(2).collectives = 40;
  bench.peer(1).collectives = 39;
  EXPECT_NEAR(bench.until_loss(), 3, kTick);
  EXPECT_EQ(bench.loss->rank, 1);
  EXPECT_THAT(bench.loss->reason,
              AllOf(HasSubstr("step 7 has not advanced on it for 3."),
                    HasSubstr("; rank 0: step 7, collective 40; rank 1: step 7, collective 39; "
                              "rank 2: step 7, collective 40")));
}

TEST(LivenessJudge, NamesTheRankThatHasComeLeastFar) {
  Bench bench;
  bench.own = bench.peer(1) = in_step(7);
  bench.peer(2) = idle(6);  // never took the plan
  bench.until_loss();
  EXPECT_EQ(bench.loss->rank, 2);
  EXPECT_THAT(bench.loss->reason, AllOf(HasSubstr("step 7 has not advanced on it"),
                                        HasSubstr("; rank 2: step 6, ended")));
}

TEST(LivenessJudge, AHangAfterTheLastExchangeIsSeenWhileRankZeroIsIdle) {
  Bench bench;
  bench.own = bench.peer(2) = idle(7);
  bench.peer(1) = in_step(7);
  EXPECT_NEAR(bench.until_loss(), 3, kTick);
  EXPECT_EQ(bench.loss->rank, 1);
}

TEST(LivenessJudge, ALongStepThatWasExpectedIsNoHang) {
  Bench bench;
  bench.own = bench.peer(1) = bench.peer(2) = in_step(7, seconds(2));
  EXPECT_NEAR(bench.until_loss(), 20, kTick);
}

// Rank 0 has begun a short step behind a long one that the others are still in.
TEST(LivenessJudge, EachRankIsHeldToTheStepThatItIsIn) {
  Bench bench;
  bench.own = bench.peer(1) = bench.peer(2) = in_step(7, seconds(2));
  ASSERT_FALSE(bench.pass(seconds(10)));
  bench.own = in_step(8);
  EXPECT_FALSE(bench.pass(milliseconds(2750)));
}

// Silence has a limit of its own.
TEST(LivenessJudge, ABeatThatIsLateIsNoStepThatStandsStill) {
  Bench bench;
  bench.own = bench.peer(2) = idle(7);
  bench.peer(1) = in_step(7);
  bench.pass(milliseconds(500));
  bench.silence(1);
  EXPECT_FALSE(bench.pass(milliseconds(2750)));
}

TEST(LivenessJudge, StepsThatAdvanceAreNoHang) {
  Bench bench;
  for (uint64_t step = 1; step < 1000; ++step) {
    bench.own = bench.peer(1) = bench.peer(2) = in_step(step);
    ASSERT_FALSE(bench.pass(milliseconds(2750))) << step;
  }
}

// Elsewhere only rank 0 is watched, and only for silence: it has clients to tell first.
TEST(LivenessJudge, OnlyRankZeroJudgesSteps) {
  Bench bench(1, {0});
  bench.own = bench.peer(0) = in_step(7);
  EXPECT_FALSE(bench.pass(seconds(1000)));
  bench.silence(0);
  EXPECT_NEAR(bench.until_loss(), 3, kTick);
  EXPECT_EQ(bench.loss->rank, 0);
}

TEST(LivenessJudge, ARankAloneJudgesItself) {
  Bench bench(0, {});
  EXPECT_FALSE(bench.pass(seconds(1000)));
  bench.own = in_step(3);
  EXPECT_NEAR(bench.until_loss(), 3, kTick);
  EXPECT_EQ(bench.loss->rank, 0);
}

TEST(LivenessJudge, LoadingMayStarveAProcess) {
  Bench bench;
  bench.own = loading();
  bench.silence(1);
  EXPECT_NEAR(bench.until_loss(), 30, kTick);
}

TEST(LivenessJudge, JoiningMayStarveAProcess) {
  Bench bench;
  bench.own = joining();
  bench.silence(1);
  EXPECT_NEAR(bench.until_loss(), 30, kTick);
}

TEST(LivenessJudge, NamesTheRankThatDoesNotJoin) {
  Bench bench;
  bench.own = bench.peer(1) = bench.peer(2) = joining();
  bench.pass(seconds(1));
  bench.own = bench.peer(1) = loading();
  EXPECT_NEAR(bench.until_loss(), 59, kTick);
  EXPECT_EQ(bench.loss->rank, 2);
  EXPECT_THAT(bench.loss->reason, HasSubstr("it has not joined the communicator for 60."));
}

TEST(LivenessJudge, WhereNoRankJoinsItSaysSo) {
  Bench bench;
  bench.own = bench.peer(1) = bench.peer(2) = joining();
  EXPECT_NEAR(bench.until_loss(), 60, kTick);
  EXPECT_EQ(bench.loss->rank, 0);
  EXPECT_THAT(bench.loss->reason, HasSubstr("no rank has joined the communicator for 60."));
}

TEST(LivenessJudge, OnlyRankZeroJudgesJoining) {
  Bench bench(1, {0});
  bench.own = bench.peer(0) = joining();
  EXPECT_FALSE(bench.pass(seconds(3600)));
}

// Ranks wait for each other while they load, so that rank 0 may stand still with the one that
// hangs.
TEST(LivenessJudge, NamesTheRankThatDoesNotLoad) {
  Bench bench;
  bench.own = bench.peer(1) = bench.peer(2) = loading();
  bench.pass(seconds(1));
  bench.own = bench.peer(2) = idle(0);
  EXPECT_NEAR(bench.until_loss(), 1799, kTick);
  EXPECT_EQ(bench.loss->rank, 1);
  EXPECT_THAT(bench.loss->reason, HasSubstr("it has not loaded for 1800."));

  Bench all;
  all.own = all.peer(1) = all.peer(2) = loading();
  EXPECT_NEAR(all.until_loss(), 1800, kTick);
  EXPECT_THAT(all.loss->reason, HasSubstr("no rank has loaded for 1800."));

  Bench alone(0, {});
  alone.own = loading();
  EXPECT_NEAR(alone.until_loss(), 1800, kTick);
}

TEST(LivenessJudge, AFirstStepEndsTheLoading) {
  Bench bench;
  bench.peer(1) = loading();
  bench.pass(seconds(1));
  bench.silence(1);
  bench.own = idle(1);
  EXPECT_NEAR(bench.until_loss(), 5, kTick);
}

// A machine that was paused, or a thread that was not run, has seen nothing that counts.
TEST(LivenessJudge, TimeThatTheJudgeDidNotSeeCountsForNothing) {
  Bench bench;
  bench.own = bench.peer(1) = bench.peer(2) = in_step(7);
  bench.pass(seconds(1));
  bench.silence(1);
  EXPECT_FALSE(bench.tick(seconds(600)));
  EXPECT_FALSE(bench.pass(seconds(1)));
}

TEST(LivenessJudge, WhoeverSaidGoodbyeMayGo) {
  Bench bench;
  bench.silence(1);
  bench.judge().forget(1);
  EXPECT_FALSE(bench.pass(seconds(1000)));
}

// The loss that a Liveness reports, for the test's own thread to wait for.
class Losses {
 public:
  Liveness::OnLost sink() {
    return [this](const Loss& loss) {
      const std::lock_guard lock(mutex_);
      loss_ = loss;
      changed_.notify_all();
    };
  }
  Loss wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, seconds(60), [&] { return loss_.has_value(); });
    return loss_.value_or(Loss{-1, "no loss"});
  }
  bool none() {
    const std::lock_guard lock(mutex_);
    return !loss_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Loss> loss_;
};

std::array<FileDescriptor, 2> connection() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::vector<Liveness::Peer> one_peer(int rank, FileDescriptor end) {
  std::vector<Liveness::Peer> peers;
  peers.push_back({rank, std::move(end)});
  return peers;
}

// Ranks 0 and 1, and what each saw. Limits: an interval of 1 ms, and hardly any patience.
struct Pair {
  Pair() {
    auto ends = connection();
    zero = std::make_unique<Liveness>(0, one_peer(1, std::move(ends[0])), progress[0],
                                      losses[0].sink(), kLimits);
    one = std::make_unique<Liveness>(1, one_peer(0, std::move(ends[1])), progress[1],
                                     losses[1].sink(), kLimits);
  }
  static constexpr LivenessLimits kLimits{.interval = milliseconds(1)};

  std::array<StepProgress, 2> progress;
  std::array<Losses, 2> losses;
  std::unique_ptr<Liveness> zero, one;
};

TEST(Liveness, APeersEndIsALoss) {
  Pair pair;
  pair.one.reset();
  EXPECT_EQ(pair.losses[0].wait().rank, 1);
  EXPECT_EQ(pair.losses[0].wait().reason, "it closed the connection");
  EXPECT_TRUE(pair.zero->peer_gone());
}

TEST(Liveness, RankZerosEndIsALoss) {
  Pair pair;
  pair.zero.reset();
  EXPECT_EQ(pair.losses[1].wait().rank, 0);
}

TEST(Liveness, NoEndAfterAGoodbyeIsALoss) {
  auto first = connection(), second = connection();
  std::array<StepProgress, 3> progress;
  Losses losses, others;
  std::vector<Liveness::Peer> peers = one_peer(1, std::move(first[0]));
  peers.push_back({2, std::move(second[0])});
  const Liveness zero(0, std::move(peers), progress[0], losses.sink(), Pair::kLimits);
  auto one = std::make_unique<Liveness>(1, one_peer(0, std::move(first[1])), progress[1],
                                        others.sink(), Pair::kLimits);
  one->goodbye();
  one.reset();
  second[1] = FileDescriptor();
  EXPECT_EQ(losses.wait().rank, 2);  // and not 1, which went before
  EXPECT_TRUE(zero.heard_goodbye());
}

TEST(Liveness, ASilentPeerIsALoss) {
  auto ends = connection();
  StepProgress progress;
  progress.ready();
  Losses losses;
  LivenessLimits limits = Pair::kLimits;
  limits.silence_starting = limits.silence_idle = milliseconds(20);
  const Liveness zero(0, one_peer(1, std::move(ends[0])), progress, losses.sink(), limits);
  EXPECT_EQ(losses.wait().rank, 1);
  EXPECT_THAT(losses.wait().reason, HasSubstr("nothing was heard from it"));
}

TEST(Liveness, AHungStepIsALossAlthoughBothBreathe) {
  auto ends = connection();
  std::array<StepProgress, 2> progress;
  for (StepProgress& p : progress) {
    p.ready();
    p.begin_step(1);  // and learns how short a step is
    p.end_step();
  }
  Losses losses, others;
  LivenessLimits limits = Pair::kLimits;
  limits.shortest_hang = milliseconds(20);
  const Liveness zero(0, one_peer(1, std::move(ends[0])), progress[0], losses.sink(), limits);
  const Liveness one(1, one_peer(0, std::move(ends[1])), progress[1], others.sink(), limits);
  progress[0].begin_step(1);
  progress[1].begin_step(1);
  EXPECT_THAT(losses.wait().reason, HasSubstr("step 2 has not advanced"));
  EXPECT_TRUE(others.none());
}

TEST(Liveness, ARankThatHasNotJoinedIsNotAskedForItsFailure) {
  auto ends = connection();
  std::array<StepProgress, 2> progress;
  std::atomic<bool> asked = false;
  Losses losses, others;
  LivenessLimits limits = Pair::kLimits;
  limits.longest_join = milliseconds(20);
  const auto failure = [&asked] {
    asked = true;
    return std::string("asked");
  };
  const Liveness zero(0, one_peer(1, std::move(ends[0])), progress[0], losses.sink(), limits,
                      failure);
  const Liveness one(1, one_peer(0, std::move(ends[1])), progress[1], others.sink(), Pair::kLimits,
                     failure);
  EXPECT_THAT(losses.wait().reason, HasSubstr("no rank has joined"));
  EXPECT_FALSE(asked);
  progress[1].joined();
  EXPECT_EQ(others.wait().reason, "asked");
}

TEST(Liveness, ABeatTellsOfCollectives) {
  auto ends = connection();
  std::array<StepProgress, 2> progress;
  for (StepProgress& p : progress) {
    p.ready();
    p.begin_step(1);
    p.end_step();
    p.begin_step(1);
  }
  Losses losses, others;
  LivenessLimits limits = Pair::kLimits;
  limits.shortest_hang = milliseconds(20);
  limits.advancing_factor = 1 << 20;
  progress[0].begin_collective();  // and rank 1 never does
  const Liveness zero(0, one_peer(1, std::move(ends[0])), progress[0], losses.sink(), limits);
  const Liveness one(1, one_peer(0, std::move(ends[1])), progress[1], others.sink(), limits);
  EXPECT_EQ(losses.wait().rank, 1);
}

TEST(Liveness, APeerThatSpeaksAnotherLanguageIsLost) {
  auto ends = connection();
  StepProgress progress;
  Losses losses;
  const Liveness zero(0, one_peer(1, std::move(ends[0])), progress, losses.sink());
  const std::array<uint8_t, 32> garbage{1, 2, 3};
  // In pieces, as they may come.
  ASSERT_EQ(send_all(ends[1].get(), std::span(garbage).first(5), {}), 0);
  ASSERT_EQ(send_all(ends[1].get(), std::span(garbage).subspan(5), {}), 0);
  EXPECT_THAT(losses.wait().reason, AllOf(HasSubstr("magic 197121"), HasSubstr("expected")));
}

}  // namespace
}  // namespace outrider
