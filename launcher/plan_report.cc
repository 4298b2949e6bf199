#include "launcher/plan_report.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "kernels/verify_types.h"
#include "model/weights.h"
#include "spec/theory.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMega = 1e6, kGiga = 1e9, kMilli = 1e-3;
constexpr double kGiB = int64_t{1} << 30;
constexpr int64_t kDefaultContext = 1024;

ModelConfig load(const std::string& path) {
  return std::filesystem::is_directory(path) ? ModelConfig::load(path)
                                             : ModelConfig::load_shape(path);
}

// Runs `body`, whose Error gets the flag to its front.
template <typename Body>
auto blaming(const std::string& flag, Body body) {
  try {
    return body();
  } catch (const Error& error) {
    throw Error(flag + ": " + error.what());
  }
}

// What the whole model holds.
int64_t parameters(ModelConfig config) {
  config.matrix_format = WeightFormat::bf16;
  return weight_bytes(config, Shard::of(config, 0, 1)).held / 2;
}

StepShape step_shape(const ServingPlan& plan, int num_draft_tokens) {
  const PlanOptions& options = plan.options;
  return {options.sequences,
          *options.context,
          num_draft_tokens,
          options.sampled,
          options.server.max_positions,
          options.server.numerics};
}

StepCost step_on(const ServingPlan& plan, int rank, int num_draft_tokens) {
  return step_cost(plan.model, Shard::of(plan.model, rank, plan.options.ranks),
                   plan.draft ? &*plan.draft : nullptr, step_shape(plan, num_draft_tokens),
                   plan.head ? &*plan.head : nullptr);
}

PlannedPass timed(const ServingPlan& plan, int64_t rows, int rank, const PassCost& cost) {
  return {rows * plan.options.sequences, rank, cost,
          roofline(plan.gpu, cost.operations, cost.exchanges, plan.options.exchange_us * 1e-6)};
}

PlannedPass target_pass(const ServingPlan& plan, int64_t rows) {
  PlannedPass slowest;
  for (int rank = 0; rank < plan.options.ranks; ++rank) {
    const StepCost step = step_on(plan, rank, static_cast<int>(rows - 1));
    PassCost cost = step.target;
    cost += step.verify;
    const PlannedPass pass = timed(plan, rows, rank, cost);
    if (rank == 0 || pass.time.seconds() > slowest.time.seconds()) slowest = pass;
  }
  return slowest;
}

void plan_memory(ServingPlan& plan) {
  const PlanOptions& options = plan.options;
  // As serving does, the rows of a step behind the context have pages too.
  const int64_t positions = *options.context + kMaxDraftTokens + 1;
  plan.kv_tokens_wanted =
      options.sequences * ((positions + kPageTokens - 1) / kPageTokens) * kPageTokens;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const MemoryCost cost = memory_cost(plan.model, Shard::of(plan.model, rank, options.ranks),
                                        plan.draft ? &*plan.draft : nullptr, options.server,
                                        plan.head ? &*plan.head : nullptr);
    const int64_t tokens = kv_tokens_that_fit(cost, plan.usable_bytes());
    if (rank > 0 && tokens >= plan.kv_tokens) continue;
    plan.fullest_rank = rank;
    plan.memory = cost;
    plan.kv_tokens = tokens;
  }
}

// Bytes that are missing on the fullest rank; not positive where it fits.
int64_t missing_bytes(const ServingPlan& plan) {
  return fixed_bytes(plan.memory) + plan.kv_tokens_wanted / kPageTokens * plan.memory.page_bytes -
         plan.usable_bytes();
}

std::string described(const std::string& path, const ModelConfig& config) {
  return absl::StrFormat(
      "%s: %d layers of %d, %d heads over %d KV heads, vocabulary %d, %.2f B parameters", path,
      config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads,
      config.vocab_size, static_cast<double>(parameters(config)) / kGiga);
}

