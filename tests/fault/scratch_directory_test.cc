// Launchers that come and go at once on one host sweep what a dead one left, and nothing else.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "launcher/mpirun.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "OUTRIDER_TEST_SCRATCH";
constexpr int kLaunchers = 8;
constexpr int kStarts = 1000;  // of each

// A launcher's process: 0 where each of its directories stayed as long as it was held.
int come_and_go(const fs::path& parent) {
  for (int start = 0; start < kStarts; ++start) {
    unsetenv(kVariable);
    const ScratchDirectory scratch(parent, kVariable, {});
    const char* const path = std::getenv(kVariable);
    if (path == nullptr) return 1;
    std::ofstream(fs::path(path) / "segment") << "x";
    usleep(100);
    if (!fs::exists(fs::path(path) / "segment")) return 2;
  }
  return 0;
}

TEST(ScratchDirectory, IsNotSweptWhileItsLauncherLives) {
  std::string parent = fs::temp_directory_path() / "scratch_directory_test-XXXXXX";
  ASSERT_NE(mkdtemp(parent.data()), nullptr);
  std::vector<pid_t> launchers;
  for (int i = 0; i < kLaunchers; ++i) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) _exit(come_and_go(parent));
    launchers.push_back(pid);
  }
  for (const pid_t pid : launchers) {
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  EXPECT_TRUE(fs::is_empty(parent));
  fs::remove_all(parent);
}

TEST(ScratchDirectory, OfADeadLauncherIsSweptByTheNext) {
  std::string parent = fs::temp_directory_path() / "scratch_directory_test-XXXXXX";
  ASSERT_NE(mkdtemp(parent.data()), nullptr);
  const pid_t dead = fork();
  ASSERT_GE(dead, 0);
  if (dead == 0) {
    const ScratchDirectory scratch(parent, kVariable, {});
    std::ofstream(fs::path(std::getenv(kVariable)) / "segment") << "x";
    _exit(0);  // as a killed one does, it leaves everything
  }
  ASSERT_EQ(waitpid(dead, nullptr, 0), dead);
  ASSERT_FALSE(fs::is_empty(parent));
  {
    const ScratchDirectory next(parent, kVariable, {});
    const fs::directory_iterator left(parent);
    EXPECT_EQ(std::distance(begin(left), end(left)), 1);
    EXPECT_EQ(fs::directory_iterator(parent)->path(), std::getenv(kVariable));
    EXPECT_TRUE(fs::is_empty(std::getenv(kVariable)));
  }
  unsetenv(kVariable);
  EXPECT_TRUE(fs::is_empty(parent));
  fs::remove_all(parent);
}

}  // namespace
}  // namespace outrider
