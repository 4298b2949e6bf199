// KvCache: paged keys and values of several sequences. Which page belongs to whom is decided
// elsewhere (engine/page_pool.h); this holds the pages and the tables that say so.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace outrider {

class KvCache {
 public:
  // Storage for `num_pages` pages of kPageTokens positions in every layer, and page tables of
  // `num_slots` sequences of at most `max_positions`. Throws Error where memory runs out.
  KvCache(Backend& backend, int64_t num_layers, const AttentionShape& shape, int64_t num_pages,
          int64_t num_slots, int64_t max_positions);

  // From now on entries [first, first + pages.size()) of the slot's table are these, and the table
  // ends there. The table must reach `first` already.
  void set_pages(int64_t slot, int64_t first, std::span<const int32_t> pages, Stream& stream);
  // Page i of slot s is i * num_slots + s, for all that there are: sequences that never share.
  void deal_pages(Stream& stream);

  int64_t num_pages() const { return num_pages_; }
  int64_t max_pages_per_slot() const { return max_pages_; }
  // Positions that the slot's table has pages for.
  int64_t capacity(int64_t slot) const {
    return static_cast<int64_t>(tables_.at(slot).size()) * kPageTokens;
  }

  // i32 [num_slots, max_pages_per_slot]; what stands behind a table's end means nothing.
  TensorView page_tables() const;
  TensorView k_pages(int64_t layer) const;  // bf16 [num_pages, num_kv_heads, kPageTokens, head_dim]
  TensorView v_pages(int64_t layer) const;
  uint64_t state_digest() const;  // of the tables: equal on all ranks

  // Bytes that one page takes over all layers, keys and values.
  static int64_t page_bytes(int64_t num_layers, const AttentionShape& shape);

 private:
  TensorView pages(const Buffer& storage, int64_t layer) const;

  Backend& backend_;
  AttentionShape shape_;
  int64_t num_layers_;
  int64_t num_pages_;
  int64_t max_pages_;  // of one slot
  Buffer keys_;        // bf16 [num_layers, num_pages, num_kv_heads, kPageTokens, head_dim]
  Buffer values_;
  Buffer device_tables_;                      // i32 [num_slots, max_pages]
  std::vector<std::vector<int32_t>> tables_;  // [num_slots]: the same on the host
};

}  // namespace outrider
