// What `outrider plan` finds, and how it says it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/roofline.h"
#include "model/model_config.h"
#include "spec/step_cost.h"

namespace outrider {

struct PlanOptions {
  std::string model;                             // a Hugging Face directory, or a shape file
  std::optional<std::string> draft, draft_head;  // one of them at most
  int ranks = 1;
  std::string device = "H200";
  std::vector<int64_t> rows = {1, 2, 5, 8, 16};  // of each sequence
  int64_t sequences = 1;
  std::optional<int64_t> context;  // unset: 1024, or less where the model has no room for it
  bool sampled = false;
  double alpha = 0.7;
  int num_speculative_tokens = 4;
  double exchange_us = 0;
  ServerShape server;
  double gpu_memory_utilization = 0.9;
  bool json = false;
};

// A pass on the rank that it takes longest on.
struct PlannedPass {
  int64_t rows = 0;  // of all sequences
  int rank = 0;
  PassCost cost;
  Roofline time;
};

struct ServingPlan {
  PlanOptions options;
  ModelConfig model;
  std::optional<ModelConfig> draft;
  std::optional<DraftHeadConfig> head;
  GpuModel gpu;
  int fullest_rank = 0;
  MemoryCost memory;      // on that rank
  int64_t kv_tokens = 0;  // that fit on every rank; negative: bytes too few for the rest
  int64_t kv_tokens_wanted = 0;
  std::vector<PlannedPass> target;  // one of options.rows each, verification with it
  std::optional<PlannedPass> draft_round;
  double plain_tokens_per_second = 0;
  double expected_tokens = 0;  // of a speculative step and sequence
  double speculative_step_seconds = 0;
  double speculative_tokens_per_second = 0;

  // What a server takes of a GPU's memory at most.
  int64_t usable_bytes() const {
    return static_cast<int64_t>(options.gpu_memory_utilization *
                                static_cast<double>(gpu.memory_bytes));
  }
  bool fits() const { return kv_tokens >= kv_tokens_wanted; }
};

// Throws Error naming the flag that is wrong.
ServingPlan make_plan(const PlanOptions& options);

std::string plan_as_text(const ServingPlan& plan);
std::string plan_as_json(const ServingPlan& plan);

}  // namespace outrider
