#include <gtest/gtest.h>

#include "spec/drafter.h"

namespace outrider {
namespace {

using Tokens = std::vector<int32_t>;

TEST(PromptLookup, CopiesWhatFollowedTheLongestMatch) {
  //                    match "1 2 3" -> 4 5      match "3" -> 9
  EXPECT_EQ(prompt_lookup(Tokens{1, 2, 3, 4, 5, 7, 3, 9, 1, 2, 3}, 2).tokens, (Tokens{4, 5}));
}

TEST(PromptLookup, PrefersTheLatestOfEqualMatches) {
  EXPECT_EQ(prompt_lookup(Tokens{1, 2, 8, 1, 2, 9, 1, 2}, 1).tokens, (Tokens{9}));
}

TEST(PromptLookup, GoesOnBehindTheContextsEnd) {
  EXPECT_EQ(prompt_lookup(Tokens{6, 1, 6}, 5).tokens, (Tokens{1, 6, 1, 6, 1}));
  EXPECT_EQ(prompt_lookup(Tokens{4, 4, 4}, 5).tokens, (Tokens{4, 4, 4, 4, 4}));
  EXPECT_EQ(prompt_lookup(Tokens{7, 8, 9, 7}, 2).tokens, (Tokens{8, 9}));
}

TEST(PromptLookup, SaysHowMuchMatched) {
  EXPECT_EQ(prompt_lookup(Tokens{1, 2, 3, 4, 5, 7, 3, 9, 1, 2, 3}, 2).matched, 3);
  EXPECT_EQ(prompt_lookup(Tokens{1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5}, 2).matched, 4);  // at most
  EXPECT_EQ(prompt_lookup(Tokens{1, 2, 3}, 4).matched, 0);
}

TEST(PromptLookup, FindsNothingWhereNothingRecurs) {
  EXPECT_TRUE(prompt_lookup(Tokens{1, 2, 3}, 4).tokens.empty());
  EXPECT_TRUE(prompt_lookup(Tokens{1}, 4).tokens.empty());
  EXPECT_TRUE(prompt_lookup(Tokens{}, 4).tokens.empty());
  EXPECT_TRUE(prompt_lookup(Tokens{1, 1}, 0).tokens.empty());
}

}  // namespace
}  // namespace outrider
