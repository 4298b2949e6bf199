// The communicators that need no launcher: one rank, and ranks as threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "comm/ordered_sum.h"
#include "comm/self_communicator.h"
#include "comm/thread_communicator.h"
#include "tests/comm/communicator_checks.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;

void check_all(Communicator& comm) {
  testing::check_sums(comm);
  testing::check_sum_order(comm);
  testing::check_all_gather(comm);
  testing::check_broadcast(comm);
}

TEST(OrderedSum, AddsFromRankZeroUpwards) {
  // (1e8 + 1) - 1e8 = 0 in fp32; 1 + (1e8 - 1e8) = 1; the columns tell the orders apart.
  const std::vector<float> parts = {1e8f,  1.0f,  1.0f,   //
                                    1.0f,  1e8f,  -1e8f,  //
                                    -1e8f, -1e8f, 1e8f};
  std::vector<float> sum(3);
  ordered_sum(parts.data(), 3, 3, sum.data());
  EXPECT_THAT(sum, ::testing::ElementsAre(0.0f, 0.0f, 0.0f));
  const std::vector<float> other_order = {1e8f, -1e8f, 1.0f};
  ordered_sum(other_order.data(), 3, 1, sum.data());
  EXPECT_EQ(sum[0], 1.0f);
}

TEST(SelfCommunicator, DoesWhatEveryCommunicatorMust) {
  const auto comm = make_self_communicator();
  EXPECT_EQ(comm->rank(), 0);
  EXPECT_EQ(comm->size(), 1);
  check_all(*comm);
}

class ThreadRanks : public ::testing::TestWithParam<int> {};

TEST_P(ThreadRanks, DoWhatEveryCommunicatorMust) {
  run_thread_ranks(GetParam(), [](Communicator& comm) {
    EXPECT_EQ(comm.size(), GetParam());
    check_all(comm);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadRanks, ::testing::Values(1, 2, 3, 5));

TEST(ThreadRanks, OneThatThrowsEndsTheOthers) {
  const auto body = [](Communicator& comm) {
    if (comm.rank() == 1) throw Error("rank 1 has had enough");
    float x = 1.0f;
    Stream stream;
    comm.all_reduce_sum(TensorView(&x, DType::f32, {1, 1}), stream);
    ADD_FAILURE() << "a sum without rank 1";
  };
  try {
    run_thread_ranks(3, body);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 1 has had enough");
  }
}

TEST(ThreadRanks, AnAbortedGroupRefusesLaterCalls) {
  const auto group = make_thread_communicators(2);
  abort_thread_group(*group[0]);
  float x = 1.0f;
  Stream stream;
  EXPECT_THROW(group[1]->broadcast(TensorView(&x, DType::f32, {1}), 0, stream), Error);
}

}  // namespace
}  // namespace outrider
