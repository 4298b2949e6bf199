// Shard: one rank's slice of a model under Megatron's split. Uneven slices are ordinary.
#pragma once

#include <cstdint>

#include "kernels/attention_types.h"
#include "model/model_config.h"

namespace outrider {

// A half-open range of indices.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// Part `rank` of [0, total) cut into `size` parts that differ by at most one.
Range split_range(int64_t total, int rank, int size);
// The same of FFN columns, cut between eights where they divide into enough: rows of activations
// then begin at multiples of 16 bytes on every rank.
Range split_ffn(int64_t columns, int rank, int size);

// Query heads are split as evenly as they can be; a rank holds the KV heads that its query heads
// read, so a KV head whose group is cut (or that has more ranks than one to serve) stands on each
// of them. Where ranks have unlike numbers of heads, who has fewer gets more FFN columns, so that
// a layer's weights are as many on every rank: who has the most is waited for.
struct Shard {
  int rank = 0;
  int size = 1;
  Range heads;  // query heads: QKV by columns, attention output by rows
  Range kv_heads;
  Range intermediate;  // FFN columns
  Range vocab;         // rows of the embedding, and tokens whose logits it writes
  Range head;          // rows of the LM head: `vocab`, or all of a trimmed one
  AttentionShape attention;

  // Throws Error where there are more ranks than query heads, FFN columns or tokens, or more than
  // one for a trimmed head.
  static Shard of(const ModelConfig& config, int rank, int size);
};

}  // namespace outrider
