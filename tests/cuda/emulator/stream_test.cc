// Streams, events and graphs: nothing is done before somebody waits, and what was captured is done
// again.
#include "tests/cuda/emulator/kernel_test.h"

namespace outrider::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

__global__ void increase(int* x, int by) { x[threadIdx.x] += by; }
__global__ void scale(int* x, int by) { x[threadIdx.x] *= by; }

class EmulatedStream : public ::testing::Test {
 protected:
  EmulatedStream() {
    for (cudaStream_t* stream : {&first_, &second_}) {
      check_cuda(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreate");
    }
    check_cuda(cudaEventCreate(&event_), "cudaEventCreate");
    check_cuda(cudaMallocHost(&pinned_, 2 * sizeof(int)), "cudaMallocHost");
  }
  ~EmulatedStream() override {
    cudaStreamDestroy(first_);
    cudaStreamDestroy(second_);
    cudaEventDestroy(event_);
    cudaFreeHost(pinned_);
    cudaDeviceReset();
  }

  std::vector<int> values() {
    check_cuda(cudaStreamSynchronize(first_), "cudaStreamSynchronize");
    return x_.values();
  }

  cudaStream_t first_ = nullptr, second_ = nullptr;
  cudaEvent_t event_ = nullptr;
  int* pinned_ = nullptr;
  OnDevice<int> x_{std::vector<int>{1, 2}};
};

TEST_F(EmulatedStream, RunsWhenSomebodyWaits) {
  pinned_[0] = pinned_[1] = 5;
  launch(increase, 1, 2, 0, first_, x_.data(), 10);
  check_cuda(cudaMemcpyAsync(pinned_, x_.data(), 8, cudaMemcpyDeviceToHost, first_), "copy");
  EXPECT_EQ(pinned_[0], 5);
  check_cuda(cudaStreamSynchronize(first_), "cudaStreamSynchronize");
  EXPECT_EQ(pinned_[0], 11);
  EXPECT_EQ(pinned_[1], 12);
}

TEST_F(EmulatedStream, ReadsPinnedMemoryLateAndPageableAtOnce) {
  pinned_[0] = pinned_[1] = 7;
  check_cuda(cudaMemcpyAsync(x_.data(), pinned_, 8, cudaMemcpyHostToDevice, first_), "copy");
  pinned_[0] = 8;  // too early
  EXPECT_THAT(values(), ElementsAre(8, 7));

  int pageable[2] = {1, 2};
  check_cuda(cudaMemcpyAsync(x_.data(), pageable, 8, cudaMemcpyHostToDevice, first_), "copy");
  pageable[0] = 9;
  EXPECT_THAT(values(), ElementsAre(1, 2));

  launch(increase, 1, 2, 0, first_, x_.data(), 10);
  check_cuda(cudaMemcpyAsync(pageable, x_.data(), 8, cudaMemcpyDeviceToHost, first_), "copy");
  EXPECT_THAT(pageable, ElementsAre(11, 12));
}

TEST_F(EmulatedStream, TimesNothingByEventsThatKeepNoTime) {
  cudaEvent_t timed, untimed;
  ASSERT_EQ(cudaEventCreate(&timed), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming), cudaSuccess);
  for (const cudaEvent_t event : {timed, untimed}) {
    ASSERT_EQ(cudaEventRecord(event), cudaSuccess);
    ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  }
  float ms = -1;
  EXPECT_EQ(cudaEventElapsedTime(&ms, timed, timed), cudaSuccess);
  EXPECT_EQ(ms, 0);
  EXPECT_EQ(cudaEventElapsedTime(&ms, timed, untimed), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventElapsedTime(&ms, untimed, timed), cudaErrorInvalidResourceHandle);
  for (const cudaEvent_t event : {timed, untimed}) {
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  }
}

TEST_F(EmulatedStream, OrdersStreamsByEventsAlone) {
  launch(increase, 1, 2, 0, second_, x_.data(), 10);
  launch(scale, 1, 2, 0, first_, x_.data(), 2);
  EXPECT_THAT(values(), ElementsAre(2, 4));  // nobody has waited for the second
  check_cuda(cudaStreamSynchronize(second_), "cudaStreamSynchronize");
  EXPECT_THAT(values(), ElementsAre(12, 14));

  launch(increase, 1, 2, 0, second_, x_.data(), 10);
  check_cuda(cudaEventRecord(event_, second_), "cudaEventRecord");
  launch(scale, 1, 2, 0, second_, x_.data(), 3);  // behind the event
  check_cuda(cudaStreamWaitEvent(first_, event_), "cudaStreamWaitEvent");
  launch(scale, 1, 2, 0, first_, x_.data(), 2);
  EXPECT_THAT(values(), ElementsAre(44, 48));
}

TEST_F(EmulatedStream, OrdersBlockingStreamsWithTheDefaultOne) {
  cudaStream_t blocking = nullptr;
  check_cuda(cudaStreamCreate(&blocking), "cudaStreamCreate");
  launch(increase, 1, 2, 0, nullptr, x_.data(), 10);
  launch(scale, 1, 2, 0, blocking, x_.data(), 2);
  EXPECT_THAT(x_.values(), ElementsAre(22, 24));
  cudaStreamDestroy(blocking);
}

TEST_F(EmulatedStream, IsNotReadyAtFirst) {
  launch(increase, 1, 2, 0, first_, x_.data(), 10);
  check_cuda(cudaEventRecord(event_, first_), "cudaEventRecord");
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(first_), cudaSuccess);
}

