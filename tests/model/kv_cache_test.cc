#include "model/kv_cache.h"

#include <gtest/gtest.h>

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

TEST_F(KvCacheTest, HasTheShapesThatItSays) {
  const KvCache cache = make();
  EXPECT_EQ(cache.num_pages(), kPages);
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

TEST_F(KvCacheTest, ATableHoldsThePagesThatItWasGiven) {
  KvCache cache = make();
  Stream stream;
  const std::vector<int32_t> first = {7, 3}, more = {11, 0, 5}, other = {3};
  cache.set_pages(1, 0, first, stream);
  cache.set_pages(1, 2, more, stream);
  cache.set_pages(2, 0, other, stream);  // shared with slot 1
  EXPECT_EQ(table(cache, 1, 5), (std::vector<int32_t>{7, 3, 11, 0, 5}));
  EXPECT_EQ(table(cache, 2, 1), other);
  EXPECT_EQ(cache.capacity(1), 5 * kPageTokens);
  EXPECT_EQ(cache.capacity(0), 0);
  cache.set_pages(1, 1, other, stream);  // what stood behind is over
  EXPECT_EQ(table(cache, 1, 2), (std::vector<int32_t>{7, 3}));
  EXPECT_EQ(cache.capacity(1), 2 * kPageTokens);
}

TEST_F(KvCacheTest, DealsEachPageOnce) {
  KvCache cache = make();
  Stream stream;
  cache.deal_pages(stream);
  std::set<int32_t> pages;
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    EXPECT_EQ(cache.capacity(slot), kPages / kSlots * kPageTokens);
    for (const int32_t page : table(cache, slot, kPages / kSlots)) pages.insert(page);
  }
  EXPECT_EQ(static_cast<int64_t>(pages.size()), kPages);
}

TEST_F(KvCacheTest, DigestTellsTablesApart) {
  KvCache one = make(), other = make();
  Stream stream;
  const std::vector<int32_t> pages = {4, 9}, swapped = {9, 4};
  EXPECT_EQ(one.state_digest(), other.state_digest());
  one.set_pages(0, 0, pages, stream);
  EXPECT_NE(one.state_digest(), other.state_digest());  // another length
  other.set_pages(1, 0, pages, stream);
  EXPECT_NE(one.state_digest(), other.state_digest());  // another slot
  other.set_pages(1, 0, {}, stream);
  other.set_pages(0, 0, swapped, stream);
  EXPECT_NE(one.state_digest(), other.state_digest());  // other pages
  other.set_pages(0, 0, pages, stream);
  EXPECT_EQ(one.state_digest(), other.state_digest());
}

}  // namespace
}  // namespace outrider
