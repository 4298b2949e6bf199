// KvCache: paged keys and values of several sequences. Every rank makes the same calls in the same
// order, so page tables agree without being sent.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace outrider {

class KvCache {
 public:
  // Storage for `num_pages` pages of kPageTokens positions in every layer, shared by `num_slots`
  // sequences of at most `max_positions`. Throws Error where memory runs out.
  KvCache(Backend& backend, int64_t num_layers, const AttentionShape& shape, int64_t num_pages,
          int64_t num_slots, int64_t max_positions);

  // Makes room for positions [0, length) of the slot; what it has already, it keeps. False, and
  // nothing changed, where pages run out.
  bool reserve(int64_t slot, int64_t length);
  // Forgets positions from `length` on: whole pages behind it go back. O(pages freed); nothing
  // moves.
  void truncate(int64_t slot, int64_t length);

  int64_t num_pages() const { return num_pages_; }
  int64_t num_free_pages() const { return static_cast<int64_t>(free_pages_.size()); }
  int64_t max_pages_per_slot() const { return max_pages_; }

  // i32 [num_slots, max_pages_per_slot]; what stands behind a slot's reserved pages means nothing.
  TensorView page_tables() const;
  TensorView k_pages(int64_t layer) const;  // bf16 [num_pages, num_kv_heads, kPageTokens, head_dim]
  TensorView v_pages(int64_t layer) const;
  uint64_t state_digest() const;  // of tables and lengths in pages: equal on all ranks

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
  std::vector<std::vector<int32_t>> tables_;  // [num_slots]: the pages that each owns, in order
  std::vector<int32_t> free_pages_;           // a stack
};

}  // namespace outrider