class EmulatedGraph : public EmulatedStream {
 protected:
  // Captures body() on first_; null where that failed.
  template <class Body>
  cudaGraphExec_t capture(const Body& body) {
    check_cuda(cudaStreamBeginCapture(first_, cudaStreamCaptureModeGlobal), "begin");
    body();
    cudaGraph_t graph = nullptr;
    result_ = cudaStreamEndCapture(first_, &graph);
    if (result_ != cudaSuccess) return nullptr;
    check_cuda(cudaGraphGetNodes(graph, nullptr, &num_nodes_), "cudaGraphGetNodes");
    cudaGraphExec_t executable = nullptr;
    check_cuda(cudaGraphInstantiate(&executable, graph), "cudaGraphInstantiate");
    cudaGraphDestroy(graph);
    return executable;
  }

  cudaError_t result_ = cudaSuccess;
  size_t num_nodes_ = 0;
};

TEST_F(EmulatedGraph, ReplaysWhatWasCaptured) {
  int by = 10;
  const cudaGraphExec_t graph = capture([&] {
    launch(increase, 1, 2, 0, first_, x_.data(), by);
    by = 1000;  // arguments were copied
    check_cuda(cudaMemcpyAsync(pinned_, x_.data(), 4, cudaMemcpyDeviceToHost, first_), "copy");
    check_cuda(cudaMemsetAsync(x_.data(), 0, 4, first_), "cudaMemsetAsync");
  });
  EXPECT_EQ(num_nodes_, 3);
  EXPECT_THAT(values(), ElementsAre(1, 2));  // captured, not run
  check_cuda(cudaGraphLaunch(graph, first_), "cudaGraphLaunch");
  EXPECT_THAT(values(), ElementsAre(0, 12));
  EXPECT_EQ(pinned_[0], 11);
  for (int i = 0; i < 3; ++i) check_cuda(cudaGraphLaunch(graph, first_), "cudaGraphLaunch");
  EXPECT_THAT(values(), ElementsAre(0, 42));
  EXPECT_EQ(pinned_[0], 10);
  cudaGraphExecDestroy(graph);
}

TEST_F(EmulatedGraph, TakesInStreamsThatForkAndJoin) {
  cudaEvent_t joined = nullptr;
  check_cuda(cudaEventCreate(&joined), "cudaEventCreate");
  const auto fork = [&](bool join) {
    check_cuda(cudaEventRecord(event_, first_), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(second_, event_), "cudaStreamWaitEvent");
    launch(increase, 1, 2, 0, second_, x_.data(), 10);
    check_cuda(cudaEventRecord(joined, second_), "cudaEventRecord");
    if (join) check_cuda(cudaStreamWaitEvent(first_, joined), "cudaStreamWaitEvent");
    launch(scale, 1, 2, 0, first_, x_.data(), 2);
  };
  EXPECT_EQ(capture([&] { fork(false); }), nullptr);
  EXPECT_EQ(result_, cudaErrorStreamCaptureUnjoined);
  const cudaGraphExec_t graph = capture([&] { fork(true); });
  check_cuda(cudaGraphLaunch(graph, first_), "cudaGraphLaunch");
  EXPECT_THAT(values(), ElementsAre(22, 24));
  launch(increase, 1, 2, 0, second_, x_.data(), 1);  // captures no more
  check_cuda(cudaStreamSynchronize(second_), "cudaStreamSynchronize");
  EXPECT_THAT(values(), ElementsAre(23, 25));
  cudaGraphExecDestroy(graph);
  cudaEventDestroy(joined);
}

TEST_F(EmulatedGraph, RefusesToWaitOrAllocateInACapture) {
  int pageable = 0;
  void* data = nullptr;
  const std::function<cudaError_t()> calls[] = {
      [&] { return cudaStreamSynchronize(first_); },
      [&] { return cudaDeviceSynchronize(); },
      [&] { return cudaEventSynchronize(event_); },
      [&] { return cudaStreamQuery(first_); },
      [&] { return cudaMalloc(&data, 1); },
      [&] { return cudaMallocHost(&data, 1); },
      [&] { return cudaFree(x_.data()); },
      [&] { return cudaMemcpy(x_.data(), &pageable, 4, cudaMemcpyHostToDevice); },
      [&] { return cudaMemcpyAsync(x_.data(), &pageable, 4, cudaMemcpyHostToDevice, first_); },
  };
  for (const auto& call : calls) {
    cudaError_t result = cudaSuccess;
    EXPECT_EQ(capture([&] { result = call(); }), nullptr);
    EXPECT_NE(result, cudaSuccess);
    EXPECT_EQ(result_, cudaErrorStreamCaptureInvalidated);
  }
  EXPECT_THAT(values(), ElementsAre(1, 2));
}

__global__ void wait_for_nobody() {
  if (threadIdx.x == 0) __syncthreads();
}

TEST_F(EmulatedGraph, ReportsWhatGoesWrongInAReplay) {
  const cudaGraphExec_t graph = capture([&] { launch(wait_for_nobody, 1, 2, 0, first_); });
  check_cuda(cudaGraphLaunch(graph, first_), "cudaGraphLaunch");
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaErrorLaunchFailure);
  EXPECT_THAT(failure(), HasSubstr("1 have exited"));
  cudaGraphExecDestroy(graph);
}

}  // namespace
}  // namespace outrider::cuda