std::string memory_text(const ServingPlan& plan) {
  const MemoryCost& memory = plan.memory;
  const auto line = [](const char* what, int64_t bytes) {
    return absl::StrFormat("  %-16s%10.2f\n", what, static_cast<double>(bytes) / kGiB);
  };
  std::string text =
      absl::StrFormat("\nMemory of rank %d, the fullest, GiB of %.2f (%.3g of %.2f)\n",
                      plan.fullest_rank, plan.usable_bytes() / kGiB,
                      plan.options.gpu_memory_utilization, plan.gpu.memory_bytes / kGiB);
  text += line("weights", memory.weights);
  if (plan.draft || plan.head) text += line("draft's weights", memory.draft_weights);
  text += line("workspace", memory.workspace);
  text += line("reserved", memory.context + memory.reserved);
  if (plan.kv_tokens > 0) {
    text += line("KV cache", plan.kv_tokens / kPageTokens * memory.page_bytes);
  }
  if (plan.fits()) {
    return text + absl::StrFormat("fits: the KV cache has room for %d tokens; %d are wanted\n",
                                  plan.kv_tokens, plan.kv_tokens_wanted);
  }
  return text + absl::StrFormat("does not fit: %.2f GiB too little for %d tokens of KV cache\n",
                                static_cast<double>(missing_bytes(plan)) / kGiB,
                                plan.kv_tokens_wanted);
}

std::string pass_text(const std::string& name, const PlannedPass& pass) {
  const OperationCost& operations = pass.cost.operations;
  const ExchangeCost& exchanges = pass.cost.exchanges;
  return absl::StrFormat("%-12s%10.1f%10.1f%10.2f%10.2f%9d%11d%11.1f%10.3f%10.3f%10.3f%10.3f\n",
                         name, operations.weight_bytes / kMega, operations.kv_bytes / kMega,
                         operations.activation_bytes / kMega, operations.flops / kGiga,
                         operations.launches + exchanges.launches, exchanges.exchanges,
                         exchanges.bytes / 1e3, pass.time.memory_seconds / kMilli,
                         pass.time.compute_seconds / kMilli, pass.time.exchange_seconds / kMilli,
                         pass.time.seconds() / kMilli);
}

std::string passes_text(const ServingPlan& plan) {
  std::string text = absl::StrFormat(
      "\nA pass with its verification, on the rank that it takes longest on\n"
      "%-12s%10s%10s%10s%10s%9s%11s%11s%10s%10s%10s%10s\n",
      "rows", "weights", "KV", "other", "GFLOP", "kernels", "exchanges", "of them", "bytes",
      "FLOPs", "exchanges", "in all");
  text += absl::StrFormat("%-12s%10s%10s%10s%10s%9s%11s%11s%10s%10s%10s%10s\n", "", "MB", "MB",
                          "MB", "", "", "", "kB", "ms", "ms", "ms", "ms");
  for (const PlannedPass& pass : plan.target) {
    text += pass_text(absl::StrFormat("%d", pass.rows), pass);
  }
  if (plan.draft_round) text += pass_text("draft round", *plan.draft_round);
  return text;
}

std::string prediction_text(const ServingPlan& plan) {
  const PlanOptions& options = plan.options;
  std::string text = absl::StrFormat(
      "\nAt most, since nothing but the above is counted%s\n"
      "plain                %8.1f tokens a second\n"
      "K = %-2d alpha = %-5.3g%8.1f tokens a second: %.2f tokens a step and sequence, %.3f ms a "
      "step",
      options.ranks > 1 && options.exchange_us == 0 ? " (exchanges by their bytes alone)" : "",
      plan.plain_tokens_per_second, options.num_speculative_tokens, options.alpha,
      plan.speculative_tokens_per_second, plan.expected_tokens,
      plan.speculative_step_seconds / kMilli);
  return text + absl::StrFormat(", %.2f times as fast\n",
                                plan.speculative_tokens_per_second / plan.plain_tokens_per_second);
}

