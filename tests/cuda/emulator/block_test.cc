// Threads of a block: barriers, votes and shuffles do what CUDA says, and a kernel that lacks one
// is seen.
#include <numeric>

#include "testing/emu/stream.h"
#include "tests/cuda/emulator/kernel_test.h"

namespace outrider::cuda {
namespace {

using ::testing::AllOf;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Lt;

__global__ void write_indices(int* y) {
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  y[block * (blockDim.x * blockDim.y * blockDim.z) + thread] = block * 1000 + thread;
}

TEST(EmulatedGrid, RunsEveryThreadOfEveryBlockOnce) {
  const OnDevice<int> y(std::vector<int>(24 * 60, -1));
  launch(write_indices, dim3(2, 3, 4), dim3(5, 4, 3), 0, nullptr, y.data());
  const std::vector<int> values = y.values();
  for (int i = 0; i < 24 * 60; ++i) ASSERT_EQ(values[i], i / 60 * 1000 + i % 60);
}

TEST(EmulatedGrid, RefusesWhatADeviceWould) {
  const OnDevice<int> y(1);
  EXPECT_THROW(launch(write_indices, 0, 32, 0, nullptr, y.data()), Error);
  EXPECT_THROW(launch(write_indices, 1, 1025, 0, nullptr, y.data()), Error);
  EXPECT_THROW(launch(write_indices, dim3(1, 65536), 32, 0, nullptr, y.data()), Error);
  EXPECT_THROW(launch(write_indices, 1, 32, 100 * 1024, nullptr, y.data()), Error);
  EXPECT_EQ(failure(), "");
}

// Reverses `x` within each block.
__global__ void reverse(int* x, bool with_barrier) {
  int* const shared = dynamic_shared<int>();
  int* const mine = x + blockIdx.x * blockDim.x;
  shared[threadIdx.x] = mine[threadIdx.x];
  if (with_barrier) __syncthreads();
  mine[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

bool reverses(bool with_barrier) {
  std::vector<int> x(256), expected(256);
  std::iota(x.begin(), x.end(), 0);
  for (int i = 0; i < 256; ++i) expected[i] = i / 128 * 128 + 127 - i % 128;
  const OnDevice<int> device(x);
  launch(reverse, 2, 128, 128 * sizeof(int), nullptr, device.data(), with_barrier);
  return device.values() == expected;
}

TEST(EmulatedBarrier, HoldsAllThreads) {
  EXPECT_EQ(count_seeds(20, [] { return reverses(true); }), 20);
}

TEST(EmulatedBarrier, IsMissedWhereItLacks) {
  EXPECT_EQ(count_seeds(20, [] { return reverses(false); }), 0);
}

// Each round reads what the last wrote; the second barrier keeps a fast warp from writing the next
// round's value before a slow one has read this round's.
__global__ void pass_around(int* x, int rounds, bool both_barriers) {
  __shared__ int shared[128];
  int value = x[threadIdx.x];
  for (int round = 0; round < rounds; ++round) {
    shared[threadIdx.x] = value;
    __syncthreads();
    value = shared[(threadIdx.x + 1) % 128];
    if (both_barriers) __syncthreads();
  }
  x[threadIdx.x] = value;
}

bool passes_around(bool both_barriers) {
  std::vector<int> x(128), expected(128);
  std::iota(x.begin(), x.end(), 0);
  for (int i = 0; i < 128; ++i) expected[i] = (i + 5) % 128;
  const OnDevice<int> device(x);
  launch(pass_around, 1, 128, 0, nullptr, device.data(), 5, both_barriers);
  return device.values() == expected;
}

TEST(EmulatedBarrier, KeepsRoundsApart) {
  EXPECT_EQ(count_seeds(20, [] { return passes_around(true); }), 20);
  EXPECT_LT(count_seeds(20, [] { return passes_around(false); }), 20);
}

__global__ void count_even(int* y) {
  y[threadIdx.x] = __syncthreads_count(threadIdx.x % 2 == 0);
  y[64 + threadIdx.x] = __syncthreads_or(threadIdx.x == 3);
  y[128 + threadIdx.x] = __syncthreads_and(threadIdx.x != 3);
}

TEST(EmulatedBarrier, Votes) {
  const OnDevice<int> y(192);
  launch(count_even, 1, 64, 0, nullptr, y.data());
  std::vector<int> expected(192, 32);
  for (int i = 64; i < 192; ++i) expected[i] = i < 128 ? 1 : 0;
  EXPECT_EQ(y.values(), expected);
}

__global__ void leave_early(int threads) {
  if (static_cast<int>(threadIdx.x) < threads) return;
  __syncthreads();
}

__global__ void wait_elsewhere() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void vote_of_half() {
  if (threadIdx.x < 16) __ballot_sync(0xffffffff, 1);
}

__global__ void different_masks() { __syncwarp(threadIdx.x < 16 ? 0xffffffff : 0xffff0000); }

__global__ void too_short_a_warp() { __syncwarp(); }

__global__ void outside_its_mask() { __syncwarp(1); }

__global__ void refuse() { __trap(); }

TEST(EmulatedBarrier, ReportsThreadsThatNeverCome) {
  launch(leave_early, 1, 64, 0, nullptr, 3);
  EXPECT_THAT(failure(), AllOf(HasSubstr("block (0, 0, 0) of (1, 1, 1) x (64, 1, 1)"),
                               HasSubstr("3 have exited"), HasSubstr("61 wait for the block at "),
                               HasSubstr("block_test.cc:"), HasSubstr("leave_early")));
  launch(wait_elsewhere, 1, 64, 0, nullptr);
  EXPECT_THAT(failure(), HasSubstr("32 wait for the block at block_test.cc:"));
  launch(vote_of_half, 1, 32, 0, nullptr);
  EXPECT_THAT(failure(), AllOf(HasSubstr("16 have exited"),
                               HasSubstr("16 wait for lanes of their warp at block_test.cc:")));
  launch(different_masks, 1, 32, 0, nullptr);
  EXPECT_THAT(failure(), HasSubstr("wait for lanes of their warp"));
  launch(too_short_a_warp, 1, 8, 0, nullptr);
  EXPECT_THAT(failure(), HasSubstr("the mask names lane 8, which the block has not"));
  launch(outside_its_mask, 1, 2, 0, nullptr);
  EXPECT_THAT(failure(), HasSubstr("is not in the mask it gives"));
  launch(refuse, 1, 2, 0, nullptr);
  EXPECT_THAT(failure(), HasSubstr("__trap() in "));
  // And everything works after it.
  EXPECT_TRUE(reverses(true));
}

__global__ void wait_for_earlier(int first_that_does_not) {
  if (static_cast<int>(threadIdx.x) < first_that_does_not) wait_for_earlier_kernels();
}

TEST(EmulatedBarrier, ReportsThreadsThatDoNotWaitForEarlierKernels) {
  launch_overlapped(wait_for_earlier, 2, 64, 0, nullptr, 64);
  EXPECT_EQ(failure(), "");
  launch_overlapped(wait_for_earlier, 2, 64, 0, nullptr, 63);
  EXPECT_THAT(failure(), HasSubstr("thread (63, 0, 0): ends without having waited"));
  launch(wait_for_earlier, 2, 64, 0, nullptr, 63);
  EXPECT_EQ(failure(), "");
}

enum class Early { nothing, reads, copies, writes };

// y = x, reversed within each block, and base + 100 * block, which static shared memory holds from
// before the wait on. runs += 1. x is read, or y written, there as well where `early` says so.
__global__ void reverse_and_add_kernel(const int* x, int* y, int* runs, int base, Early early) {
  __shared__ int added;
  int* const shared = dynamic_shared<int>();  // [blockDim.x]
  const int i = threadIdx.x, first = blockIdx.x * blockDim.x, at = first + i;
  const int reversed = first + blockDim.x - 1 - i;
  if (i == 0) added = 100 * blockIdx.x + base;
  if (early == Early::reads) shared[i] = x[at];
  if (early == Early::copies && i % 4 == 0) cp_async_16(shared + i, x + at, true);
  cp_async_commit();
  if (early == Early::writes) y[at] = 0;
  __syncthreads();
  wait_for_earlier_kernels();
  cp_async_wait<0>();
  __syncthreads();
  const bool is_there = early == Early::reads || early == Early::copies;
  y[at] = added + (is_there ? shared[blockDim.x - 1 - i] : x[reversed]);
  runs[at] += 1;
}

// Whether five of them in turns from one array to the other come to what they should, all but the
// one `at` as they ought to be.
bool chain_adds_up(int at, Early early, bool in_graph) {
  constexpr int kThreads = 64, kSize = 3 * kThreads, kKernels = 5;
  std::vector<int> first(kSize), expected(kSize);
  std::iota(first.begin(), first.end(), 0);
  for (int i = 0; i < kSize; ++i) {
    const int block = i / kThreads, last = block * kThreads + kThreads - 1;
    expected[i] = last - i % kThreads + kKernels * 100 * block + kKernels * (kKernels - 1) / 2;
  }
  const OnDevice<int> x(first), y(kSize), runs(kSize);
  cudaStream_t stream;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  if (in_graph) check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin");
  for (int k = 0; k < kKernels; ++k) {
    const int* const from = k % 2 == 0 ? x.data() : y.data();
    int* const to = k % 2 == 0 ? y.data() : x.data();
    const Early of_it = k == at ? early : Early::nothing;
    if (k == 0) {
      launch(reverse_and_add_kernel, 3, kThreads, kThreads * sizeof(int), stream, from, to,
             runs.data(), k, of_it);
    } else {
      launch_overlapped(reverse_and_add_kernel, 3, kThreads, kThreads * sizeof(int), stream, from,
                        to, runs.data(), k, of_it);
    }
  }
  if (in_graph) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    check_cuda(cudaStreamEndCapture(stream, &graph), "end");
    check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    check_cuda(cudaGraphLaunch(executable, stream), "launch");
    check_cuda(cudaStreamSynchronize(stream), "synchronize");
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }
  check_cuda(cudaStreamSynchronize(stream), "synchronize");
  cudaStreamDestroy(stream);
  return y.values() == expected && runs.values() == std::vector(kSize, kKernels);
}

TEST(EmulatedBarrier, HoldsUntilEarlierKernelsHaveEnded) {
  for (const bool in_graph : {false, true}) {
    EXPECT_EQ(count_seeds(20, [&] { return chain_adds_up(-1, Early::nothing, in_graph); }), 20);
  }
}

TEST(EmulatedBarrier, SeesWhatIsDoneBeforeEarlierKernelsHaveEnded) {
  for (const Early early : {Early::reads, Early::copies, Early::writes}) {
    for (const int at : {1, 3}) {
      for (const bool in_graph : {false, true}) {
        const int unseen = count_seeds(20, [&] { return chain_adds_up(at, early, in_graph); });
        EXPECT_THAT(unseen, AllOf(Gt(0), Lt(15)))
            << static_cast<int>(early) << " of kernel " << at << (in_graph ? " of a graph" : "");
      }
    }
  }
}

__global__ void fail_elsewhere() { emu::fail_device("another thread's __trap() in a kernel"); }

// What had begun when a kernel failed, the one before it or another thread's, is forgotten, and
// others begin early as before.
TEST(EmulatedBarrier, ForgetsWhatHadBegunBehindAFailure) {
  void (*failing)() = refuse;
  const auto after_a_failure = [&](int at, Early early) {
    launch(failing, 1, 1, 0, nullptr);
    for (int k = 0; k < 4; ++k) launch_overlapped(wait_for_earlier, 2, 64, 0, nullptr, 64);
    EXPECT_THAT(failure(), HasSubstr("__trap() in "));
    return chain_adds_up(at, early, true);
  };
  for (void (*const kernel)() : {refuse, fail_elsewhere}) {
    failing = kernel;
    EXPECT_EQ(count_seeds(20, [&] { return after_a_failure(-1, Early::nothing); }), 20);
    EXPECT_LT(count_seeds(20, [&] { return after_a_failure(1, Early::reads); }), 15);
  }
}

TEST(EmulatedBarrier, AFailureStopsTheDevice) {
  const OnDevice<int> x(std::vector<int>{1});
  launch(refuse, 1, 1, 0, nullptr);
  check_cuda(cudaMemsetAsync(x.data(), 0, sizeof(int)), "cudaMemsetAsync");
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorLaunchFailure);
  EXPECT_THROW(launch(refuse, 1, 1, 0, nullptr), Error);
  failure();
  EXPECT_EQ(x.values(), std::vector<int>{1});
}

// y: [shuffles, 64]
__global__ void shuffle(int* y) {
  const int i = threadIdx.x, lane = i % 32;
  y[i] = __shfl_sync(0xffffffff, i, 5);
  y[64 + i] = __shfl_sync(0xffffffff, i, 9, 8);
  y[128 + i] = __shfl_xor_sync(0xffffffff, i, 17);
  y[192 + i] = __shfl_up_sync(0xffffffff, i, 3);
  y[256 + i] = __shfl_down_sync(0xffffffff, i, 3, 16);
  // The halves of a warp on their own, one behind the other.
  if (lane < 16) {
    y[320 + i] = __shfl_xor_sync(0x0000ffff, i, 1);
  } else {
    y[320 + i] = __shfl_sync(0xffff0000, i, 20);
  }
  y[384 + i] = static_cast<int>(__ballot_sync(0xffffffff, i % 3 == 0));
  y[448 + i] = __reduce_add_sync(0xffffffff, i) + __reduce_max_sync(0xffffffff, -i);
  y[512 + i] = static_cast<int>(__match_any_sync(0xffffffff, i % 2));
  y[576 + i] = __any_sync(0xffffffff, i == 40) * 2 + __all_sync(0xffffffff, i < 40);
}

TEST(EmulatedWarp, Shuffles) {
  const OnDevice<int> y(640);
  launch(shuffle, 1, 64, 0, nullptr, y.data());
  const std::vector<int> values = y.values();
  for (int i = 0; i < 64; ++i) {
    const int lane = i % 32, first = i - lane;
    ASSERT_EQ(values[i], first + 5);
    ASSERT_EQ(values[64 + i], i / 8 * 8 + 1);
    ASSERT_EQ(values[128 + i], first + (lane ^ 17));
    ASSERT_EQ(values[192 + i], lane < 3 ? i : i - 3);
    ASSERT_EQ(values[256 + i], lane % 16 < 13 ? i + 3 : i);
    ASSERT_EQ(values[320 + i], lane < 16 ? (i ^ 1) : first + 20);
    uint32_t thirds = 0, parity = 0;
    int sum = 0;
    for (int other = 0; other < 32; ++other) {
      thirds |= uint32_t{(first + other) % 3 == 0} << other;
      parity |= uint32_t{other % 2 == lane % 2} << other;
      sum += first + other;
    }
    ASSERT_EQ(static_cast<uint32_t>(values[384 + i]), thirds);
    ASSERT_EQ(values[448 + i], sum - first);
    ASSERT_EQ(static_cast<uint32_t>(values[512 + i]), parity);
    ASSERT_EQ(values[576 + i], first == 0 ? 1 : 2);
  }
}

__global__ void shuffle_from_outside(float* y) {
  if (threadIdx.x < 16) y[threadIdx.x] = __shfl_sync(0xffff, 1.0f, 16);
}

TEST(EmulatedWarp, ReadsPoisonFromALaneOutsideTheMask) {
  const OnDevice<float> y(16);
  launch(shuffle_from_outside, 1, 32, 0, nullptr, y.data());
  for (float value : y.values()) EXPECT_TRUE(std::isnan(value));
}

// Lanes write and read each other's element, with or without __syncwarp between.
__global__ void swap_neighbours(int* x, bool with_barrier) {
  __shared__ int shared[32];
  shared[threadIdx.x] = x[threadIdx.x];
  if (with_barrier) __syncwarp();
  x[threadIdx.x] = shared[threadIdx.x ^ 1];
}

TEST(EmulatedWarp, IsNoLockstep) {
  const auto swaps = [](bool with_barrier) {
    std::vector<int> x(32), expected(32);
    std::iota(x.begin(), x.end(), 0);
    for (int i = 0; i < 32; ++i) expected[i] = i ^ 1;
    const OnDevice<int> device(x);
    launch(swap_neighbours, 1, 32, 0, nullptr, device.data(), with_barrier);
    return device.values() == expected;
  };
  EXPECT_EQ(count_seeds(20, [&] { return swaps(true); }), 20);
  EXPECT_LT(count_seeds(20, [&] { return swaps(false); }), 20);
}

__global__ void read_uninitialised(int* y) {
  __shared__ int fixed[32];
  y[blockIdx.x * 64 + threadIdx.x] = fixed[threadIdx.x];
  y[blockIdx.x * 64 + 32 + threadIdx.x] = dynamic_shared<int>()[threadIdx.x];
  fixed[threadIdx.x] = dynamic_shared<int>()[threadIdx.x] = 7;
}

TEST(EmulatedGrid, PoisonsSharedMemoryBeforeEachBlock) {
  const OnDevice<int> y(128);
  launch(read_uninitialised, 2, 32, 32 * sizeof(int), nullptr, y.data());
  EXPECT_EQ(y.values(), std::vector<int>(128, -1));
}

__global__ void write_behind_shared() { dynamic_shared<char>()[64] = 1; }

TEST(EmulatedGrid, ReportsWritesBehindSharedMemory) {
  const auto run = [] {
    launch(write_behind_shared, 1, 1, 64, nullptr);
    failure();
  };
  EXPECT_DEATH(run(), "heap-buffer-overflow");
}

// The last block to come adds what all have left.
__global__ void sum_blocks(const int* x, int* parts, unsigned* arrived, int* sum) {
  parts[blockIdx.x] = x[blockIdx.x];
  __threadfence();
  if (atomicAdd(arrived, 1) != gridDim.x - 1) return;
  int total = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) total += parts[i];
  *sum = total;
}

TEST(EmulatedGrid, CountsWithAtomics) {
  std::vector<int> x(100);
  std::iota(x.begin(), x.end(), 0);
  const OnDevice<int> device(x), parts(100), sum(1);
  const OnDevice<unsigned> arrived(1);
  launch(sum_blocks, 100, 1, 0, nullptr, device.data(), parts.data(), arrived.data(), sum.data());
  EXPECT_EQ(sum.values(), std::vector<int>{4950});
}

}  // namespace
}  // namespace outrider::cuda
