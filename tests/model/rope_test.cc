#include "model/rope.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

ModelConfig config_of(int64_t head_dim, double theta) {
  ModelConfig config;
  config.head_dim = head_dim;
  config.rope_theta = theta;
  return config;
}

TEST(Rope, FrequenciesFallFromOneByEqualRatios) {
  const auto frequencies = rope_frequencies(config_of(8, 10000.0));
  ASSERT_EQ(frequencies.size(), 4u);
  const double expected[] = {1.0, 0.1, 0.01, 0.001};
  for (int i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(frequencies[i], expected[i]);
}

// Worked by hand. Over an original context of 2 pi * 10^5 positions (rounded), the four turn 10^5,
// 10^4, 1000 and 100 times: the first two are kept, the last is slowed 8 times, and the third
// stands a third of the way from 500 to 2000, so keeps 1/3 + 2/3 / 8 = 5/12.
TEST(Rope, Llama3ScalingSlowsLowFrequencies) {
  ModelConfig config = config_of(8, 10000.0);
  config.rope_scaling = {.factor = 8.0,
                         .low_freq_factor = 500.0,
                         .high_freq_factor = 2000.0,
                         .original_max_position_embeddings = 628319};
  const auto frequencies = rope_frequencies(config);
  EXPECT_DOUBLE_EQ(frequencies[0], 1.0);
  EXPECT_DOUBLE_EQ(frequencies[1], 0.1);
  EXPECT_NEAR(frequencies[2], 0.01 * 5.0 / 12.0, 1e-8);
  EXPECT_DOUBLE_EQ(frequencies[3], 0.001 / 8.0);
}

TEST(Rope, TablesHoldARowForEachPosition) {
  const RopeTables tables = make_rope_tables(config_of(8, 10000.0), 1001);
  ASSERT_EQ(tables.cos.size(), 1001u * 4u);
  ASSERT_EQ(tables.sin.size(), 1001u * 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(tables.cos[i], 1.0f);
    EXPECT_EQ(tables.sin[i], 0.0f);
  }
  // Position 1000 of frequency 0.001: the cosine and sine of 1.
  EXPECT_FLOAT_EQ(tables.cos[1000 * 4 + 3], 0.54030231f);
  EXPECT_FLOAT_EQ(tables.sin[1000 * 4 + 3], 0.84147098f);
}

}  // namespace
}  // namespace outrider
