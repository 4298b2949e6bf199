// What one pass of a Transformer costs a rank on a GPU: the operations and exchanges of
// Transformer::forward, in its order, with their sizes. Pure arithmetic.
#pragma once

#include <cstdint>

#include "backend/operation_cost.h"
#include "comm/exchange_cost.h"
#include "core/numerics.h"
#include "model/draft_head.h"
#include "model/model_config.h"
#include "model/shard.h"

namespace outrider {

struct PassShape {
  AttendingRows rows;
  int64_t num_logits = 0;     // rows whose logits are wanted; 0: keys and values alone
  int64_t max_positions = 0;  // of a page table
  Numerics numerics = Numerics::exact;
};

struct PassCost {
  OperationCost operations;
  ExchangeCost exchanges;

  PassCost& operator+=(const PassCost& other);
};

PassCost pass_cost(const ModelConfig& config, const Shard& shard, const PassShape& shape);

// Of DraftHead::forward.
PassCost draft_head_cost(const DraftHeadConfig& config, int64_t rows,
                         Numerics numerics = Numerics::exact);
// Of DraftHead::project, with auxiliary layers.
PassCost aux_projection_cost(const DraftHeadConfig& config, int64_t rows, Numerics numerics);

// Bytes that a rank holds of a model on a GPU, packed.
int64_t cuda_weight_bytes(const ModelConfig& config, const Shard& shard);
// … and of a draft head, with its copy of the target's embedding.
int64_t cuda_weight_bytes(const DraftHeadConfig& config);

// Bytes beside the weights, the KV pages and the backend's scratch memory: the tables of rotary
// angles, and what a pass of max_rows rows writes. max_positions: the longest context.
int64_t transformer_workspace_bytes(const ModelConfig& config, const Shard& shard, int64_t max_rows,
                                    int64_t max_positions);
int64_t draft_head_workspace_bytes(const DraftHeadConfig& config, int64_t max_rows);

}  // namespace outrider
