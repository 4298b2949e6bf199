// World, its communicator and the control channel among the ranks that mpirun started.
#include "comm/world.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>

#include "comm/job_control.h"
#include "comm/rank_hello.h"
#include "core/error.h"
#include "tests/comm/communicator_checks.h"
#include "tests/mpi/mpi_world.h"
#include "tests/mpi/no_room.h"

namespace outrider {
namespace {

using testing::mpi_world;

TEST(World, KnowsItsPlace) {
  World& world = mpi_world();
  EXPECT_TRUE(launched_by_mpi());
  EXPECT_EQ(std::to_string(world.size()), std::getenv("OMPI_COMM_WORLD_SIZE"));
  EXPECT_EQ(std::to_string(world.rank()), std::getenv("OMPI_COMM_WORLD_RANK"));
  EXPECT_EQ(world.local_rank(), world.rank());
  EXPECT_EQ(world.local_size(), world.size());
}

TEST(World, BroadcastsRankZerosString) {
  World& world = mpi_world();
  const std::string large(100'000, 'x');
  EXPECT_EQ(world.broadcast_string(world.rank() == 0 ? "127.0.0.1:4711 secret" : "other"),
            "127.0.0.1:4711 secret");
  EXPECT_EQ(world.broadcast_string(world.rank() == 0 ? "" : "other"), "");
  EXPECT_EQ(world.broadcast_string(world.rank() == 0 ? large : ""), large);
}

TEST(World, GathersStringsOfAnyLength) {
  World& world = mpi_world();
  const auto text = [](int rank) {
    return std::string(rank * 1000, static_cast<char>('a' + rank));
  };
  const std::vector<std::string> all = world.all_gather_strings(text(world.rank()));
  ASSERT_EQ(static_cast<int>(all.size()), world.size());
  for (int rank = 0; rank < world.size(); ++rank) EXPECT_EQ(all[rank], text(rank));
}

TEST(World, TellsTheLeastOfAll) {
  World& world = mpi_world();
  constexpr int64_t kBig = int64_t{1} << 40;
  EXPECT_EQ(world.least(kBig + world.rank()), kBig);
  EXPECT_EQ(world.least(kBig - world.rank()), kBig - (world.size() - 1));
}

TEST(World, CommunicatorDoesWhatEveryCommunicatorMust) {
  const auto comm = mpi_world().make_communicator();
  EXPECT_EQ(comm->rank(), mpi_world().rank());
  EXPECT_EQ(comm->size(), mpi_world().size());
  testing::check_sums(*comm);
  testing::check_sum_order(*comm);
  testing::check_all_gather(*comm);
  testing::check_broadcast(*comm);
}

// As ranks of several hosts do it.
TEST(World, CommunicatorAddsInRankOrderWithoutSharedMemory) {
  const auto comm = [] {
    const testing::NoRoom no_room(1);
    return mpi_world().make_communicator();
  }();
  EXPECT_FALSE(comm->is_near());
  testing::check_sums(*comm);
  testing::check_sum_order(*comm);
}

TEST(World, RanksMeetOnTheControlChannel) {
  constexpr std::chrono::seconds kLong{60};
  JobControl control = open_control(mpi_world());
  const bool leads = mpi_world().rank() == 0;
  ASSERT_EQ(control.server != nullptr, leads);
  ASSERT_EQ(control.client != nullptr, !leads);
  // Bytes, not text: NCCL's id is such.
  const std::string id("\0\xff id", 5);
  EXPECT_EQ(control.broadcast(leads ? id : "other"), id);
  EXPECT_EQ(control.broadcast(leads ? "" : "other"), "");
  if (leads) {
    const std::vector<uint8_t> plan = {1, 2, 3};
    control.server->publish(plan);
    for (const auto& echo : control.server->gather(kLong)) EXPECT_EQ(echo, plan);
    control.server->goodbye();
  } else {
    while (const auto plan = control.client->receive(std::chrono::microseconds(100))) {
      control.client->send(*plan);
    }
  }
}

TEST(World, MixedJobsAreRefusedOnEveryRank) {
  World& world = mpi_world();
  RankHello mine;
  mine.checkpoint_hash = world.rank() == 0 ? "5678" : "1234";
  std::vector<RankHello> hellos;
  for (const auto& bytes : world.all_gather_strings(serialise_hello(mine))) {
    hellos.push_back(parse_hello(bytes));
  }
  if (world.size() == 1) {
    EXPECT_NO_THROW(compare_hellos(hellos));
  } else {
    EXPECT_THROW(compare_hellos(hellos), Error);
  }
}

// Fails on the rank that OUTRIDER_TEST_FAILING_RANK names, while the others wait for it: tests/mpi
// runs it so to see that any rank's failure fails the run.
TEST(World, FailsWhereAsked) {
  const char* const failing = std::getenv("OUTRIDER_TEST_FAILING_RANK");
  if (failing != nullptr && std::to_string(mpi_world().rank()) == failing) FAIL() << "as asked";
  mpi_world().all_gather_strings("still here");
}

}  // namespace
}  // namespace outrider
