#include "model/shard.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/testing/one_line_error.h"

namespace outrider {
namespace {

ModelConfig config_of(int64_t heads, int64_t kv_heads, int64_t intermediate, int64_t vocab) {
  ModelConfig config;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = 64;
  config.hidden_size = heads * 64;
  config.intermediate_size = intermediate;
  config.vocab_size = vocab;
  return config;
}

ModelConfig smollm2() { return config_of(9, 3, 1536, 49152); }

TEST(SplitRange, CoversWithPartsThatDifferByAtMostOne) {
  for (int64_t total = 0; total <= 40; ++total) {
    for (int size = 1; size <= 9; ++size) {
      int64_t end = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Range part = split_range(total, rank, size);
        EXPECT_EQ(part.begin, end);
        EXPECT_GE(part.size(), total / size);
        EXPECT_LE(part.size(), (total + size - 1) / size);
        end = part.end;
      }
      EXPECT_EQ(end, total);
    }
  }
}

TEST(SplitFfn, CutsBetweenEights) {
  for (const int64_t columns : {1536, 8192, 14336, 64}) {
    for (int size = 1; size <= 8; ++size) {
      int64_t end = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Range part = split_ffn(columns, rank, size);
        EXPECT_EQ(part.begin, end);
        EXPECT_EQ(part.begin % 8, 0);
        EXPECT_GE(part.size(), columns / 8 / size * 8);
        EXPECT_LE(part.size(), (columns / 8 + size - 1) / size * 8);
        end = part.end;
      }
      EXPECT_EQ(end, columns);
    }
  }
}

TEST(SplitFfn, LeavesNoRankEmpty) {
  for (const int64_t columns : {193, 48}) {  // no multiple of 8, and fewer eights than ranks
    for (int rank = 0; rank < 7; ++rank) {
      const Range part = split_ffn(columns, rank, 7), plain = split_range(columns, rank, 7);
      EXPECT_EQ(std::pair(part.begin, part.end), std::pair(plain.begin, plain.end));
    }
  }
}

// Over any number of ranks: each query head, FFN column and token stands on one rank; the KV head
// that AttentionShape says a query head reads is the one it reads in the whole model; and a rank
// holds no KV head that none of its query heads reads.
TEST(Shard, EveryQueryHeadFindsItsKvHead) {
  for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{9, 3},
                                        {4, 2},
                                        {4, 1},
                                        {32, 8},
                                        {8, 8},
                                        {7, 7},
                                        {25, 25},
                                        {12, 2},
                                        {15, 5}}) {
    const ModelConfig config = config_of(heads, kv_heads, 193, 331);
    for (int size = 1; size <= heads; ++size) {
      SCOPED_TRACE(std::to_string(heads) + " heads, " + std::to_string(kv_heads) + " KV heads, " +
                   std::to_string(size) + " ranks");
      int64_t head_end = 0, ffn_end = 0, vocab_end = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Shard shard = Shard::of(config, rank, size);
        EXPECT_EQ(shard.rank, rank);
        EXPECT_EQ(shard.size, size);
        EXPECT_EQ(std::tuple(shard.heads.begin, shard.intermediate.begin, shard.vocab.begin),
                  std::tuple(head_end, ffn_end, vocab_end));
        head_end = shard.heads.end;
        ffn_end = shard.intermediate.end;
        vocab_end = shard.vocab.end;

        const AttentionShape& shape = shard.attention;
        EXPECT_EQ(shape.num_heads, shard.heads.size());
        EXPECT_EQ(shape.num_kv_heads, shard.kv_heads.size());
        EXPECT_EQ(shape.head_dim, 64);
        std::set<int64_t> read;
        for (int64_t head = 0; head < shape.num_heads; ++head) {
          const int64_t local = (head + shape.head_offset) / shape.group_size;
          EXPECT_LT(local, shape.num_kv_heads);
          EXPECT_EQ(shard.kv_heads.begin + local, (shard.heads.begin + head) / (heads / kv_heads));
          read.insert(local);
        }
        EXPECT_EQ(static_cast<int64_t>(read.size()), shape.num_kv_heads);
      }
      EXPECT_EQ(std::tuple(head_end, ffn_end, vocab_end), std::tuple(heads, 193, 331));
    }
  }
}

