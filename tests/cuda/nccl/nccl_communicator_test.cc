// The communicator over NCCL, with ranks as threads: on a GPU each, or on the emulator's.
#include "comm/nccl/nccl_communicator.h"

#include <cuda_runtime.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <thread>

#include "comm/exchange_cost.h"
#include "core/host_name.h"
#include "kernels/cuda/launch.h"
#include "testing/gpus.h"
#include "testing/one_line_error.h"
#include "tests/comm/communicator_checks.h"
#include "tests/cuda/parity/device_array.h"

namespace outrider {
namespace {

using cuda::check_cuda;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// body(communicator) on as many threads as there are ranks; one that throws leaves.
template <class Body>
void run_ranks(int size, const Body& body, Numerics numerics = Numerics::exact) {
  const std::string id = make_nccl_id();
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        check_cuda(cudaSetDevice(gpu_of_thread(rank)), "cudaSetDevice");
        const auto communicator = make_nccl_communicator(rank, size, id, numerics);
        body(*communicator);
      } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "rank 1 has had enough");
      }
    });
  }
}

// What `enqueue` enqueues on the stream, to be launched.
template <class Enqueue>
cudaGraphExec_t capture(cudaStream_t stream, const Enqueue& enqueue) {
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin");
  enqueue();
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  cudaGraphDestroy(graph);
  return executable;
}

class NcclRanks : public ::testing::TestWithParam<int> {};

TEST_P(NcclRanks, DoWhatEveryCommunicatorMust) {
  NEED_GPUS(GetParam());
  run_ranks(GetParam(), [](Communicator& comm) {
    EXPECT_EQ(comm.size(), GetParam());
    testing::check_sums<cuda::DeviceArray>(comm);
    testing::check_sum_order<cuda::DeviceArray>(comm);
    testing::check_all_gather<cuda::DeviceArray>(comm);
    testing::check_broadcast<cuda::DeviceArray>(comm);
    EXPECT_EQ(comm.failure(), "");
  });
}

