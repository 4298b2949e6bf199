#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace outrider {
namespace {

constexpr int64_t kLayers = 2;
constexpr int64_t kPages = 12;
constexpr int64_t kSlots = 4;
constexpr int64_t kMaxPositions = 100;  // 7 pages: not all slots can be full at once
const AttentionShape kShape = {
    .num_heads = 4, .num_kv_heads = 2, .head_dim = 8, .group_size = 2, .head_offset = 0};

class KvCacheTest : public ::testing::Test {
 protected:
  KvCache make() const {
    return KvCache(*backend_, kLayers, kShape, kPages, kSlots, kMaxPositions);
  }
  // The slot's page table as the backend sees it.
  std::vector<int32_t> table(const KvCache& cache, int64_t slot, int64_t pages) const {
    std::vector<int32_t> entries(pages);
    Stream stream;
    backend_->copy_to_host(entries.data(),
                           cache.page_tables().rows(slot, slot + 1).slice(1, 0, pages), stream);
    return entries;
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
};

int64_t pages_of(int64_t length) { return (length + kPageTokens - 1) / kPageTokens; }

TEST_F(KvCacheTest, HasTheShapesThatItSays) {
  const KvCache cache = make();
  EXPECT_EQ(cache.num_pages(), kPages);
  EXPECT_EQ(cache.num_free_pages(), kPages);
  EXPECT_EQ(cache.max_pages_per_slot(), 7);
  EXPECT_EQ(cache.page_tables().extent(0), kSlots);
  EXPECT_EQ(cache.page_tables().extent(1), 7);
  int64_t bytes = 0;
  std::set<void*> starts;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (const TensorView& pages : {cache.k_pages(layer), cache.v_pages(layer)}) {
      EXPECT_EQ(pages.dtype(), DType::bf16);
      EXPECT_EQ(pages.extent(0), kPages);
      EXPECT_EQ(pages.extent(1), 2);
      EXPECT_EQ(pages.extent(2), kPageTokens);
      EXPECT_EQ(pages.extent(3), 8);
      bytes += static_cast<int64_t>(pages.bytes());
      starts.insert(pages.raw());
    }
  }
  EXPECT_EQ(starts.size(), 4u);
  EXPECT_EQ(KvCache::page_bytes(kLayers, kShape) * kPages, bytes);
}

TEST_F(KvCacheTest, ReserveTakesWholePagesAndKeepsWhatItHas) {
  KvCache cache = make();
  ASSERT_TRUE(cache.reserve(1, 1));
  EXPECT_EQ(cache.num_free_pages(), kPages - 1);
  const auto before = table(cache, 1, 1);
  ASSERT_TRUE(cache.reserve(1, kPageTokens));
  EXPECT_EQ(cache.num_free_pages(), kPages - 1);
  ASSERT_TRUE(cache.reserve(1, kPageTokens + 1));
  EXPECT_EQ(cache.num_free_pages(), kPages - 2);
  EXPECT_EQ(table(cache, 1, 1), before);
  ASSERT_TRUE(cache.reserve(1, 3));  // less than it has: nothing happens
  EXPECT_EQ(cache.num_free_pages(), kPages - 2);
}

TEST_F(KvCacheTest, ReserveFailsWithoutATrace) {
  KvCache cache = make();
  ASSERT_TRUE(cache.reserve(0, kMaxPositions));    // 7 pages
  ASSERT_TRUE(cache.reserve(1, 4 * kPageTokens));  // 4, one is left
  const uint64_t digest = cache.state_digest();
  EXPECT_FALSE(cache.reserve(1, 6 * kPageTokens));
  EXPECT_FALSE(cache.reserve(2, 2 * kPageTokens));
  EXPECT_EQ(cache.num_free_pages(), 1);
  EXPECT_EQ(cache.state_digest(), digest);
  EXPECT_TRUE(cache.reserve(2, kPageTokens));
}

TEST_F(KvCacheTest, TruncateGivesBackWholePages) {
  KvCache cache = make();
  ASSERT_TRUE(cache.reserve(0, 3 * kPageTokens));
  cache.truncate(0, 2 * kPageTokens + 1);  // still within the third page
  EXPECT_EQ(cache.num_free_pages(), kPages - 3);
  cache.truncate(0, 2 * kPageTokens);
  EXPECT_EQ(cache.num_free_pages(), kPages - 2);
  cache.truncate(0, 90);  // longer than it is: nothing happens
  EXPECT_EQ(cache.num_free_pages(), kPages - 2);
  cache.truncate(0, 0);
  EXPECT_EQ(cache.num_free_pages(), kPages);
}

TEST_F(KvCacheTest, DigestTellsTablesApart) {
  KvCache one = make(), other = make();
  EXPECT_EQ(one.state_digest(), other.state_digest());
  ASSERT_TRUE(one.reserve(0, 20));
  EXPECT_NE(one.state_digest(), other.state_digest());  // another length
  ASSERT_TRUE(other.reserve(1, 20));
  EXPECT_NE(one.state_digest(), other.state_digest());  // another slot
  other.truncate(1, 0);
  ASSERT_TRUE(other.reserve(2, 1));
  ASSERT_TRUE(other.reserve(0, 20));
  other.truncate(2, 0);
  EXPECT_NE(one.state_digest(), other.state_digest());  // other pages
}

// Random traces against counting pages by hand: none is lost or owned twice, a slot's pages stay
// while it has them, and two caches that make the same calls agree.
TEST_F(KvCacheTest, RandomTracesLoseNoPage) {
  std::mt19937 random(7);
  int refused = 0;
  for (int trace = 0; trace < 200; ++trace) {
    KvCache cache = make(), twin = make();
    std::vector<std::vector<int32_t>> owned(kSlots);  // the model: pages of each slot, in order
    for (int step = 0; step < 200; ++step) {
      const auto slot = static_cast<int64_t>(random() % kSlots);
      const auto length = static_cast<int64_t>(random() % (kMaxPositions + 1));
      std::vector<int32_t>& pages = owned[slot];
      const auto held = static_cast<int64_t>(pages.size());
      if (random() % 2 == 0) {
        int64_t taken = 0;
        for (const auto& other : owned) taken += static_cast<int64_t>(other.size());
        const bool fits = pages_of(length) - held <= kPages - taken;
        ASSERT_EQ(cache.reserve(slot, length), fits);
        ASSERT_EQ(twin.reserve(slot, length), fits);
        refused += fits ? 0 : 1;
        if (fits && pages_of(length) > held) {
          const auto now = table(cache, slot, pages_of(length));
          ASSERT_TRUE(std::equal(pages.begin(), pages.end(), now.begin()));
          pages = now;
        }
      } else {
        cache.truncate(slot, length);
        twin.truncate(slot, length);
        pages.resize(std::min(held, pages_of(length)));
      }
      std::set<int32_t> distinct;
      int64_t total = 0;
      for (int64_t s = 0; s < kSlots; ++s) {
        const auto now = table(cache, s, static_cast<int64_t>(owned[s].size()));
        ASSERT_EQ(now, owned[s]);
        distinct.insert(now.begin(), now.end());
        total += static_cast<int64_t>(now.size());
      }
      ASSERT_EQ(static_cast<int64_t>(distinct.size()), total);
      ASSERT_TRUE(distinct.empty() || (*distinct.begin() >= 0 && *distinct.rbegin() < kPages));
      ASSERT_EQ(cache.num_free_pages(), kPages - total);
      ASSERT_EQ(cache.state_digest(), twin.state_digest());
    }
  }
  EXPECT_GT(refused, 100);  // the traces do run out of pages
}

}  // namespace
}  // namespace outrider
