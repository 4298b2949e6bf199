// Memory that ranks share instead of keeping a copy each.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "core/buffer.h"
#include "core/error.h"
#include "tests/mpi/mpi_world.h"
#include "tests/mpi/no_room.h"

namespace outrider {
namespace {

std::span<std::byte> bytes_of(const Buffer& buffer) {
  return {static_cast<std::byte*>(buffer.data()), buffer.bytes()};
}

// The permissions of the mapping that holds an address, as /proc/self/maps has them.
std::string permissions_at(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::string permissions;
    fields >> std::hex >> begin >> dash >> end >> permissions;
    if (begin <= wanted && wanted < end) return permissions;
  }
  return "none";
}

// Where there are several, ranks that stand on different ones keep their own copies.
int64_t num_numa_nodes() {
  const std::filesystem::path nodes = "/sys/devices/system/node";
  if (!std::filesystem::exists(nodes)) return 1;
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(nodes)) {
    count += entry.path().filename().string().starts_with("node") ? 1 : 0;
  }
  return count;
}

TEST(Share, KeepsOneCopyOfEqualBytesAtTheSameAddress) {
  const auto communicator = testing::mpi_world().make_communicator();
  const Buffer buffer = allocate_host(2 * kHugePage);
  auto* words = static_cast<uint32_t*>(buffer.data());
  const size_t n = buffer.bytes() / sizeof(uint32_t);
  for (size_t i = 0; i < n; ++i) words[i] = static_cast<uint32_t>(i * 2654435761u);

  const bool shared = communicator->share(bytes_of(buffer));
  if (communicator->size() == 1 || num_numa_nodes() == 1) {
    EXPECT_EQ(shared, communicator->size() > 1);
  }
  EXPECT_EQ(permissions_at(words), shared ? "r--s" : "rw-p");
  EXPECT_EQ(permissions_at(words + n - 1), shared ? "r--s" : "rw-p");
  for (size_t i = 0; i < n; ++i) ASSERT_EQ(words[i], static_cast<uint32_t>(i * 2654435761u));
}

TEST(Share, RefusesBytesThatDiffer) {
  const auto communicator = testing::mpi_world().make_communicator();
  if (communicator->size() == 1) {
    GTEST_SUCCEED() << "a rank alone has nobody to differ from";
    return;
  }
  const Buffer buffer = allocate_host(kHugePage);
  if (communicator->rank() == 1) bytes_of(buffer).back() = std::byte{1};
  EXPECT_THROW(communicator->share(bytes_of(buffer)), Error);
  EXPECT_EQ(permissions_at(buffer.data()), "rw-p");
}

// Rank 0 may write no file of that size, in memory either.
TEST(Share, LeavesEachItsCopyWhereThereIsNoRoom) {
  const auto communicator = testing::mpi_world().make_communicator();
  const Buffer buffer = allocate_host(2 * kHugePage);
  std::memset(buffer.data(), 7, buffer.bytes());
  {
    const testing::NoRoom no_room(kHugePage);
    EXPECT_FALSE(communicator->share(bytes_of(buffer)));
  }
  EXPECT_EQ(permissions_at(buffer.data()), "rw-p");
  EXPECT_EQ(bytes_of(buffer).back(), std::byte{7});
}

}  // namespace
}  // namespace outrider
