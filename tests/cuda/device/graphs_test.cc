// What is recorded, where the device has no room for more of it.
#include <gmock/gmock.h>

#include <cstdlib>
#include <string>

#include "backend/cuda/cuda_backend.h"
#include "core/error.h"
#include "testing/gpus.h"

namespace outrider {
namespace {

// As many executable graphs as the emulator has room for, while this lives.
class RoomForGraphs {
 public:
  explicit RoomForGraphs(int graphs) {
    setenv("OUTRIDER_EMU_GRAPHS", std::to_string(graphs).c_str(), 1);
  }
  ~RoomForGraphs() { unsetenv("OUTRIDER_EMU_GRAPHS"); }
};

// Three by turns, and room for two: whichever is refused takes the place of the others, and all do
// what they are there for.
TEST(CudaGraphs, MakeRoomForOneAnother) {
  if (!emulated_gpus()) GTEST_SKIP() << "a GPU has room for all of them";
  const RoomForGraphs room(2);
  CudaBackend backend(0);
  Stream stream = backend.make_stream();
  constexpr int kKeys = 3;
  const Buffer from = backend.allocate(kKeys * sizeof(int32_t)), to = backend.allocate(4);
  const int32_t numbers[kKeys] = {10, 20, 30};
  backend.copy_from_host(from.view(DType::i32, {kKeys}), numbers, stream);
  const TensorView result = to.view(DType::i32, {1});
  int enqueued = 0;
  const auto run = [&](int key) {
    backend.replay(key, stream, [&] {
      ++enqueued;
      backend.copy(result, from.view(DType::i32, {1}, key * sizeof(int32_t)), stream);
    });
    int32_t got = 0;
    backend.copy_to_host(&got, result, stream);
    backend.synchronize(stream);
    EXPECT_EQ(got, numbers[key]);
  };
  for (const int key : {0, 0, 1, 1}) run(key);  // each as it is, and recorded
  EXPECT_EQ(enqueued, 4);
  for (const int key : {0, 1, 2}) run(key);
  EXPECT_EQ(enqueued, 5);
  run(2);  // recorded in place of both
  run(2);
  EXPECT_EQ(enqueued, 6);
  for (const int key : {0, 0, 0, 2, 2}) run(key);
  EXPECT_EQ(enqueued, 8);
}

TEST(CudaGraphs, RoomForNoneIsAnError) {
  if (!emulated_gpus()) GTEST_SKIP() << "a GPU has room for one";
  const RoomForGraphs room(0);
  CudaBackend backend(0);
  Stream stream = backend.make_stream();
  const Buffer memory = backend.allocate(8);
  const auto run = [&] {
    backend.replay(1, stream, [&] {
      backend.copy(memory.view(DType::i32, {1}), memory.view(DType::i32, {1}, 4), stream);
    });
  };
  run();
  try {
    run();
    FAIL() << "it was recorded";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("no room for one CUDA graph"));
  }
}

}  // namespace
}  // namespace outrider
