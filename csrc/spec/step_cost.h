// What a speculative step costs a rank on a GPU, part by part, and the memory it takes: the
// operations of SpeculativeStep::run and Verifier::enqueue with their sizes. Pure arithmetic.
#pragma once

#include <cstdint>

#include "core/numerics.h"
#include "model/pass_cost.h"

namespace outrider {

// A step in which every sequence decodes.
struct StepShape {
  int64_t sequences = 1;
  int64_t context = 0;        // positions of each in the cache
  int num_draft_tokens = 0;   // K
  bool sampled = false;       // some sequence does not decode greedily
  int64_t max_positions = 0;  // of a page table
  Numerics numerics = Numerics::exact;
};

struct StepCost {
  PassCost draft;   // one round: a row a sequence, and the drawing of its token
  PassCost target;  // K + 1 rows a sequence, and what a head makes of its states once
  PassCost verify;
};

// draft, head: whole on each rank, one of them at most; null: what drafts costs nothing here.
StepCost step_cost(const ModelConfig& target, const Shard& shard, const ModelConfig* draft,
                   const StepShape& shape, const DraftHeadConfig* head = nullptr);

// A server's sizes: engine/executor.h, EngineOptions.
struct ServerShape {
  int64_t max_sequences = 0;
  int64_t max_rows = 0;
  int64_t max_positions = 0;
  Numerics numerics = Numerics::exact;
};

// Bytes on one rank.
struct MemoryCost {
  int64_t weights = 0;
  int64_t draft_weights = 0;
  int64_t workspace = 0;   // all that a step writes and the KV cache is not
  int64_t page_bytes = 0;  // of a KV page, in the target's layers and in the draft's
  int64_t context = 0;     // of CUDA, with its kernels
  int64_t reserved = 0;    // for NCCL, graphs and what is too small to be counted here
};
// draft, head: each null where there is none.
MemoryCost memory_cost(const ModelConfig& target, const Shard& shard, const ModelConfig* draft,
                       const ServerShape& server, const DraftHeadConfig* head = nullptr);

// All but the KV cache.
int64_t fixed_bytes(const MemoryCost& cost);

// Positions of the KV cache that fit beside the rest; below zero: bytes that are missing for the
// rest alone.
int64_t kv_tokens_that_fit(const MemoryCost& cost, int64_t memory_bytes);

}  // namespace outrider
