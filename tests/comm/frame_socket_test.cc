// Frames that lie: FrameSocket against a peer that writes whatever it likes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <thread>

#include "comm/socket.h"
#include "core/error.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<uint8_t>;

struct Wire {
  Wire() {
    std::string address;
    const FileDescriptor listener = listen_on("127.0.0.1", &address);
    writer = connect_to(address, std::chrono::steady_clock::now() + std::chrono::seconds(60));
    reader.emplace(FileDescriptor(accept(listener.get(), nullptr, nullptr)), "rank 7");
  }
  void write(std::span<const uint8_t> bytes) { ASSERT_EQ(send_all(writer.get(), bytes, {}), 0); }
  std::string error() {
    try {
      reader->receive(kNoDeadline);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  FileDescriptor writer;
  std::optional<FrameSocket> reader;
};

// magic, version, kind, number, length; 24 bytes
Bytes header(uint32_t magic, uint16_t version, uint16_t kind, uint64_t number, uint64_t length) {
  Bytes bytes(24);
  std::memcpy(&bytes[0], &magic, 4);
  std::memcpy(&bytes[4], &version, 2);
  std::memcpy(&bytes[6], &kind, 2);
  std::memcpy(&bytes[8], &number, 8);
  std::memcpy(&bytes[16], &length, 8);
  return bytes;
}

constexpr uint32_t kMagic = 0x4352544F;

Bytes abc_frame() {
  Bytes bytes = header(kMagic, 1, 1, 0, 3);
  for (const char c : {'a', 'b', 'c'}) bytes.push_back(c);
  return bytes;
}

TEST(FrameSocket, RefusesHeadersThatCannotBe) {
  const struct {
    Bytes header;
    const char* expected;
  } kCases[] = {
      {header(0, 1, 1, 0, 0), "rank 7 has magic 0"},
      {header(kMagic, 9, 1, 0, 0), "version 9; expected 1"},
      {header(kMagic, 1, 5, 0, 0), "kind 5; expected 1 or 2"},
      {header(kMagic, 1, 1, 1, 0), "number 1; expected 0"},
      {header(kMagic, 1, 1, 0, FrameSocket::kMaxFrameBytes + 1), "length 268435457; expected at"},
      {header(kMagic, 1, 1, 0, UINT64_MAX), "length 18446744073709551615"},
  };
  for (const auto& [header, expected] : kCases) {
    Wire wire;
    wire.write(header);
    EXPECT_THAT(wire.error(), HasSubstr(expected));
  }
}

TEST(FrameSocket, AMissingFrameIsAnError) {
  Wire wire;
  wire.write(header(kMagic, 1, 1, 0, 0));
  wire.write(header(kMagic, 1, 1, 2, 0));
  EXPECT_EQ(wire.error(), "");
  EXPECT_THAT(wire.error(), HasSubstr("number 2; expected 1"));
}

TEST(FrameSocket, AFrameMayComeInPieces) {
  Wire wire;
  const Bytes bytes = abc_frame();
  wire.write(std::span(bytes).first(10));
  std::jthread rest([&] {
    for (size_t i = 10; i < bytes.size(); ++i) wire.write(std::span(bytes).subspan(i, 1));
  });
  const auto frame = wire.reader->receive(kNoDeadline);
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->bytes, (Bytes{'a', 'b', 'c'}));
}

TEST(FrameSocket, AnEndInsideAFrameIsAnError) {
  for (const size_t length : {0, 10, 24, 26}) {
    Wire wire;
    const Bytes bytes = abc_frame();
    wire.write(std::span(bytes).first(length));
    wire.writer = FileDescriptor();
    EXPECT_THAT(wire.error(), HasSubstr("rank 7 is lost: it closed the connection"));
  }
}

TEST(FrameSocket, NothingByTheDeadlineIsNoFrame) {
  Wire wire;
  EXPECT_FALSE(wire.reader->try_receive().has_value());
  EXPECT_FALSE(wire.reader->receive(std::chrono::steady_clock::now()).has_value());
}

}  // namespace
}  // namespace outrider