Json pass_json(const PlannedPass& pass) {
  const OperationCost& operations = pass.cost.operations;
  const ExchangeCost& exchanges = pass.cost.exchanges;
  return {{"rows", pass.rows},
          {"rank", pass.rank},
          {"weight_bytes", operations.weight_bytes},
          {"kv_bytes", operations.kv_bytes},
          {"activation_bytes", operations.activation_bytes},
          {"flops", operations.flops},
          {"kernel_launches", operations.launches + exchanges.launches},
          {"exchanges", exchanges.exchanges},
          {"exchange_bytes", exchanges.bytes},
          {"memory_ms", pass.time.memory_seconds / kMilli},
          {"compute_ms", pass.time.compute_seconds / kMilli},
          {"exchange_ms", pass.time.exchange_seconds / kMilli},
          {"ms", pass.time.seconds() / kMilli}};
}

}  // namespace

ServingPlan make_plan(const PlanOptions& options) {
  ServingPlan plan;
  plan.options = options;
  const GpuModel* gpu = find_gpu_model(options.device);
  if (gpu == nullptr) throw Error("--device " + options.device + ": not a GPU that is known here");
  plan.gpu = *gpu;
  plan.model = blaming("--model", [&] { return load(options.model); });
  blaming("--ranks " + std::to_string(options.ranks),
          [&] { return Shard::of(plan.model, options.ranks - 1, options.ranks); });
  if (options.draft) {
    plan.draft = blaming("--draft", [&] { return load(*options.draft); });
    plan.draft->matrix_format = kDraftWeights;
    if (plan.draft->vocab_size != plan.model.vocab_size) {
      throw Error("--draft " + *options.draft + ": vocab_size is " +
                  std::to_string(plan.draft->vocab_size) + ", expected the model's, " +
                  std::to_string(plan.model.vocab_size));
    }
  }
  if (options.draft_head) {
    plan.head = blaming("--draft-head", [&] { return DraftHeadConfig::load(*options.draft_head); });
    const auto expect = [&](const char* field, int64_t found, int64_t expected) {
      if (found == expected) return;
      throw Error(absl::StrFormat("--draft-head %s: %s is %d; expected the model's, %d",
                                  *options.draft_head, field, found, expected));
    };
    expect("hidden_size", plan.head->hidden_size, plan.model.hidden_size);
    expect("vocab_size", plan.head->vocab_size, plan.model.vocab_size);
    const std::vector<int32_t>& aux = plan.head->aux_layers;
    if (!aux.empty() && aux.back() >= plan.model.num_layers) {
      throw Error(absl::StrFormat(
          "--draft-head %s: aux_hidden_state_layers has %d; expected the model's layers, 0 to %d",
          *options.draft_head, aux.back(), plan.model.num_layers - 1));
    }
  }
  int64_t& max_positions = plan.options.server.max_positions;
  if (max_positions == 0) max_positions = plan.model.max_position_embeddings;
  if (max_positions > plan.model.max_position_embeddings) {
    throw Error("--max-positions is " + std::to_string(max_positions) +
                "; expected at most the model's max_position_embeddings, " +
                std::to_string(plan.model.max_position_embeddings));
  }
  const int64_t most_rows =
      std::max<int64_t>(*std::max_element(options.rows.begin(), options.rows.end()),
                        options.num_speculative_tokens + 1);
  const int64_t room = max_positions - most_rows;
  int64_t& context = plan.options.context.emplace(
      options.context.value_or(std::clamp<int64_t>(room, 0, kDefaultContext)));
  if (context > room) {
    throw Error("--context is " + std::to_string(context) + "; expected at most " +
                std::to_string(room) + ", with " + std::to_string(most_rows) + " rows behind it");
  }

  plan_memory(plan);
  for (const int64_t rows : options.rows) plan.target.push_back(target_pass(plan, rows));
  if (plan.draft || plan.head) plan.draft_round = timed(plan, 1, 0, step_on(plan, 0, 0).draft);

  const auto sequences = static_cast<double>(options.sequences);
  const int k = options.num_speculative_tokens;
  plan.plain_tokens_per_second = sequences / target_pass(plan, 1).time.seconds();
  plan.expected_tokens = expected_tokens(options.alpha, k);
  plan.speculative_step_seconds = target_pass(plan, k + 1).time.seconds();
  if (plan.draft_round) plan.speculative_step_seconds += k * plan.draft_round->time.seconds();
  plan.speculative_tokens_per_second =
      sequences * plan.expected_tokens / plan.speculative_step_seconds;
  return plan;
}

