// Plain data of attention, shared by the CPU and the CUDA twins.
#pragma once

#include <cstdint>

namespace outrider {

constexpr int64_t kPageTokens = 16;  // positions in a KV page

// One rank's heads. KV head of its query head h: (h + head_offset) / group_size.
struct AttentionShape {
  int64_t num_heads = 0;     // query heads on this rank
  int64_t num_kv_heads = 0;  // KV heads on this rank
  int64_t head_dim = 0;      // even
  int64_t group_size = 0;    // query heads that share a KV head, in the whole model
  int64_t head_offset = 0;   // where this rank's first query head stands in its group

  [[gnu::always_inline]] int64_t qkv_width() const {
    return (num_heads + 2 * num_kv_heads) * head_dim;
  }
};

// Where each row of a ragged pass stands: rows of several sequences, in any number, side by side.
struct RowPointers {
  const int32_t* positions;    // [rows]: position in its sequence, from 0
  const int32_t* sequences;    // [rows]: which page table
  const int32_t* page_tables;  // [sequences, max_pages]: page of each kPageTokens positions
  int64_t max_pages;
};

}  // namespace outrider
