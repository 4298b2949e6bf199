// How many pages the KV cache gets where nobody says.
#include "engine/kv_pool.h"

#include <gtest/gtest.h>

#include "testing/checkpoints.h"

namespace outrider {
namespace {

// SmolLM2-135M: 30 layers, 9 heads over 3 KV heads of 64. A page of 16 tokens, keys and values in
// bf16, is 30 * 2 * 16 * 64 * 2 bytes = 122,880 a KV head. Two ranks, with 4 and 5 heads, hold 2
// KV heads each; three hold one; of four, with 2, 2, 2 and 3 heads, the second holds 2.
TEST(KvPool, FillsAGibibyteOfTheFullestRank) {
  const ModelConfig config = ModelConfig::load(real_model());
  const auto pages = [&](int ranks, EngineOptions options = {}) {
    return num_kv_pages(options, config, ranks);
  };
  constexpr int64_t kHeadPages = (int64_t{1} << 30) / 122'880;
  EXPECT_EQ(pages(1), kHeadPages / 3);
  EXPECT_EQ(pages(2), kHeadPages / 2);
  EXPECT_EQ(pages(3), kHeadPages);
  EXPECT_EQ(pages(4), kHeadPages / 2);
  // Never more than all slots could use: 16 pages of tokens, one behind them and one to spare.
  EXPECT_EQ(pages(1, {.max_positions = 256, .max_sequences = 2}), 2 * 18);
}

}  // namespace
}  // namespace outrider
