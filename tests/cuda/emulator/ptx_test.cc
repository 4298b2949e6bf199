// The emulated bodies of kernels/cuda/ptx.cuh.
#include <bit>
#include <cmath>
#include <functional>

#include "core/bf16.h"
#include "tests/cuda/emulator/kernel_test.h"

namespace outrider::cuda {
namespace {

using ::testing::HasSubstr;

// Fragments are read as the PTX manual lays them out, element by element.
// a: [16, 16]; b: [16, 8]; d: [16, 8]
__global__ void multiply(const bf16* a, const bf16* b, float* d) {
  const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
  const auto pair = [](bf16 low, bf16 high) { return low.bits | uint32_t{high.bits} << 16; };
  uint32_t a_words[4], b_words[2];
  for (int i = 0; i < 4; ++i) {
    const bf16* const row = a + (g + (i == 1 || i == 3 ? 8 : 0)) * 16 + (i >= 2 ? 8 : 0) + 2 * t;
    a_words[i] = pair(row[0], row[1]);
  }
  for (int i = 0; i < 2; ++i) {
    const int k = 8 * i + 2 * t;
    b_words[i] = pair(b[k * 8 + g], b[(k + 1) * 8 + g]);
  }
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = d[(g + (i >= 2 ? 8 : 0)) * 8 + 2 * t + i % 2];
  mma_m16n8k16(sums, a_words, b_words);
  for (int i = 0; i < 4; ++i) d[(g + (i >= 2 ? 8 : 0)) * 8 + 2 * t + i % 2] = sums[i];
}

// A row of small integers and halves: sums are exact in any order.
std::vector<bf16> small_numbers(size_t size, int step) {
  std::vector<bf16> values(size);
  for (size_t i = 0; i < size; ++i) {
    values[i] = to_bf16(static_cast<float>(static_cast<int>(i) * step % 17 - 8) / 2);
  }
  return values;
}

TEST(EmulatedPtx, MultipliesAsADoubleLoopDoes) {
  const auto a = small_numbers(256, 7), b = small_numbers(128, 5);
  std::vector<float> d(128), expected(128);
  for (int i = 0; i < 128; ++i) {
    d[i] = static_cast<float>(i);
    double sum = d[i];
    for (int k = 0; k < 16; ++k) {
      sum += static_cast<double>(to_float(a[i / 8 * 16 + k])) * to_float(b[k * 8 + i % 8]);
    }
    expected[i] = static_cast<float>(sum);
  }
  const OnDevice<bf16> a_device(a), b_device(b);
  const OnDevice<float> d_device(d);
  launch(multiply, 1, 32, 0, nullptr, a_device.data(), b_device.data(), d_device.data());
  EXPECT_EQ(d_device.values(), expected);
}

enum class Wait { none, before_commit, one_too_few, right };

// Two copies a thread, in a group each; the second is of zeros. y: [64 ints]
__global__ void copy(const int* x, int* y, Wait wait) {
  int* const shared = dynamic_shared<int>();
  int* const mine = shared + threadIdx.x * 8;
  cp_async_16(mine, x + threadIdx.x * 4, true);
  if (wait == Wait::before_commit) cp_async_wait<0>();
  cp_async_commit();
  cp_async_16(mine + 4, x, false);
  cp_async_commit();
  if (wait == Wait::one_too_few) cp_async_wait<1>();
  if (wait == Wait::right) cp_async_wait<0>();
  __syncthreads();
  for (int i = 0; i < 8; ++i) y[threadIdx.x * 8 + i] = shared[(threadIdx.x ^ 1) * 8 + i];
}

TEST(EmulatedPtx, CopiesArriveWhenTheyAreWaitedFor) {
  std::vector<int> x(32);
  for (int i = 0; i < 32; ++i) x[i] = i + 1;
  const OnDevice<int> from(x);
  const auto copied = [&](Wait wait) {
    const OnDevice<int> y(64);
    launch(copy, 1, 8, 64 * sizeof(int), nullptr, from.data(), y.data(), wait);
    return y.values();
  };
  // [8 threads][8]: what arrived of a thread's first copy, and of its second
  const auto expected = [&](bool first, bool second) {
    std::vector<int> y(64, -1);
    for (int i = 0; i < 64; ++i) {
      if (i % 8 < 4 && first) y[i] = x[(i / 8 ^ 1) * 4 + i % 4];
      if (i % 8 >= 4 && second) y[i] = 0;
    }
    return y;
  };
  EXPECT_EQ(copied(Wait::right), expected(true, true));
  EXPECT_EQ(copied(Wait::one_too_few), expected(true, false));
  EXPECT_EQ(copied(Wait::before_commit), expected(false, false));
  EXPECT_EQ(copied(Wait::none), expected(false, false));
}

__global__ void copy_from(const char* x, int shared_offset) {
  cp_async_16(dynamic_shared<char>() + shared_offset, x, true);
}

__global__ void load_from(const char* x) { load_streaming_16(x); }

TEST(EmulatedPtx, RefusesWrongAddresses) {
  const OnDevice<char> x(64);
  const auto failure_of = [&](const char* from, int shared_offset) {
    launch(copy_from, 1, 1, 64, nullptr, from, shared_offset);
    return failure();
  };
  EXPECT_EQ(failure_of(x.data() + 48, 16), "");
  EXPECT_THAT(failure_of(x.data() + 8, 0), HasSubstr("global memory not aligned to 16"));
  EXPECT_THAT(failure_of(x.data(), 8), HasSubstr("shared memory not aligned to 16"));
  EXPECT_THAT(failure_of(x.data() + 64, 0), HasSubstr("reads what is not global memory"));
  launch(load_from, 1, 1, 0, nullptr, x.data() + 4);
  EXPECT_THAT(failure(), HasSubstr("not aligned to 16"));
  launch(load_from, 1, 1, 0, nullptr, x.data() + 64);
  EXPECT_THAT(failure(), HasSubstr("not from global memory"));
}

}  // namespace
}  // namespace outrider::cuda
