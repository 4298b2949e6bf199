// The small types that everything stands on.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "core/bf16.h"
#include "core/buffer.h"
#include "core/bytes.h"
#include "core/digest.h"
#include "core/mapped_file.h"
#include "core/philox.h"
#include "core/tensor.h"

namespace outrider {
namespace {

// Against the definition: the nearest of the two bf16 around x, the even one in a tie.
TEST(Bf16, RoundsToNearestEven) {
  for (uint32_t high = 0; high < 0x7f80u; ++high) {
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      for (const uint32_t sign : {0u, 0x8000u}) {
        const float x = std::bit_cast<float>((sign | high) << 16 | low);
        const bool up = low > 0x8000u || (low == 0x8000u && (high & 1u) != 0);
        ASSERT_EQ(to_bf16(x).bits, (sign | high) + (up ? 1u : 0u)) << x;
      }
    }
  }
}

TEST(Bf16, KeepsInfinityAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_float(to_bf16(-infinity)), -infinity);
  EXPECT_EQ(to_float(to_bf16(std::numeric_limits<float>::max())), infinity);
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xff800001u, 0x7fffffffu}) {
    EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(bits)))));
  }
}

// Known answers of Random123's kat_vectors for philox4x32-10.
TEST(Philox, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(TensorView, SlicesKeepStrides) {
  float values[12];
  for (int i = 0; i < 12; ++i) values[i] = static_cast<float>(i);
  const TensorView x(values, DType::f32, {3, 4});
  EXPECT_TRUE(x.contiguous());
  const TensorView block = x.slice(1, 1, 3).rows(1, 3);
  EXPECT_FALSE(block.contiguous());
  EXPECT_EQ(block.extent(0), 2);
  EXPECT_EQ(block.extent(1), 2);
  EXPECT_EQ(*block.data<float>(), 5.0f);
  EXPECT_EQ(block.data<float>()[block.stride(0) + block.stride(1)], 10.0f);
  EXPECT_DEATH(x.slice(0, 1, 4), "CHECK failed");
  EXPECT_DEATH(x.data<int32_t>(), "CHECK failed");
}

TEST(Buffer, IsZeroedAlignedAndMovable) {
  for (const size_t bytes : {size_t{1}, size_t{5000}, size_t{5} << 20}) {
    Buffer buffer = allocate_host(bytes);
    ASSERT_GE(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    auto* data = static_cast<uint8_t*>(buffer.data());
    EXPECT_TRUE(std::all_of(data, data + bytes, [](uint8_t b) { return b == 0; }));
    data[bytes - 1] = 7;
    const Buffer moved = std::move(buffer);
    EXPECT_EQ(static_cast<uint8_t*>(moved.data())[bytes - 1], 7);
    EXPECT_EQ(buffer.data(), nullptr);
  }
  EXPECT_DEATH(allocate_host(8).view(DType::f32, {5000}), "CHECK failed");
  EXPECT_THROW(allocate_host(size_t{1} << 60), Error);
}

TEST(Bytes, ComeBackAndNeverReadPastTheEnd) {
  ByteWriter out;
  out.put(3.5);
  out.put(std::vector<int32_t>{1, -2});
  out.put(std::string("text"));
  const auto& bytes = out.bytes();
  ByteReader in(bytes.data(), bytes.size());
  EXPECT_EQ(in.get<double>(), 3.5);
  EXPECT_EQ(in.get_vector<int32_t>(), (std::vector<int32_t>{1, -2}));
  EXPECT_EQ(in.get_string(), "text");
  EXPECT_TRUE(in.done());
  EXPECT_THROW(in.get<uint8_t>(), Error);

  ByteWriter hostile;
  hostile.put(uint64_t{1} << 61);  // a length that would overflow in bytes
  ByteReader reader(hostile.bytes().data(), hostile.bytes().size());
  EXPECT_THROW(reader.get_vector<int64_t>(), Error);
}

TEST(Digest, ChainsAndDiffers) {
  const char a[] = "one", b[] = "two";
  EXPECT_EQ(digest(a, 3), digest("one", 3));
  EXPECT_NE(digest(a, 3), digest(b, 3));
  EXPECT_NE(digest(b, 3, digest(a, 3)), digest(a, 3, digest(b, 3)));
}

TEST(Digest, Of128BitsChainsThroughAllOfThem) {
  const char a[] = "one", b[] = "two";
  const Digest128 first = digest128(a, 3);
  EXPECT_EQ(first, digest128("one", 3));
  EXPECT_NE(first, digest128(b, 3));
  EXPECT_NE(first.low, first.high);
  EXPECT_NE(digest128(b, 3, first), digest128(a, 3, digest128(b, 3)));
  EXPECT_NE(digest128(b, 3, first), digest128(b, 3, {first.low ^ 1, first.high}));
  EXPECT_NE(digest128(b, 3, first), digest128(b, 3, {first.low, first.high ^ 1}));
}

TEST(MappedFile, NamesTheFileThatIsMissing) {
  const std::filesystem::path path = testing::TempDir() + "/outrider_mapped_file";
  std::ofstream(path) << "hello";
  const MappedFile file(path);
  EXPECT_EQ(std::string(file.bytes().begin(), file.bytes().end()), "hello");
  std::filesystem::remove(path);
  const std::filesystem::path fifo = testing::TempDir() + "/outrider_mapped_fifo";
  std::filesystem::remove(fifo);
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);  // nobody writes to it
  for (const std::filesystem::path& bad : {path, std::filesystem::path("/"), fifo}) {
    try {
      MappedFile missing(bad);
      FAIL() << "opened " << bad;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).rfind(bad.string(), 0), 0u) << error.what();
    }
  }
  std::filesystem::remove(fifo);
}

}  // namespace
}  // namespace outrider
