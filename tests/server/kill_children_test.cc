// What is left of a job ends, or is named: a process that cannot end holds up nobody.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <vector>

#include "launcher/mpirun.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kLong{60};       // a hang, not a slow machine
constexpr unsigned kTracerS = 60;  // of its life, whatever becomes of the test

pid_t child(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  body();
  while (true) pause();
}

void tell(int pipe, pid_t pid) {
  if (write(pipe, &pid, sizeof pid) != static_cast<ssize_t>(sizeof pid)) _exit(1);
}

// What the next to tell has told.
pid_t hear(int pipe) {
  pid_t pid = -1;
  return read(pipe, &pid, sizeof pid) == static_cast<ssize_t>(sizeof pid) ? pid : -1;
}

TEST(KillChildren, RunningAndStoppedOnesEnd) {
  child([] {});
  child([] { raise(SIGSTOP); });
  child([] { signal(SIGTERM, SIG_IGN); });
  EXPECT_TRUE(kill_children(kLong).empty());
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_TRUE(kill_children(kLong).empty());
}

TEST(KillChildren, ThoseThatWereThereBeforeStay) {
  const pid_t other = child([] {});
  const pid_t ended = child([] { _exit(0); });
  const std::vector<pid_t> others = children();
  const pid_t own = child([] {});
  EXPECT_TRUE(kill_children(kLong, others).empty());
  EXPECT_EQ(waitpid(own, nullptr, WNOHANG), -1);
  EXPECT_EQ(waitpid(other, nullptr, WNOHANG), 0);
  EXPECT_EQ(waitpid(ended, nullptr, 0), ended);
  EXPECT_TRUE(kill_children(kLong).empty());
}

// It stays, killed, until who traces it looks at it, as a process does of which a driver does not
// let go.
TEST(KillChildren, OneThatCannotEndIsNamed) {
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t held = child([&] {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    tell(told[1], getpid());
  });
  ASSERT_EQ(hear(told[0]), held);
  // Not of this process's children: its own parent ends at once.
  const pid_t parent = child([&] {
    const pid_t tracer = fork();
    if (tracer != 0) _exit(0);
    alarm(kTracerS);
    const bool allowed = ptrace(PTRACE_SEIZE, held, nullptr, nullptr) == 0;
    tell(told[1], allowed ? getpid() : 0);
    while (true) pause();
  });
  waitpid(parent, nullptr, 0);
  const pid_t tracer = hear(told[0]);
  if (tracer == 0) {
    kill_children(kLong);
    GTEST_SKIP() << "no process may trace another here";
  }
  EXPECT_EQ(kill_children(milliseconds(200)), std::vector<pid_t>{held});
  kill(tracer, SIGKILL);
  EXPECT_TRUE(kill_children(kLong).empty());
  close(told[0]);
  close(told[1]);
}

}  // namespace
}  // namespace outrider
