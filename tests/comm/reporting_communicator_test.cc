// What a rank tells of its collectives, and that they are done as before.
#include "comm/reporting_communicator.h"

#include <gtest/gtest.h>

#include "comm/self_communicator.h"
#include "comm/thread_communicator.h"
#include "tests/comm/communicator_checks.h"

namespace outrider {
namespace {

TEST(ReportingCommunicator, DoesWhatEveryCommunicatorMustAndTellsOfIt) {
  run_thread_ranks(2, [](Communicator& inner) {
    StepProgress progress;
    ReportingCommunicator comm(inner, progress);
    uint64_t told = 0;
    const auto expect_more_told = [&] {
      EXPECT_GT(progress.report().collectives, told);
      told = progress.report().collectives;
    };
    testing::check_sums(comm);
    expect_more_told();
    testing::check_all_gather(comm);
    expect_more_told();
    testing::check_broadcast(comm);
    expect_more_told();
  });
}

TEST(ReportingCommunicator, TellsWhomItWasGivenLater) {
  const auto self = make_self_communicator();
  ReportingCommunicator comm(*self);
  float x = 1.0f;
  Stream stream;
  comm.all_reduce_sum(TensorView(&x, DType::f32, {1, 1}), stream);
  StepProgress progress;
  comm.report_to(progress);
  EXPECT_EQ(progress.report().collectives, 0u);
  comm.all_reduce_sum(TensorView(&x, DType::f32, {1, 1}), stream);
  EXPECT_EQ(progress.report().collectives, 1u);
}

TEST(ReportingCommunicator, SharesAndFailsAsTheOneInside) {
  class Failing : public Communicator {
   public:
    int rank() const override { return 0; }
    int size() const override { return 1; }
    bool is_near() const override { return true; }
    void all_reduce_sum(TensorView, Stream&) override {}
    void all_gather(TensorView, TensorView, Stream&) override {}
    void broadcast(TensorView, int, Stream&) override {}
    bool share(std::span<std::byte> memory) override { return memory.empty(); }
    std::string failure() const override { return "a link is down"; }
  };
  Failing inner;
  ReportingCommunicator comm(inner);
  EXPECT_TRUE(comm.share({}));
  EXPECT_FALSE(comm.keeps_copies());
  std::byte unshared{};
  EXPECT_FALSE(comm.share({&unshared, 1}));
  EXPECT_TRUE(comm.share({}));
  EXPECT_TRUE(comm.keeps_copies());
  EXPECT_EQ(comm.failure(), "a link is down");
}

// So that the others, who wait, can be told from the one that they wait for.
TEST(ReportingCommunicator, TellsBeforeItWaits) {
  const auto group = make_thread_communicators(2);
  StepProgress progress;
  ReportingCommunicator comm(*group[0], progress);
  abort_thread_group(*group[1]);
  float x = 1.0f;
  Stream stream;
  EXPECT_THROW(comm.all_reduce_sum(TensorView(&x, DType::f32, {1, 1}), stream), Error);
  EXPECT_EQ(progress.report().collectives, 1u);
}

}  // namespace
}  // namespace outrider