// A graph of two sums (one that gathers, one in blocks) and a gather does what the same calls did
// before it was captured, each time anew.
TEST_P(NcclRanks, AreReplayedInGraphs) {
  NEED_GPUS(GetParam());
  run_ranks(GetParam(), [](Communicator& comm) {
    constexpr int64_t kSmall = 1000, kLarge = 200'000;
    comm.reserve_sum(kLarge);
    std::vector<float> small(kSmall), large(kLarge);
    for (int64_t i = 0; i < kSmall; ++i) small[i] = testing::addend(comm.rank(), 0, i);
    for (int64_t i = 0; i < kLarge; ++i) large[i] = testing::addend(comm.rank(), 1, i);
    cuda::DeviceArray<float> x(small), y(large);
    cuda::DeviceArray<float> all(std::vector<float>(kSmall * comm.size()));
    Stream stream;
    cudaStream_t handle = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreate");
    stream.handle = handle;
    const auto enqueue = [&] {
      comm.all_reduce_sum(TensorView(x.data(), DType::f32, {kSmall}), stream);
      comm.all_reduce_sum(TensorView(y.data(), DType::f32, {kLarge}), stream);
      comm.all_gather(TensorView(x.data(), DType::f32, {kSmall}),
                      TensorView(all.data(), DType::f32, {comm.size(), kSmall}), stream);
    };
    const auto expect_sums_of = [&](int summed) {
      check_cuda(cudaStreamSynchronize(handle), "cudaStreamSynchronize");
      // Ranks hold equal values after the first sum: each one after it multiplies by their number.
      const std::vector<float> sums = x.values(), gathered = all.values(), large_sums = y.values();
      for (int64_t i = 0; i < kSmall * comm.size(); ++i) {
        float expected = testing::sum_in_rank_order(comm.size(), 0, i % kSmall);
        for (int k = 1; k < summed; ++k) {
          float sum = expected;
          for (int rank = 1; rank < comm.size(); ++rank) sum += expected;
          expected = sum;
        }
        ASSERT_EQ(gathered[i], expected);
        ASSERT_EQ(sums[i % kSmall], expected);
      }
      if (summed > 1) return;
      for (int64_t i = 0; i < kLarge; ++i) {
        ASSERT_EQ(large_sums[i], testing::sum_in_rank_order(comm.size(), 1, i));
      }
    };
    enqueue();
    expect_sums_of(1);
    const cudaGraphExec_t executable = capture(handle, enqueue);
    for (int replay = 2; replay <= 4; ++replay) {
      check_cuda(cudaGraphLaunch(executable, handle), "cudaGraphLaunch");
      expect_sums_of(replay);
    }
    cudaGraphExecDestroy(executable);
    cudaStreamDestroy(handle);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, NcclRanks, ::testing::Values(1, 2, 3));

// Sums on both sides of where blocks begin.
TEST(NcclRanks, TakeMemoryForSumsBeforehand) {
  if (!emulated_gpus()) GTEST_SKIP() << "NCCL takes memory of a GPU when it likes";
  static constexpr int kRanks = 3;
  NEED_GPUS(kRanks);
  static constexpr int64_t kMost = kGatherMaxFloats + 4096;
  run_ranks(kRanks, [](Communicator& comm) {
    cuda::DeviceArray<float> x{std::vector<float>(kMost)};
    Stream stream;
    const auto sum = [&](int64_t n) {
      comm.all_reduce_sum(TensorView(x.data(), DType::f32, {n}), stream);
      check_cuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
    };
    const auto used = [&] {  // by all ranks, which meet before it and behind it
      sum(1);
      size_t free = 0, total = 0;
      check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
      sum(1);
      return static_cast<int64_t>(total - free);
    };
    comm.reserve_sum(1);
    const int64_t before = used();
    comm.reserve_sum(kMost);
    comm.reserve_sum(7);
    const int64_t reserved = used();
    const int64_t more = sum_scratch_bytes(kRanks, kMost, Numerics::exact) -
                         sum_scratch_bytes(kRanks, 1, Numerics::exact);
    EXPECT_EQ(reserved - before, kRanks * more);
    for (const int64_t n : {int64_t{1}, kGatherMaxFloats, kGatherMaxFloats + 1, kMost}) sum(n);
    EXPECT_EQ(used(), reserved);
  });
}

TEST(NcclRanksDeathTest, ASumThatNoneWasReservedForIsABug) {
  if (!emulated_gpus()) GTEST_SKIP() << "the others would wait in a kernel of NCCL";
  NEED_GPUS(3);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [](Communicator& comm) {
    cuda::DeviceArray<float> x(std::vector<float>(2));
    Stream stream;
    comm.reserve_sum(1);
    comm.all_reduce_sum(TensorView(x.data(), DType::f32, {2}), stream);
  };
  EXPECT_DEATH(run_ranks(3, run), "CHECK failed");
}

// Captured on all ranks or on none: NCCL's would wait for each other for ever.
TEST(NcclRanksDeathTest, ACollectiveInAGraphOfOneRankAloneIsABug) {
  if (!emulated_gpus()) GTEST_SKIP() << "what NCCL does is its own affair";
  NEED_GPUS(2);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [](Communicator& comm) {
    cuda::DeviceArray<float> x(std::vector<float>(2));
    Stream stream;
    cudaStream_t handle = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreate");
    stream.handle = handle;
    const auto sum = [&] { comm.all_reduce_sum(TensorView(x.data(), DType::f32, {2}), stream); };
    if (comm.rank() == 0) {
      check_cuda(cudaGraphLaunch(capture(handle, sum), handle), "cudaGraphLaunch");
    } else {
      sum();
    }
    cudaStreamSynchronize(handle);
  };
  EXPECT_DEATH(run_ranks(2, run), "part of a graph on rank 0 and not on rank 1");
}

// Fast: right but for rounding, equal on all ranks, and (on the emulator, of three) not in the
// order of ranks.
TEST(NcclRanks, FastSumsAreInAnOrderOfNccls) {
  static constexpr int kRanks = 3;
  NEED_GPUS(kRanks);
  static constexpr int64_t kSize = 1000;
  const auto run = [](Communicator& comm) {
    std::vector<float> mine(kSize);
    for (int64_t i = 0; i < kSize; ++i) mine[i] = testing::addend(comm.rank(), 0, i);
    cuda::DeviceArray<float> x(mine), all(std::vector<float>(kRanks * kSize));
    Stream stream;
    comm.all_reduce_sum(TensorView(x.data(), DType::f32, {kSize}), stream);
    comm.all_gather(TensorView(x.data(), DType::f32, {kSize}),
                    TensorView(all.data(), DType::f32, {kRanks, kSize}), stream);
    const std::vector<float> sums = all.values();
    int64_t in_rank_order = 0;
    for (int64_t i = 0; i < kSize; ++i) {
      double sum = 0, magnitude = 0;
      for (int rank = 0; rank < kRanks; ++rank) {
        sum += testing::addend(rank, 0, i);
        magnitude += std::abs(testing::addend(rank, 0, i));
        EXPECT_EQ(sums[rank * kSize + i], sums[i]);
      }
      EXPECT_NEAR(sums[i], sum, kRanks * 0x1p-24 * magnitude);
      in_rank_order += sums[i] == testing::sum_in_rank_order(kRanks, 0, i) ? 1 : 0;
    }
    if (emulated_gpus()) {
      EXPECT_LT(in_rank_order, kSize);
    }
  };
  run_ranks(kRanks, run, Numerics::fast);
}

// A rank that unwinds leaves; the others find out where they wait, and by asking.
TEST(NcclRanks, ALostRankIsAFailure) {
  if (!emulated_gpus()) GTEST_SKIP() << "a kernel of NCCL waits for a lost rank for ever";
  NEED_GPUS(2);
  run_ranks(2, [&](Communicator& comm) {
    if (comm.rank() == 1) throw Error("rank 1 has had enough");
    cuda::DeviceArray<float> x(std::vector<float>(8));
    Stream stream;
    EXPECT_EQ(comm.failure(), "");
    comm.all_reduce_sum(TensorView(x.data(), DType::f32, {8}), stream);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorLaunchFailure);
    EXPECT_THAT(cudaGetErrorString(cudaErrorLaunchFailure), HasSubstr("NCCL: another rank"));
    EXPECT_THAT(comm.failure(), HasSubstr("NCCL: remote process exited"));
    cudaDeviceReset();
  });
}

// But ranks that call themselves hosts of their own, as let_nccl_share_devices() has it.
TEST(NcclRanks, OfOneGpuAreRefused) {
  if (!emulated_gpus()) GTEST_SKIP() << "what NCCL does is its own affair";
  const std::string id = make_nccl_id();
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      check_cuda(cudaSetDevice(0), "cudaSetDevice");
      expect_one_line_error({"ncclCommInitRank failed", "expected 2 ranks on a GPU each"},
                            [&] { make_nccl_communicator(rank, 2, id); });
    });
  }
}

