// World, its communicator and the control channel among the ranks that mpirun started.
#include "comm/world.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "comm/control_channel.h"
#include "comm/rank_hello.h"
#include "core/error.h"
#include "tests/comm/communicator_checks.h"
#include "tests/mpi/mpi_world.h"

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

TEST(World, CommunicatorDoesWhatEveryCommunicatorMust) {
  const auto comm = mpi_world().make_communicator();
  EXPECT_EQ(comm->rank(), mpi_world().rank());
  EXPECT_EQ(comm->size(), mpi_world().size());
  testing::check_sums(*comm);
  testing::check_sum_order(*comm);
  testing::check_all_gather(*comm);
  testing::check_broadcast(*comm);
}

TEST(World, RanksMeetOnTheControlChannel) {
  World& world = mpi_world();
  const auto join = [](const std::string& address, const std::string& secret) {
    return address + ' ' + secret;
  };
  constexpr std::chrono::seconds kLong{60};
  if (world.rank() == 0) {
    const std::string secret = make_control_secret();
    ControlServer server(world.size() - 1, secret,
                         control_host(world.local_size() == world.size()));
    world.broadcast_string(join(server.address(), secret));
    server.accept_all(kLong);
    const std::vector<uint8_t> plan = {1, 2, 3};
    server.publish(plan);
    for (const auto& echo : server.gather(kLong)) EXPECT_EQ(echo, plan);
    server.goodbye();
  } else {
    const std::string both = world.broadcast_string("");
    const size_t space = both.find(' ');
    ControlClient client(both.substr(0, space), world.rank(), both.substr(space + 1));
    while (const auto plan = client.receive(std::chrono::microseconds(100))) client.send(*plan);
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