std::string plan_as_text(const ServingPlan& plan) {
  const PlanOptions& options = plan.options;
  const GpuModel& gpu = plan.gpu;
  std::string text = "model    " + described(options.model, plan.model) + "\n";
  if (plan.draft) text += "draft    " + described(*options.draft, *plan.draft) + "\n";
  if (plan.head) {
    text += absl::StrFormat("head     %s: one layer of %d, scores %d of %d tokens\n",
                            *options.draft_head, plan.head->hidden_size,
                            plan.head->draft_token_ids.size(), plan.head->vocab_size);
  }
  text += absl::StrFormat(
      "device   %d x %s: %.1f GiB, %.0f GB/s, %.0f bf16 TFLOP/s, %s %.0f GB/s (%s)\n",
      options.ranks, gpu.name, gpu.memory_bytes / kGiB, gpu.bandwidth / kGiga,
      gpu.bf16_flops / 1e12, gpu.link_name, gpu.link / kGiga, gpu.source);
  text += absl::StrFormat("step     %d sequence%s of %d tokens, %s, numerics %s\n",
                          options.sequences, options.sequences == 1 ? "" : "s", *options.context,
                          options.sampled ? "sampled" : "greedy",
                          numerics_name(options.server.numerics));
  return text + memory_text(plan) + passes_text(plan) + prediction_text(plan);
}

std::string plan_as_json(const ServingPlan& plan) {
  const PlanOptions& options = plan.options;
  const MemoryCost& memory = plan.memory;
  Json passes = Json::array();
  for (const PlannedPass& pass : plan.target) passes.push_back(pass_json(pass));
  Json json = {{"model", options.model},
               {"draft", options.draft ? Json(*options.draft) : Json()},
               {"draft_head", options.draft_head ? Json(*options.draft_head) : Json()},
               {"parameters", parameters(plan.model)},
               {"ranks", options.ranks},
               {"device",
                {{"name", plan.gpu.name},
                 {"memory_bytes", plan.gpu.memory_bytes},
                 {"bandwidth", plan.gpu.bandwidth},
                 {"bf16_flops", plan.gpu.bf16_flops},
                 {"link_bandwidth", plan.gpu.link},
                 {"source", plan.gpu.source}}},
               {"sequences", options.sequences},
               {"context", *options.context},
               {"sampled", options.sampled},
               {"numerics", numerics_name(options.server.numerics)},
               {"memory",
                {{"rank", plan.fullest_rank},
                 {"utilization", options.gpu_memory_utilization},
                 {"weight_bytes", memory.weights},
                 {"draft_weight_bytes", memory.draft_weights},
                 {"workspace_bytes", memory.workspace},
                 {"reserved_bytes", memory.context + memory.reserved},
                 {"kv_bytes_per_token", memory.page_bytes / kPageTokens},
                 {"kv_tokens", std::max<int64_t>(plan.kv_tokens, 0)},
                 {"kv_tokens_wanted", plan.kv_tokens_wanted},
                 {"fits", plan.fits()},
                 {"missing_bytes", std::max<int64_t>(missing_bytes(plan), 0)}}},
               {"passes", passes},
               {"draft_round", plan.draft_round ? pass_json(*plan.draft_round) : Json()},
               {"predicted",
                {{"plain_tokens_per_second", plan.plain_tokens_per_second},
                 {"num_speculative_tokens", options.num_speculative_tokens},
                 {"alpha", options.alpha},
                 {"expected_tokens", plan.expected_tokens},
                 {"speculative_step_ms", plan.speculative_step_seconds / kMilli},
                 {"speculative_tokens_per_second", plan.speculative_tokens_per_second}}}};
  return json.dump(1) + "\n";
}

}  // namespace outrider
