#include "comm/shared_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "comm/thread_communicator.h"

namespace outrider {
namespace {

constexpr size_t kBytes = 10'000;

TEST(SharedFile, TwoMappingsHoldTheSameBytes) {
  FileDescriptor made = make_shared_file(kBytes);
  Buffer mine = map_shared_file(made, kBytes);
  const Buffer others = map_shared_file(open_shared_file(place_of(made)), kBytes);
  ASSERT_NE(mine.data(), nullptr);
  ASSERT_NE(others.data(), nullptr);
  EXPECT_NE(mine.data(), others.data());
  auto* bytes = static_cast<uint8_t*>(others.data());
  EXPECT_EQ(bytes[0], 0);
  EXPECT_EQ(bytes[kBytes - 1], 0);
  std::memset(mine.data(), 7, kBytes);
  EXPECT_EQ(bytes[0], 7);
  EXPECT_EQ(bytes[kBytes - 1], 7);
  // Whoever has mapped it needs its maker no longer.
  made = FileDescriptor();
  mine = Buffer();
  EXPECT_EQ(std::memcmp(bytes, bytes + 1, kBytes - 1), 0);
}

TEST(SharedFile, APlaceThatLeadsToAnotherFileIsRefused) {
  const FileDescriptor file = make_shared_file(kBytes), another = make_shared_file(kBytes);
  const FilePlace there = place_of(another);
  ASSERT_TRUE(open_shared_file(place_of(file)).valid());
  FilePlace place = place_of(file);
  std::memcpy(place.path, there.path, sizeof place.path);
  EXPECT_FALSE(open_shared_file(place).valid());
  place = place_of(file);
  place.inode = there.inode;
  EXPECT_FALSE(open_shared_file(place).valid());
  place = place_of(file);
  ++place.device;
  EXPECT_FALSE(open_shared_file(place).valid());
}

TEST(SharedFile, APlaceOfNothingIsRefused) {
  const FilePlace nothing = place_of(FileDescriptor());
  EXPECT_STREQ(nothing.path, "");
  EXPECT_FALSE(open_shared_file(nothing).valid());
  EXPECT_EQ(map_shared_file(open_shared_file(nothing), kBytes).data(), nullptr);

  const FilePlace gone = place_of(make_shared_file(kBytes));
  EXPECT_FALSE(open_shared_file(gone).valid());
}

TEST(SharedMemory, EveryRankSeesWhatTheOthersWrite) {
  run_thread_ranks(3, [](Communicator& communicator) {
    const Buffer memory = map_shared_memory(communicator, 3);
    ASSERT_NE(memory.data(), nullptr);
    auto* bytes = static_cast<uint8_t*>(memory.data());
    bytes[communicator.rank()] = static_cast<uint8_t>(1 + communicator.rank());
    Stream stream;
    float all = 0;
    communicator.all_reduce_sum(TensorView(&all, DType::f32, {1, 1}), stream);
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(bytes[rank], 1 + rank);
  });
}

// Rank 1 is told of another place than rank 0's.
class Misled final : public Communicator {
 public:
  explicit Misled(Communicator& communicator) : communicator_(communicator) {}
  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  bool is_near() const override { return communicator_.is_near(); }
  void all_reduce_sum(TensorView x, Stream& stream) override {
    communicator_.all_reduce_sum(x, stream);
  }
  void all_gather(TensorView mine, TensorView all, Stream& stream) override {
    communicator_.all_gather(mine, all, stream);
  }
  void broadcast(TensorView x, int root, Stream& stream) override {
    communicator_.broadcast(x, root, stream);
    if (rank() == 1) ++static_cast<FilePlace*>(x.raw())->inode;
  }

 private:
  Communicator& communicator_;
};

TEST(SharedMemory, IsNoRanksWhereOneDoesNotFindIt) {
  run_thread_ranks(3, [](Communicator& communicator) {
    Misled misled(communicator);
    EXPECT_EQ(map_shared_memory(misled, kBytes).data(), nullptr);
  });
}

}  // namespace
}  // namespace outrider
