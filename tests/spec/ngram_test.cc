#include <gtest/gtest.h>

#include <map>
#include <random>

#include "spec/copy_drafters.h"

namespace outrider {
namespace {

using Tokens = std::vector<int32_t>;

CopiedDraft ngram(const Tokens& tokens, int k) {
  TokenIndex index;
  index.extend(tokens);
  return outrider::ngram(tokens, index, k);
}

TEST(Ngram, TakesWhatFollowedMostOften) {
  // "1 2" was followed by 8, 9, 8.
  const CopiedDraft draft = ngram(Tokens{1, 2, 8, 1, 2, 9, 1, 2, 8, 5, 1, 2}, 1);
  EXPECT_EQ(draft.tokens, (Tokens{8}));
  EXPECT_EQ(draft.matched, 2);
}

TEST(Ngram, AmongEqualsTakesTheLast) {
  EXPECT_EQ(ngram(Tokens{1, 2, 8, 1, 2, 9, 1, 2}, 1).tokens, (Tokens{9}));
}

TEST(Ngram, ALongerRunOutweighsCounts) {
  // "2" was followed by 9 twice, "1 2" by 8 once.
  EXPECT_EQ(ngram(Tokens{3, 2, 9, 4, 2, 9, 1, 2, 8, 5, 1, 2}, 1).tokens, (Tokens{8}));
}

TEST(Ngram, FindsNothingWhereNothingRecurs) {
  EXPECT_TRUE(ngram(Tokens{1, 2, 3}, 4).tokens.empty());
  EXPECT_TRUE(ngram(Tokens{1}, 4).tokens.empty());
  EXPECT_TRUE(ngram(Tokens{}, 4).tokens.empty());
  EXPECT_TRUE(ngram(Tokens{1, 1}, 0).tokens.empty());
  EXPECT_EQ(ngram(Tokens{1, 2, 3}, 4).matched, 0);
}

// "1 2" was followed by 9, before "2" was followed by 8 so often.
TEST(Ngram, LooksAtTheLatestPlacesAlone) {
  for (const int often : {kMostPlaces - 1, kMostPlaces}) {
    Tokens tokens{1, 2, 9};
    for (int i = 0; i < often; ++i) tokens.insert(tokens.end(), {3, 2, 8});
    tokens.insert(tokens.end(), {1, 2});
    const CopiedDraft draft = ngram(tokens, 1);
    EXPECT_EQ(draft.tokens, (Tokens{often < kMostPlaces ? 9 : 8}));
    EXPECT_EQ(draft.matched, often < kMostPlaces ? 2 : 1);
  }
}

// Behind what it has drafted, too: "5 6 7" was followed by 9, "6 7" by 8 so often since.
TEST(Ngram, LooksAtTheLatestPlacesOfEachTokenAlone) {
  Tokens tokens{5, 6, 7, 9};
  for (int i = 0; i < kMostPlaces; ++i) tokens.insert(tokens.end(), {6, 7, 8});
  tokens.insert(tokens.end(), {5, 6});
  EXPECT_EQ(ngram(tokens, 2).tokens, (Tokens{7, 8}));
}

// Against tables of every run, of which the longest that is known decides.
TEST(Ngram, IsWhatTablesOfRunsSay) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    Tokens tokens(1 + random() % 60);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 4);
    std::map<Tokens, std::map<int32_t, std::pair<int, size_t>>> tables;  // count, last place
    for (size_t end = 1; end < tokens.size(); ++end) {
      for (size_t n = 1; n <= std::min<size_t>(3, end); ++n) {
        auto& [count, last] =
            tables[Tokens(tokens.begin() + static_cast<std::ptrdiff_t>(end - n),
                          tokens.begin() + static_cast<std::ptrdiff_t>(end))][tokens[end]];
        ++count;
        last = end;
      }
    }
    Tokens context = tokens, expected;
    int matched = 0;
    while (expected.size() < 6) {
      bool found = false;
      for (size_t n = std::min<size_t>(3, context.size()); n > 0 && !found; --n) {
        const auto at =
            tables.find(Tokens(context.end() - static_cast<std::ptrdiff_t>(n), context.end()));
        if (at == tables.end()) continue;
        found = true;
        if (expected.empty()) matched = static_cast<int>(n);
        std::pair<int, size_t> best{0, 0};
        int32_t token = -1;
        for (const auto& [next, weight] : at->second) {
          if (weight > best) {
            best = weight;
            token = next;
          }
        }
        expected.push_back(token);
        context.push_back(token);
      }
      if (!found) break;
    }
    const CopiedDraft draft = ngram(tokens, 6);
    EXPECT_EQ(draft.tokens, expected) << "trial " << trial;
    EXPECT_EQ(draft.matched, matched) << "trial " << trial;
  }
}

}  // namespace
}  // namespace outrider
