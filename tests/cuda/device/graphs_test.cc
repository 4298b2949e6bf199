// What is recorded, where the device has no room for more of it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "backend/cuda/cuda_backend.h"
#include "testing/gpus.h"
#include "testing/one_line_error.h"

namespace outrider {
namespace {

// As many executable graphs as the emulator has room for, while this lives. at_upload: their memory
// is not taken before they are uploaded.
class RoomForGraphs {
 public:
  RoomForGraphs(bool at_upload, int graphs)
      : variable_(at_upload ? "OUTRIDER_EMU_UPLOADED_GRAPHS" : "OUTRIDER_EMU_GRAPHS") {
    setenv(variable_, std::to_string(graphs).c_str(), 1);
  }
  ~RoomForGraphs() { unsetenv(variable_); }
  RoomForGraphs(const RoomForGraphs&) = delete;
  RoomForGraphs& operator=(const RoomForGraphs&) = delete;

 private:
  const char* variable_;
};

// Whether memory is taken at the upload.
class CudaGraphs : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!emulated_gpus()) GTEST_SKIP() << "a GPU has room for all of them";
    backend_.copy_from_host(from_.view(DType::i32, {kKeys}), kNumbers, stream_);
  }

  // Each key's pass does what it is there for, recorded or not. Returns what replay() does.
  bool run(int key, bool collective = false) {
    const TensorView result = to_.view(DType::i32, {1});
    const bool recorded = backend_.replay(key, stream_, collective, [&] {
      ++enqueued_;
      backend_.copy(result, from_.view(DType::i32, {1}, key * sizeof(int32_t)), stream_);
    });
    int32_t got = 0;
    backend_.copy_to_host(&got, result, stream_);
    backend_.synchronize(stream_);
    EXPECT_EQ(got, kNumbers[key]);
    return recorded;
  }
  static constexpr int kKeys = 3;
  static constexpr int32_t kNumbers[kKeys] = {10, 20, 30};

  CudaBackend backend_{0};
  Stream stream_ = backend_.make_stream();
  Buffer from_ = backend_.allocate(kKeys * sizeof(int32_t)), to_ = backend_.allocate(4);
  int enqueued_ = 0;
};

// Three by turns, and room for two: whichever is refused takes the place of the others, which are
// recorded again as they come.
TEST_P(CudaGraphs, MakeRoomForOneAnother) {
  const RoomForGraphs room(GetParam(), 2);
  for (const int key : {0, 0, 1, 1}) run(key);  // each as it is, and recorded
  EXPECT_EQ(enqueued_, 4);
  for (const int key : {0, 1, 2}) run(key);
  EXPECT_EQ(enqueued_, 5);
  for (const int key : {2, 2}) run(key);  // recorded in place of both
  EXPECT_EQ(enqueued_, 6);
  for (const int key : {0, 0, 2, 0}) run(key);  // beside it
  EXPECT_EQ(enqueued_, 7);
  for (const int key : {1, 2, 1, 2}) run(key);  // in place of both, and beside it
  EXPECT_EQ(enqueued_, 9);
}

// Another rank may have room for both.
TEST_P(CudaGraphs, OfACollectiveMakeNoRoom) {
  const RoomForGraphs room(GetParam(), 1);
  for (const int key : {1, 1}) run(key);
  EXPECT_EQ(enqueued_, 2);
  for (int i = 0; i < 3; ++i) run(0, true);  // recorded in place of the other
  EXPECT_EQ(enqueued_, 4);
  for (int i = 0; i < 2; ++i) run(1);  // captured, and runs as it is all the same
  EXPECT_EQ(enqueued_, 7);
  run(0, true);
  EXPECT_EQ(enqueued_, 7);
}

// Each time that a pass is: the second, and when it has made room for another. Where there is no
// room, trying takes as long.
TEST_P(CudaGraphs, TellThatAPassIsRecorded) {
  const RoomForGraphs room(GetParam(), 1);
  for (const bool recorded : {false, true, false, false}) EXPECT_EQ(run(0), recorded);
  for (const bool recorded : {false, true, false}) EXPECT_EQ(run(1), recorded);
  EXPECT_TRUE(run(0));
  const RoomForGraphs no_room(GetParam(), 0);
  for (const bool tried : {false, true, false}) EXPECT_EQ(run(2), tried);
}

TEST_P(CudaGraphs, NoRoomForACollectiveIsAnError) {
  const RoomForGraphs room(GetParam(), 0);
  run(1, true);
  expect_one_line_error({"no room for one CUDA graph"}, [&] { run(1, true); });
}

INSTANTIATE_TEST_SUITE_P(AtUpload, CudaGraphs, ::testing::Bool());

}  // namespace
}  // namespace outrider
