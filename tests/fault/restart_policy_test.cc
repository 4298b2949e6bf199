// When `outrider launch` starts its job again.
#include "launcher/restart_policy.h"

#include <gtest/gtest.h>

#include <vector>

namespace outrider {
namespace {

using std::chrono::seconds;

// A job's life, in seconds from its start; unset: it never served.
class Life {
 public:
  std::optional<seconds> served(int for_s) {
    const auto since = now_;
    now_ += seconds(for_s);
    return next({.at = now_, .served_since = since});
  }
  std::optional<seconds> failed_start(int after_s, bool explained = true) {
    now_ += seconds(after_s);
    return next({.at = now_, .served_since = std::nullopt, .explained = explained});
  }

 private:
  std::optional<seconds> next(const RestartPolicy::End& end) {
    const auto delay = policy_.after(end);
    now_ += delay.value_or(seconds(0));
    return delay;
  }
  RestartPolicy policy_;
  RestartPolicy::Clock::time_point now_;
};

TEST(RestartPolicy, AtOnceAfterServing) { EXPECT_EQ(Life().served(1), seconds(0)); }

TEST(RestartPolicy, BacksOffFromAJobThatKeepsDying) {
  Life life;
  std::vector<int64_t> delays;
  for (int i = 0; i < 8; ++i) delays.push_back(life.served(5)->count());
  EXPECT_EQ(delays, (std::vector<int64_t>{0, 1, 2, 4, 8, 16, 30, 30}));
}

TEST(RestartPolicy, AJobThatHasProvedItselfStartsAtOnce) {
  Life life;
  for (int i = 0; i < 5; ++i) life.served(5);
  EXPECT_EQ(life.served(60), seconds(0));
  EXPECT_EQ(life.served(5), seconds(1));
}

TEST(RestartPolicy, AFirstStartThatSaysWhyItFailedIsTheLast) {
  EXPECT_EQ(Life().failed_start(1), std::nullopt);
}

TEST(RestartPolicy, ThreeFailedStartsInAMinuteAreTheLast) {
  Life crashing;
  EXPECT_EQ(crashing.failed_start(15, false), seconds(0));
  EXPECT_EQ(crashing.failed_start(15, false), seconds(1));
  EXPECT_EQ(crashing.failed_start(15, false), std::nullopt);

  // However long each takes, where nothing shows that it can be done at all.
  Life slow;
  EXPECT_EQ(slow.failed_start(100, false), seconds(0));
  EXPECT_EQ(slow.failed_start(100, false), seconds(1));
  EXPECT_EQ(slow.failed_start(100, false), std::nullopt);

  Life after_serving;
  after_serving.served(100);
  EXPECT_EQ(after_serving.failed_start(1), seconds(1));
  EXPECT_EQ(after_serving.failed_start(1), seconds(2));
  EXPECT_EQ(after_serving.failed_start(1), std::nullopt);
}

TEST(RestartPolicy, ServingClearsTheCount) {
  Life life;
  life.served(100);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(life.failed_start(1));
    EXPECT_TRUE(life.failed_start(1));
    EXPECT_TRUE(life.served(1));
  }
}

TEST(RestartPolicy, SlowFailuresOfAJobThatHasServedAreTriedAgain) {
  Life life;
  life.served(100);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(life.failed_start(40, false)) << i;
}

}  // namespace
}  // namespace outrider
