// `outrider plan`: what a step would move, compute and exchange on GPUs, how long it takes at
// least, and whether it all fits. Nothing is run, and no GPU is needed.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "launcher/command_line.h"
#include "launcher/device_selection.h"
#include "launcher/engine_flags.h"
#include "launcher/plan_report.h"

namespace outrider {
namespace {

int plan(const PlanOptions& options) {
  const ServingPlan plan = make_plan(options);
  const std::string text = options.json ? plan_as_json(plan) : plan_as_text(plan);
  std::fputs(text.c_str(), stdout);
  return 0;
}

std::vector<std::string> gpu_names() {
  std::vector<std::string> names;
  for (const GpuModel& gpu : gpu_models()) names.emplace_back(gpu.name);
  return names;
}

}  // namespace

void add_plan_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<PlanOptions>();
  const EngineOptions defaults;
  options->server = {defaults.max_sequences, defaults.max_rows, defaults.max_positions};
  CLI::App* command =
      app.add_subcommand("plan", "Say what a step costs on GPUs, and whether a model fits");
  command
      ->add_option("--model", options->model,
                   "A Hugging Face directory, or a file with fields of config.json")
      ->required();
  CLI::Option* const draft = command->add_option_function<std::string>(
      "--draft", [options](const std::string& path) { options->draft = path; },
      "A draft model, likewise");
  draft->check(not_empty("a directory or a file"));
  command
      ->add_option_function<std::string>(
          "--draft-head", [options](const std::string& path) { options->draft_head = path; },
          "A draft head's directory")
      ->check(not_empty("a directory"))
      ->excludes(draft);
  command->add_option("--ranks", options->ranks, "GPUs that the model is cut over (default 1)")
      ->check(CLI::Range(1, kMaxRanks));
  command->add_option("--device", options->device, "Which GPU (default H200)")
      ->check(CLI::IsMember(gpu_names(), CLI::ignore_case));
  command
      ->add_option("--rows", options->rows,
                   "Rows of each sequence in a pass, with commas: K + 1 (default 1,2,5,8,16)")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxDraftTokens + 1));
  command->add_option("--sequences", options->sequences, "Answers made at once (default 1)")
      ->check(CLI::Range(1, 4096));
  command
      ->add_option("--context", options->context,
                   "Tokens of each in the cache (default 1024, or what the model has room for)")
      ->check(CLI::Range(0, 1 << 20));
  command->add_flag("--sampled", options->sampled, "Sampled, not greedy: one exchange more");
  command
      ->add_option("--alpha", options->alpha,
                   "Probability that a drafted token is accepted (default 0.7)")
      ->check(CLI::Range(0.0, 1.0));
  command
      ->add_option("--num-speculative-tokens", options->num_speculative_tokens,
                   "K of the prediction (default 4)")
      ->check(CLI::Range(0, kMaxDraftTokens));
  command
      ->add_option("--exchange-us", options->exchange_us,
                   "Microseconds of an exchange beside its bytes (default 0)")
      ->check(CLI::Range(0.0, 1e6));
  command->add_option("--max-sequences", options->server.max_sequences, "As of serve (default 64)")
      ->check(CLI::Range(1, 4096));
  command->add_option("--max-rows", options->server.max_rows, "As of serve (default 512)")
      ->check(CLI::Range(kMaxDraftTokens + 2, kMostRows));
  command->add_option("--max-positions", options->server.max_positions, "As of serve")
      ->check(CLI::Range(2, 1 << 30));
  command
      ->add_option("--gpu-memory-utilization", options->gpu_memory_utilization,
                   "As of serve (default 0.9)")
      ->check(CLI::Range(0.0, 1.0));
  add_numerics_flag(*command, options->server.numerics);
  command->add_flag("--json", options->json, "JSON instead of tables");
  command->callback([options, &action] { action = [options] { return plan(*options); }; });
}

}  // namespace outrider
