#include <gtest/gtest.h>

#include "spec/drafter.h"

namespace outrider {
namespace {

using Tokens = std::vector<int32_t>;

TEST(PromptLookup, CopiesWhatFollowedTheLongestMatch) {
  //                    match "1 2 3" -> 4 5      match "3" -> 9
  EXPECT_EQ(prompt_lookup(Tokens{1, 2, 3, 4, 5, 7, 3, 9, 1, 2, 3}, 2), (Tokens{4, 5}));
}

TEST(PromptLookup, PrefersTheLatestOfEqualMatches) {
  EXPECT_EQ(prompt_lookup(Tokens{1, 2, 8, 1, 2, 9, 1, 2}, 1), (Tokens{9}));
}

TEST(PromptLookup, StopsAtTheEndOfTheContext) {
  EXPECT_EQ(prompt_lookup(Tokens{6, 1, 6}, 5), (Tokens{1, 6}));
  EXPECT_EQ(prompt_lookup(Tokens{4, 4, 4}, 5), (Tokens{4}));
}

TEST(PromptLookup, FindsNothingWhereNothingRecurs) {
  EXPECT_TRUE(prompt_lookup(Tokens{1, 2, 3}, 4).empty());
  EXPECT_TRUE(prompt_lookup(Tokens{1}, 4).empty());
  EXPECT_TRUE(prompt_lookup(Tokens{}, 4).empty());
  EXPECT_TRUE(prompt_lookup(Tokens{1, 1}, 0).empty());
}

}  // namespace
}  // namespace outrider