// SmolLM2's 9 heads in 3 groups over two ranks: 4 and 5, and both hold the middle group's KV head.
TEST(Shard, RepeatsAKvHeadWhoseGroupIsCut) {
  const Shard first = Shard::of(smollm2(), 0, 2), second = Shard::of(smollm2(), 1, 2);
  EXPECT_EQ(std::pair(first.heads.begin, first.heads.end), std::pair(INT64_C(0), INT64_C(4)));
  EXPECT_EQ(std::pair(first.kv_heads.begin, first.kv_heads.end), std::pair(INT64_C(0), INT64_C(2)));
  EXPECT_EQ(first.attention.head_offset, 0);
  EXPECT_EQ(std::pair(second.heads.begin, second.heads.end), std::pair(INT64_C(4), INT64_C(9)));
  EXPECT_EQ(std::pair(second.kv_heads.begin, second.kv_heads.end),
            std::pair(INT64_C(1), INT64_C(3)));
  EXPECT_EQ(second.attention.head_offset, 1);
}

// Weights of a layer: who has more heads has fewer columns, to the nearest eight. Where there are
// as many heads, columns are cut as split_ffn does.
TEST(Shard, RanksHaveAsManyWeights) {
  const auto weights_of = [](const ModelConfig& config, int rank, int size) {
    const Shard shard = Shard::of(config, rank, size);
    return config.hidden_size * (128 * (shard.heads.size() + shard.kv_heads.size()) +
                                 (config.num_ffn_in() + 1) * shard.intermediate.size());
  };
  ModelConfig gpt2 = config_of(25, 25, 6400, 50257);
  gpt2.activation = Activation::gelu_tanh;
  for (const auto& [config, size] :
       {std::pair(smollm2(), 2), {smollm2(), 4}, {gpt2, 2}, {gpt2, 3}}) {
    const int64_t eight = 8 * config.hidden_size * (config.num_ffn_in() + 1);
    for (int rank = 1; rank < size; ++rank) {
      EXPECT_LE(std::abs(weights_of(config, rank, size) - weights_of(config, 0, size)), eight);
    }
  }
  EXPECT_EQ(Shard::of(smollm2(), 0, 2).intermediate.end, 792);
  for (int rank = 0; rank < 3; ++rank) {
    const Range even = split_ffn(1536, rank, 3), found = Shard::of(smollm2(), rank, 3).intermediate;
    EXPECT_EQ(std::pair(found.begin, found.end), std::pair(even.begin, even.end));
  }
}

// So few columns that the ranks with fewer heads would take them all: each has some all the same.
TEST(Shard, NoRankIsWithoutColumns) {
  for (int rank = 0; rank < 3; ++rank) {
    const Range even = split_ffn(24, rank, 3);
    const Range found = Shard::of(config_of(4, 4, 24, 100), rank, 3).intermediate;
    EXPECT_EQ(std::pair(found.begin, found.end), std::pair(even.begin, even.end));
  }
}

// GPT-2 XL's 25 heads over two and three ranks.
TEST(Shard, CutsHeadsThatDoNotDivide) {
  const ModelConfig config = config_of(25, 25, 6400, 50257);
  for (const auto& [size, expected] :
       {std::pair<int, std::vector<int64_t>>{2, {12, 13}}, {3, {8, 8, 9}}}) {
    for (int rank = 0; rank < size; ++rank) {
      const Shard shard = Shard::of(config, rank, size);
      EXPECT_EQ(shard.heads.size(), expected[rank]);
      EXPECT_EQ(shard.kv_heads.size(), expected[rank]);
      EXPECT_EQ(shard.attention.head_offset, 0);
    }
  }
}

TEST(Shard, RepeatsNoKvHeadWhereGroupsAreWhole) {
  int64_t kv_heads = 0;
  for (int rank = 0; rank < 3; ++rank) kv_heads += Shard::of(smollm2(), rank, 3).kv_heads.size();
  EXPECT_EQ(kv_heads, 3);
}

TEST(Shard, ATrimmedHeadIsWhole) {
  ModelConfig config = smollm2();
  EXPECT_EQ(Shard::of(config, 1, 2).head.begin, Shard::of(config, 1, 2).vocab.begin);
  EXPECT_EQ(Shard::of(config, 1, 2).head.end, 49152);
  config.draft_token_ids = {0, 2, 9};
  const Shard shard = Shard::of(config, 0, 1);
  EXPECT_EQ(shard.head.size(), 3);
  EXPECT_EQ(shard.vocab.size(), 49152);
  expect_one_line_error({"2 ranks", "trimmed head (draft_token_ids)"},
                        [&] { Shard::of(config, 0, 2); });
}

TEST(Shard, RefusesMoreRanksThanParts) {
  expect_one_line_error({"10 ranks", "9 query heads (num_attention_heads)"},
                        [] { Shard::of(smollm2(), 0, 10); });
  expect_one_line_error({"2 FFN columns (intermediate_size)"},
                        [] { Shard::of(config_of(9, 3, 2, 100), 0, 3); });
  expect_one_line_error({"2 tokens (vocab_size)"},
                        [] { Shard::of(config_of(9, 3, 100, 2), 0, 3); });
}

}  // namespace
}  // namespace outrider
