#include "comm/rank_hello.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace outrider {
namespace {

RankHello hello(const std::string& host) {
  return {.host = host,
          .version = "0.1.0",
          .instruction_set = "avx512_bf16",
          .device = "cpu",
          .nccl_version = "2.28.3",
          .checkpoint_hash = "5678abcd",
          .tokens_hash = "12 none",
          .draft_hash = "",
          .settings_hash = "42"};
}

std::string comparison_error(const std::vector<RankHello>& hellos) {
  try {
    compare_hellos(hellos);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(RankHello, EqualRanksMayServeTogetherFromDifferentHosts) {
  EXPECT_EQ(comparison_error({hello("a")}), "");
  EXPECT_EQ(comparison_error({hello("a"), hello("b"), hello("a")}), "");
}

TEST(RankHello, NamesRankFieldAndBothValues) {
  std::vector<RankHello> hellos = {hello("a"), hello("a"), hello("b")};
  hellos[2].checkpoint_hash = "1234";
  EXPECT_EQ(comparison_error(hellos),
            "rank 2 (b) has checkpoint 1234, rank 0 (a) has 5678abcd: every rank must read the "
            "same files");
  hellos[2] = hello("");
  hellos[2].draft_hash = "77";
  EXPECT_EQ(comparison_error(hellos),
            "rank 2 has draft 77, rank 0 (a) has none: every rank must read the same files");
}

TEST(RankHello, ComparesEveryFieldButTheHost) {
  for (auto field : {&RankHello::version, &RankHello::instruction_set, &RankHello::device,
                     &RankHello::nccl_version, &RankHello::checkpoint_hash, &RankHello::tokens_hash,
                     &RankHello::draft_hash, &RankHello::settings_hash}) {
    std::vector<RankHello> hellos = {hello("a"), hello("a")};
    hellos[1].*field = "other";
    EXPECT_THAT(comparison_error(hellos), ::testing::HasSubstr("other"));
  }
}

TEST(RankHello, SurvivesTheWire) {
  const RankHello sent = hello("node-b");
  const RankHello parsed = parse_hello(serialise_hello(sent));
  EXPECT_EQ(parsed.host, "node-b");
  EXPECT_EQ(comparison_error({sent, parsed}), "");
}

TEST(RankHello, RefusesOtherFormats) {
  const std::string bytes = serialise_hello(hello("a"));
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(parse_hello(bytes.substr(0, length)), Error) << length;
  }
  EXPECT_THROW(parse_hello(bytes + "x"), Error);
  EXPECT_THROW(parse_hello(std::string(bytes.size(), '\xff')), Error);
}

}  // namespace
}  // namespace outrider
