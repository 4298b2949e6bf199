// Which signals end a server.
#include "launcher/stop_signals.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <utility>

namespace outrider {
namespace {

// That one of them ends a server, where it was ignored when this process was started, and where
// not.
std::pair<bool, bool> ends(int number) {
  const auto before = signal(number, SIG_IGN);
  const sigset_t ignored = ending_signals();
  signal(number, SIG_DFL);
  const sigset_t obeyed = ending_signals();
  signal(number, before);
  return {sigismember(&ignored, number) == 1, sigismember(&obeyed, number) == 1};
}

TEST(EndingSignals, WhatIsIgnoredStaysIgnored) {
  EXPECT_EQ(ends(SIGINT), std::pair(false, true));  // a script's &
  EXPECT_EQ(ends(SIGHUP), std::pair(false, true));  // nohup
}

TEST(EndingSignals, SigtermIsAlwaysObeyed) { EXPECT_EQ(ends(SIGTERM), std::pair(true, true)); }

}  // namespace
}  // namespace outrider
