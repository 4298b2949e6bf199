#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "spec/copy_drafters.h"

namespace outrider {
namespace {

using Tokens = std::vector<int32_t>;

CopiedDraft prompt_lookup(const Tokens& tokens, int k) {
  TokenIndex index;
  index.extend(tokens);
  return outrider::prompt_lookup(tokens, index, k);
}

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

// "1 2" was followed by 9, before "2" was followed by 8 so often.
TEST(PromptLookup, LooksAtTheLatestPlacesAlone) {
  for (const int often : {kMostPlaces - 1, kMostPlaces}) {
    Tokens tokens{1, 2, 9};
    for (int i = 0; i < often; ++i) tokens.insert(tokens.end(), {3, 2, 8});
    tokens.insert(tokens.end(), {1, 2});
    const CopiedDraft draft = prompt_lookup(tokens, 1);
    EXPECT_EQ(draft.tokens, (Tokens{often < kMostPlaces ? 9 : 8}));
    EXPECT_EQ(draft.matched, often < kMostPlaces ? 2 : 1);
  }
}

// Every place looked at, the latest first.
TEST(PromptLookup, IsWhatALookAtEveryPlaceSays) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    Tokens tokens(1 + random() % 60);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 5);
    int longest = 0;
    size_t follows = 0;
    for (size_t end = tokens.size() - 1; end > 0; --end) {
      int match = 0;
      while (match < std::min<int>(4, static_cast<int>(end)) &&
             tokens[end - 1 - match] == tokens[tokens.size() - 1 - match]) {
        ++match;
      }
      if (match <= longest) continue;
      longest = match;
      follows = end;
    }
    const CopiedDraft draft = prompt_lookup(tokens, 3);
    ASSERT_EQ(draft.matched, longest) << "trial " << trial;
    if (longest == 0) continue;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(draft.tokens[i], tokens[follows + i % (tokens.size() - follows)])
          << "trial " << trial;
    }
  }
}

TEST(TokenIndex, KnowsWhereATokenStoodBefore) {
  const Tokens tokens{7, 3, 7, 7, 5, 3};
  TokenIndex grown, whole;
  for (size_t length = 0; length <= tokens.size(); ++length) {
    grown.extend(std::span(tokens).first(length));
  }
  whole.extend(tokens);
  for (const TokenIndex& index : {grown, whole}) {
    ASSERT_EQ(index.size(), 6);
    Tokens before;
    for (int64_t i = 0; i < 6; ++i) before.push_back(static_cast<int32_t>(index.before(i)));
    EXPECT_EQ(before, (Tokens{-1, -1, 0, 2, -1, 1}));
    EXPECT_EQ(index.last(7), 3);
    EXPECT_EQ(index.last(3), 5);
    EXPECT_EQ(index.last(9), -1);
  }
}

}  // namespace
}  // namespace outrider
