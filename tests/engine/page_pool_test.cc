#include "engine/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

namespace outrider {
namespace {

constexpr int64_t kP = kPageTokens;

std::vector<int32_t> count_from(int32_t first, int64_t n) {
  std::vector<int32_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A table that holds `tokens`, all of them verified.
PageTable filled(PagePool& pool, const std::vector<int32_t>& tokens, uint64_t salt) {
  PageTable table;
  pool.take_prefix(table, tokens, salt);
  EXPECT_TRUE(pool.reserve(table, static_cast<int64_t>(tokens.size())));
  pool.publish(table, tokens, static_cast<int64_t>(tokens.size()));
  return table;
}

TEST(PagePool, GivesAndTakesWholePages) {
  PagePool pool(4);
  PageTable table;
  pool.take_prefix(table, {}, 0);
  EXPECT_TRUE(pool.reserve(table, 0));
  EXPECT_EQ(pool.num_used(), 0);
  EXPECT_TRUE(pool.reserve(table, kP + 1));
  EXPECT_EQ(table.pages, (std::vector<int32_t>{0, 1}));
  EXPECT_TRUE(pool.reserve(table, 2 * kP));  // has it already
  EXPECT_TRUE(pool.reserve(table, 1));       // and keeps it
  EXPECT_EQ(pool.num_used(), 2);
  EXPECT_FALSE(pool.reserve(table, 4 * kP + 1));
  EXPECT_EQ(table.pages.size(), 2u);  // nothing changed
  EXPECT_EQ(pool.num_available(), 2);
  pool.truncate(table, kP + 1);
  EXPECT_EQ(pool.num_used(), 2);
  pool.truncate(table, kP);
  EXPECT_EQ(pool.num_used(), 1);
  pool.release(table);
  EXPECT_EQ(pool.num_used(), 0);
  EXPECT_TRUE(table.pages.empty());
}

TEST(PagePool, FindsWhatBeginsAlikeButNotTheLastToken) {
  PagePool pool(20);
  const auto tokens = count_from(0, 3 * kP + 5);
  PageTable first = filled(pool, tokens, 7);
  for (const bool still_used : {true, false}) {
    if (!still_used) pool.release(first);
    for (const int64_t n : {int64_t{0}, int64_t{1}, kP, kP + 1, 3 * kP, 3 * kP + 1, 3 * kP + 5}) {
      const auto asked = count_from(0, n);
      const int64_t expected = std::max<int64_t>(n - 1, 0) / kP;
      const auto found = pool.find_prefix(asked, 7);
      EXPECT_EQ(found.pages, expected) << n;
      EXPECT_EQ(found.in_use, still_used ? expected : 0) << n;
      PageTable table;
      EXPECT_EQ(pool.take_prefix(table, asked, 7), expected * kP) << n;
      EXPECT_EQ(table.num_published, expected);
      pool.release(table);
      EXPECT_EQ(pool.find_prefix(asked, 8).pages, 0) << "another tenant's";
    }
  }
  auto differs = tokens;
  differs[kP] = -1;  // the second page's first token: the pages behind are others too
  EXPECT_EQ(pool.find_prefix(differs, 7).pages, 1);
}

TEST(PagePool, PublishesFullVerifiedPagesAlone) {
  PagePool pool(8);
  const auto tokens = count_from(0, 4 * kP);
  PageTable table;
  pool.take_prefix(table, tokens, 0);
  ASSERT_TRUE(pool.reserve(table, 4 * kP));
  pool.publish(table, tokens, 2 * kP - 1);
  EXPECT_EQ(pool.find_prefix(tokens, 0).pages, 1);
  pool.publish(table, tokens, 2 * kP);
  EXPECT_EQ(pool.find_prefix(tokens, 0).pages, 2);
  EXPECT_DEATH(pool.truncate(table, 2 * kP - 1), "num_published");
  pool.truncate(table, 2 * kP);
  EXPECT_DEATH(pool.publish(table, tokens, 3 * kP), "capacity");
}

TEST(PagePool, ContinuesTheChainWhereAPrefixWasTaken) {
  PagePool pool(8);
  const auto tokens = count_from(0, 3 * kP + 1);
  PageTable first = filled(pool, count_from(0, kP), 0);
  PageTable second = filled(pool, tokens, 0);  // shares the first page, makes two more findable
  EXPECT_EQ(second.pages[0], first.pages[0]);
  EXPECT_EQ(pool.num_used(), 4);
  EXPECT_EQ(pool.find_prefix(tokens, 0).pages, 3);
}

TEST(PagePool, EqualPagesAreFoundOnce) {
  PagePool pool(8);
  const auto tokens = count_from(0, kP + 1);
  PageTable a, b;
  for (PageTable* table : {&a, &b}) {
    pool.take_prefix(*table, {}, 0);
    ASSERT_TRUE(pool.reserve(*table, kP));
  }
  pool.publish(a, tokens, kP);
  pool.publish(b, tokens, kP);
  PageTable c;
  pool.take_prefix(c, tokens, 0);
  EXPECT_EQ(c.pages, a.pages);
  pool.release(b);  // its page is nobody's: the other one is found
  EXPECT_EQ(pool.num_used(), 1);
  EXPECT_EQ(pool.find_prefix(tokens, 0).in_use, 1);
  pool.release(a);
  pool.release(c);
  EXPECT_EQ(pool.num_available(), 8);
}

TEST(PagePool, FindsNothingThatWasSpoilt) {
  PagePool pool(8);
  const auto tokens = count_from(0, 3 * kP + 1);
  PageTable good = filled(pool, count_from(0, kP), 0);
  PageTable spoilt = filled(pool, tokens, 0);  // its first page is that of `good`
  pool.forget(spoilt);
  EXPECT_EQ(pool.find_prefix(tokens, 0).pages, 0);
  EXPECT_EQ(pool.num_used(), 4);
  pool.release(spoilt);
  pool.release(good);
  EXPECT_EQ(pool.num_available(), 8);
  PageTable again = filled(pool, tokens, 0);
  EXPECT_EQ(pool.find_prefix(tokens, 0).pages, 3);
}

TEST(PagePool, ForgetsWhatWasLeastRecentlyUsedFromItsEnd) {
  PagePool pool(6);
  const auto old = count_from(0, 2 * kP), recent = count_from(1000, 2 * kP);
  const auto asks = [](std::vector<int32_t> tokens) {
    tokens.push_back(-1);
    return tokens;
  };
  PageTable table = filled(pool, old, 0);
  pool.release(table);
  table = filled(pool, recent, 0);
  pool.release(table);
  PageTable other;
  pool.take_prefix(other, {}, 0);
  ASSERT_TRUE(pool.reserve(other, 2 * kP));  // the blank ones first
  EXPECT_EQ(pool.find_prefix(asks(old), 0).pages, 2);
  ASSERT_TRUE(pool.reserve(other, 3 * kP));
  EXPECT_EQ(pool.find_prefix(asks(old), 0).pages, 1);
  pool.take_prefix(table, asks(old), 0);  // used again
  pool.release(table);
  ASSERT_TRUE(pool.reserve(other, 5 * kP));
  EXPECT_EQ(pool.find_prefix(asks(old), 0).pages, 1);
  EXPECT_EQ(pool.find_prefix(asks(recent), 0).pages, 0);
  ASSERT_TRUE(pool.reserve(other, 6 * kP));
  EXPECT_EQ(pool.find_prefix(asks(old), 0).pages, 0);
  EXPECT_FALSE(pool.reserve(other, 7 * kP));
}

// Any calls in any order, against what each page is known to hold.
TEST(PagePool, HoldsWhatItsModelHolds) {
  struct Sequence {
    std::vector<int32_t> tokens;
    uint64_t salt = 0;
    PageTable table;
  };
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    const int64_t num_pages = 1 + below(12);
    PagePool pool(num_pages);
    std::vector<Sequence> sequences;
    // By page: tokens from the sequence's first on, and the salt, of the last that was written.
    std::map<int32_t, std::pair<std::vector<int32_t>, uint64_t>> content;
    for (int call = 0; call < 200; ++call) {
      const auto at = sequences.begin() + (sequences.empty() ? 0 : below(sequences.size()));
      switch (below(5)) {
        case 0: {
          Sequence s{.salt = static_cast<uint64_t>(below(2))};
          for (int64_t n = 1 + below(5 * kP); n > 0; --n) {
            s.tokens.push_back(below(10) == 0 && n < kP ? 1 : 0);
          }
          const auto found = pool.find_prefix(s.tokens, s.salt);
          const int64_t used = pool.num_used();
          ASSERT_EQ(pool.take_prefix(s.table, s.tokens, s.salt), found.pages * kP);
          ASSERT_EQ(pool.num_used(), used + found.pages - found.in_use);
          for (int64_t i = 0; i < found.pages; ++i) {
            const std::vector<int32_t> begin(s.tokens.begin(), s.tokens.begin() + (i + 1) * kP);
            ASSERT_EQ(content[s.table.pages[i]], std::pair(begin, s.salt)) << seed;
          }
          sequences.push_back(std::move(s));
          break;
        }
        case 1: {
          if (sequences.empty()) break;
          const auto before = at->table.pages.size();
          const int64_t available = pool.num_available();
          const int64_t length = 1 + below(static_cast<int64_t>(at->tokens.size()));
          const int64_t missing =
              std::max<int64_t>(PagePool::pages_for(length) - static_cast<int64_t>(before), 0);
          ASSERT_EQ(pool.reserve(at->table, length), missing <= available);
          for (size_t i = before; i < at->table.pages.size(); ++i) {
            for (const Sequence& s : sequences) {
              const auto& pages = s.table.pages;
              ASSERT_EQ(std::count(pages.begin(), pages.end(), at->table.pages[i]),
                        &s == &*at ? 1 : 0)
                  << seed;
            }
            content.erase(at->table.pages[i]);
          }
          break;
        }
        case 2: {
          if (sequences.empty()) break;
          const int64_t most =
              std::min<int64_t>(at->table.capacity(), static_cast<int64_t>(at->tokens.size()));
          const int64_t verified = std::max(below(most + 1), at->table.num_published * kP);
          for (int64_t i = at->table.num_published; i < verified / kP; ++i) {
            content[at->table.pages[i]] = {{at->tokens.begin(), at->tokens.begin() + (i + 1) * kP},
                                           at->salt};
          }
          pool.publish(at->table, at->tokens, verified);
          if (below(2) == 0) pool.truncate(at->table, verified);
          break;
        }
        case 3:
          if (sequences.empty()) break;
          pool.release(at->table);
          sequences.erase(at);
          break;
        case 4:
          if (sequences.empty() || below(8) > 0) break;
          pool.forget(at->table);
          for (const int32_t page : at->table.pages) content.erase(page);
          break;
      }
      std::map<int32_t, int> users;
      for (const Sequence& s : sequences) {
        for (const int32_t page : s.table.pages) ++users[page];
      }
      ASSERT_EQ(pool.num_used(), static_cast<int64_t>(users.size())) << seed;
    }
    for (Sequence& s : sequences) pool.release(s.table);
    ASSERT_EQ(pool.num_available(), num_pages) << seed;
    PageTable all;
    ASSERT_TRUE(pool.reserve(all, num_pages * kP)) << seed;
  }
}

}  // namespace
}  // namespace outrider