// Whatever the environment says.
TEST(Nccl, SharingMakesEachRankAHost) {
  if (!emulated_gpus()) GTEST_SKIP() << "what it sets would hold for later tests";
  setenv("NCCL_HOSTID", "all-ranks", 1);
  let_nccl_share_devices(3);
  EXPECT_EQ(std::getenv("NCCL_HOSTID"), "outrider-" + host_name() + "-3");
  unsetenv("NCCL_HOSTID");
}

TEST(Nccl, NamesItsVersion) {
  EXPECT_THAT(nccl_version(), MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  if (emulated_gpus()) {
    EXPECT_EQ(nccl_version(), "2.28.9");
  }
}

TEST(Nccl, UsesALibraryThatIsNoOlder) {
  EXPECT_TRUE(nccl_fits(22809, 22809));
  EXPECT_TRUE(nccl_fits(22809, 22800));  // headers differ between minor versions alone
  EXPECT_TRUE(nccl_fits(22809, 22903));
  EXPECT_FALSE(nccl_fits(22809, 22707));
  EXPECT_FALSE(nccl_fits(22809, 30001));
  EXPECT_FALSE(nccl_fits(22809, 2804));  // 2.8.4, as it was counted then
  EXPECT_NO_THROW(check_nccl_library());
}

TEST(Nccl, RefusesMemoryOfTheHost) {
  if (!emulated_gpus()) GTEST_SKIP() << "a GPU that finds such an address is of no use afterwards";
  NEED_GPUS(2);
  run_ranks(2, [](Communicator& comm) {
    std::vector<float> x(8);
    Stream stream;
    EXPECT_THROW(comm.all_reduce_sum(TensorView(x.data(), DType::f32, {8}), stream), Error);
  });
}

}  // namespace
}  // namespace outrider
