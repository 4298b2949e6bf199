// Device memory: bounds, poison, and who may touch it.
#include <cstring>

#include "tests/cuda/emulator/kernel_test.h"

namespace outrider::cuda {
namespace {

using ::testing::Each;

constexpr char kOutOfBounds[] = "use-after-poison|SEGV|stack-overflow";
constexpr char kHostTouches[] = "SEGV";
constexpr char kFreed[] = "SEGV|stack-overflow";

template <class T>
T* allocate(size_t size) {
  T* data = nullptr;
  check_cuda(cudaMalloc(&data, size * sizeof(T)), "cudaMalloc");
  return data;
}

__global__ void write_at(char* x, int i) { x[i] = 1; }

void write_and_wait(char* x, int i) {
  launch(write_at, 1, 1, 0, nullptr, x, i);
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

TEST(EmulatedMemoryDeathTest, EndsAtItsEnd) {
  char* const x = allocate<char>(1024);
  EXPECT_DEATH(write_and_wait(x, 1024), kOutOfBounds);
  EXPECT_DEATH(write_and_wait(x, -5000), kOutOfBounds);
  write_and_wait(x, 1023);
  cudaFree(x);
}

TEST(EmulatedMemoryDeathTest, EndsAtItsLastByte) {
  char* const x = allocate<char>(1000);
  EXPECT_DEATH(write_and_wait(x, 1000), kOutOfBounds);
  cudaFree(x);
}

TEST(EmulatedMemoryDeathTest, IsNotTheHosts) {
  char* const x = allocate<char>(64);
  EXPECT_DEATH(x[0] = 1, kHostTouches);
  cudaFree(x);
}

TEST(EmulatedMemoryDeathTest, IsGoneWhenFreed) {
  char* const x = allocate<char>(64);
  cudaFree(x);
  EXPECT_DEATH(write_and_wait(x, 0), kFreed);
  EXPECT_EQ(cudaFree(x), cudaErrorInvalidValue);
}

TEST(EmulatedMemory, BeginsAsPoison) {
  auto* const x = allocate<float>(100);
  std::vector<float> values(100);
  check_cuda(cudaMemcpy(values.data(), x, 400, cudaMemcpyDeviceToHost), "cudaMemcpy");
  EXPECT_THAT(values, Each(::testing::IsNan()));
  cudaFree(x);
}

TEST(EmulatedMemory, IsLimited) {
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  void* x = nullptr;
  EXPECT_EQ(cudaMalloc(&x, free + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(x, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  auto* const taken = allocate<char>(1000);
  size_t left = 0;
  check_cuda(cudaMemGetInfo(&left, &total), "cudaMemGetInfo");
  EXPECT_EQ(left, free - 1000);
  cudaFree(taken);
}

TEST(EmulatedMemory, CopiesWhatTheKindSays) {
  char host[64] = {};
  char* const x = allocate<char>(64);
  EXPECT_EQ(cudaMemcpy(host, x, 64, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(x, host, 64, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(x, host, 65, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(host, 0, 64), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(x, 0, 65), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(x, host, 64, cudaMemcpyDefault), cudaSuccess);
  cudaFree(x);
}

TEST(EmulatedMemory, CopiesRows) {
  const OnDevice<char> x(std::vector<char>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  char host[6];
  check_cuda(cudaMemcpy2DAsync(host, 2, x.data() + 1, 4, 2, 3, cudaMemcpyDeviceToHost),
             "cudaMemcpy2DAsync");
  EXPECT_THAT(host, ::testing::ElementsAre(2, 3, 6, 7, 10, 11));
}

}  // namespace
}  // namespace outrider::cuda
