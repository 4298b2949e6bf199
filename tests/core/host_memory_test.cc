// What is left of a host's memory, by files like those of Linux.
#include "core/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>

#include "testing/temporary_directory.h"

namespace outrider {
namespace {

class HostMemory : public ::testing::Test {
 protected:
  HostMemory() { write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 5000 kB\n"); }

  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_.path() / name).parent_path());
    root_.write(name, text);
  }
  // Bytes that a group may take, and has taken, caches that can be dropped among them.
  void limit(const std::string& group, const std::string& most, int64_t taken,
             int64_t caches = 0) const {
    const std::string directory = "sys/fs/cgroup" + group;
    write(directory + "/memory.max", most + "\n");
    write(directory + "/memory.current", std::to_string(taken) + "\n");
    write(directory + "/memory.stat", "anon 1\ninactive_file " + std::to_string(caches) + "\n");
  }
  std::optional<int64_t> available() const { return available_memory(root_.path()); }

  const TemporaryDirectory root_;
};

TEST_F(HostMemory, IsWhatLinuxSays) {
  EXPECT_EQ(available(), 5000 * 1024);
  write("proc/meminfo", "MemAvailable: 5000 kB\nSwapFree: 300 kB\n");
  EXPECT_EQ(available(), 5300 * 1024);
}

TEST_F(HostMemory, IsNotKnownWhereLinuxDoesNotSay) {
  for (const char* text : {"", "MemTotal: 9000 kB\n", "MemAvailable:\n"}) {
    write("proc/meminfo", text);
    EXPECT_EQ(available(), std::nullopt) << text;
  }
  EXPECT_EQ(available_memory(root_.path() / "nowhere"), std::nullopt);
}

TEST_F(HostMemory, IsWhatEveryControlGroupAllows) {
  write("proc/self/cgroup", "9:memory:/other\n0::/jobs/mine\n");
  limit("/other", "1", 0);
  limit("/jobs", "max", 10);
  EXPECT_EQ(available(), 5000 * 1024);
  limit("/jobs/mine", "100000", 60'000, 5'000);
  EXPECT_EQ(available(), 45'000);
  limit("/jobs", "80000", 70'000);
  EXPECT_EQ(available(), 10'000);
  limit("/jobs", "80000", 90'000);
  EXPECT_EQ(available(), 0);
  limit("/jobs", "99999999999", 0);
  EXPECT_EQ(available(), 45'000);
}

TEST_F(HostMemory, OfAContainerIsWhatItsOwnGroupAllows) {
  write("proc/self/cgroup", "0::/\n");
  limit("", "100000", 60'000);
  EXPECT_EQ(available(), 40'000);
}

TEST_F(HostMemory, CountsSwapThatTheGroupMayTake) {
  write("proc/meminfo", "MemAvailable: 5000 kB\nSwapFree: 100 kB\n");
  write("proc/self/cgroup", "0::/mine\n");
  limit("/mine", "100000", 60'000);
  EXPECT_EQ(available(), 40'000 + 100 * 1024);
  write("sys/fs/cgroup/mine/memory.swap.max", "7000\n");
  write("sys/fs/cgroup/mine/memory.swap.current", "1000\n");
  EXPECT_EQ(available(), 46'000);
  write("sys/fs/cgroup/mine/memory.swap.max", "max\n");
  EXPECT_EQ(available(), 40'000 + 100 * 1024);
  write("sys/fs/cgroup/mine/memory.max", "max\n");
  write("sys/fs/cgroup/mine/memory.swap.max", "0\n");
  EXPECT_EQ(available(), 5000 * 1024);
}

}  // namespace
}  // namespace outrider
