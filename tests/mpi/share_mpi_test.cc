// Memory that ranks share instead of keeping a copy each.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "comm/mpi_communicator.h"
#include "core/buffer.h"
#include "core/error.h"
#include "tests/mpi/mpi_world.h"
#include "tests/mpi/no_room.h"

namespace outrider {
namespace {

std::span<std::byte> bytes_of(const Buffer& buffer) {
  return {static_cast<std::byte*>(buffer.data()), buffer.bytes()};
}

struct Mapping {
  std::string permissions;
  uint64_t inode = 0;  // 0: of no file
};

// That holds an address, as /proc/self/maps has it.
Mapping mapping_at(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::string offset, device;
    Mapping mapping;
    fields >> std::hex >> begin >> dash >> end >> mapping.permissions >> offset >> device;
    fields >> std::dec >> mapping.inode;
    if (begin <= wanted && wanted < end) return mapping;
  }
  return {"none"};
}

// Ranks stand on NUMA nodes as they are told to, whatever the machine has. Nodes differ in their
// bytes, so none can have another's.
void check_sharing(std::span<const int> node_of_rank) {
  World& world = testing::mpi_world();
  const int node = node_of_rank[world.rank()];
  const auto communicator = make_mpi_communicator(node);
  const Buffer buffer = allocate_host(2 * kHugePage);
  auto* words = static_cast<uint32_t*>(buffer.data());
  const size_t n = buffer.bytes() / sizeof(uint32_t);
  const auto word = [node](size_t i) { return static_cast<uint32_t>(i * 2654435761u + node); };
  for (size_t i = 0; i < n; ++i) words[i] = word(i);

  const bool shared = communicator->share(bytes_of(buffer));
  for (size_t i = 0; i < n; ++i) ASSERT_EQ(words[i], word(i));
  EXPECT_EQ(mapping_at(words).permissions, shared ? "r--s" : "rw-p");
  EXPECT_EQ(mapping_at(words + n - 1).permissions, shared ? "r--s" : "rw-p");

  const auto inodes = world.all_gather_strings(std::to_string(mapping_at(words).inode));
  bool has_company = false;
  for (int other = 0; other < world.size(); ++other) {
    if (other == world.rank()) continue;
    const bool together = node_of_rank[other] == node;
    has_company |= together;
    EXPECT_EQ(shared && inodes[other] == inodes[world.rank()], together) << "rank " << other;
  }
  EXPECT_EQ(shared, has_company);
}

TEST(Share, RanksOfOneNodeKeepOneCopyOfEqualBytesAtTheSameAddress) {
  check_sharing(std::vector<int>(testing::mpi_world().size(), 0));
}

// Whichever ranks these are: two of four beside the other two, two of three beside one alone.
TEST(Share, EachNodesRanksKeepOneCopy) {
  constexpr int kMostRanks = 4;
  ASSERT_LE(testing::mpi_world().size(), kMostRanks);
  const std::array<int, kMostRanks> layouts[] = {
      {0, 0, 1, 1}, {0, 1, 1, 0}, {1, 0, 1, 0}, {0, 1, 2, 3}};
  for (const auto& node_of_rank : layouts) check_sharing(node_of_rank);
}

TEST(Share, RefusesBytesThatDiffer) {
  const auto communicator = make_mpi_communicator(0);
  if (communicator->size() == 1) {
    GTEST_SUCCEED() << "a rank alone has nobody to differ from";
    return;
  }
  const Buffer buffer = allocate_host(kHugePage);
  if (communicator->rank() == 1) bytes_of(buffer).back() = std::byte{1};
  EXPECT_THROW(communicator->share(bytes_of(buffer)), Error);
  EXPECT_EQ(mapping_at(buffer.data()).permissions, "rw-p");
}

// Rank 0 may write no file of that size, in memory either.
TEST(Share, LeavesEachItsCopyWhereThereIsNoRoom) {
  const auto communicator = make_mpi_communicator(0);
  const Buffer buffer = allocate_host(2 * kHugePage);
  std::memset(buffer.data(), 7, buffer.bytes());
  {
    const testing::NoRoom no_room(kHugePage);
    EXPECT_FALSE(communicator->share(bytes_of(buffer)));
  }
  EXPECT_EQ(mapping_at(buffer.data()).permissions, "rw-p");
  EXPECT_EQ(bytes_of(buffer).back(), std::byte{7});
}

}  // namespace
}  // namespace outrider
