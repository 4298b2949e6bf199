// See engine_flags.h.
#include "launcher/engine_flags.h"

#include <absl/strings/str_join.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/command_line.h"
#include "launcher/number_checks.h"
#include "model/checkpoint_hash.h"
#include "model/draft_head.h"
#include "spec/drafters.h"
#include "spec/table_drafter.h"

namespace outrider {
namespace {

constexpr char kNowhere[] = "none";  // as --default-drafts

// Throws CLI::ValidationError.
LookaheadPolicy read_lookahead(const std::string& text) {
  const auto policy = parse_lookahead(text);
  if (policy) return *policy;
  throw CLI::ValidationError(
      "--lookahead", "is \"" + text +
                         "\"; expected adaptive, fixed:K, table or table:BATCH=K,… with rising "
                         "batches and K in 0 … " +
                         std::to_string(kMaxDraftTokens));
}

}  // namespace

void add_model_flags(CLI::App& command, EngineOptions& options) {
  const CLI::Validator directory = not_empty("a directory");
  command.add_option("--model", options.model, "A Hugging Face directory")
      ->required()
      ->check(directory);
  command
      .add_option_function<std::string>(
          "--draft", [&options](const std::string& path) { options.draft = path; },
          "A draft model's directory, with the model's vocabulary")
      ->check(directory);
  command
      .add_option_function<std::string>(
          "--draft-head", [&options](const std::string& path) { options.draft_head = path; },
          "The directory of a draft head made for this model")
      ->check(directory);
  command
      .add_option_function<std::string>(
          "--draft-counts", [&options](const std::string& path) { options.draft_counts = path; },
          "A file of token counts: the drafters bigram and unigram")
      ->check(not_empty("a file"));
  command
      .add_option("--prefill-chunk", options.prefill_chunk,
                  "Most prompt tokens in one step (default 256)")
      ->check(CLI::Range(1, 1 << 16));
  command
      .add_option("--max-positions", options.max_positions,
                  "Longest prompt and answer, in tokens (default: max_position_embeddings or "
                  "n_positions of its config.json)")
      ->check(CLI::Range(2, 1 << 30));
}

DefaultDrafts::DefaultDrafts() : directory_(OUTRIDER_MODELS_DIRECTORY) {}

void DefaultDrafts::add_to(CLI::App& command) {
  command
      .add_option("--default-drafts", directory_,
                  "Where to look for a draft head and token counts made for this model where no "
                  "flag gives what drafts, or none (default: the repository's models)")
      ->check([](const std::string& path) {
        std::error_code unreadable;
        return path == kNowhere || std::filesystem::is_directory(path, unreadable)
                   ? ""
                   : "is " + path + "; expected a directory, or none";
      });
}

bool DefaultDrafts::look_for(DrafterKind drafter) const {
  return directory_ != kNowhere && drafter != DrafterKind::model;
}

std::string DefaultDrafts::choose(EngineOptions& options, std::optional<DrafterKind> asked) const {
  options.model_hash = checkpoint_hash(options.model);
  const bool open = !asked && !options.draft && !options.draft_head;
  const bool wants_head =
      open || asked == DrafterKind::head || (asked == DrafterKind::model && !options.draft);
  const bool wants_counts = open || asked == DrafterKind::bigram || asked == DrafterKind::unigram;
  std::vector<std::string> said;
  if (wants_head && !options.draft_head && directory_ != kNowhere) {
    options.draft_head = find_draft_head(directory_, options.model_hash);
    said.push_back(options.draft_head
                       ? "drafting with " + options.draft_head->string() + ", made for this model"
                       : "no draft head for this model in " + directory_);
  }
  if (wants_counts && !options.draft_counts && directory_ != kNowhere) {
    options.draft_counts = find_counts(directory_, file_hash(options.model / "tokenizer.json"));
    if (options.draft_counts) {
      said.push_back("bigram and unigram draft from " + options.draft_counts->string());
    }
  }
  if (options.draft_head) {
    check_head_files(*options.draft_head, options.model, options.model_hash);
  }
  if (options.draft_counts) check_counts(*options.draft_counts, options.model);
  if (asked && *asked != DrafterKind::model) {  // which may mean the head
    check_drafter(*asked, options.drafter_files(), directory_ == kNowhere ? "" : directory_);
  }
  return absl::StrJoin(said, "; ");
}

void add_drafter_flag(CLI::App& command, EngineOptions& options) {
  command
      .add_option_function<std::string>(
          "--drafter",
          [&options](const std::string& name) { options.drafter = drafter_from_name(name); },
          "Who drafts where a request names nobody (default: head where there is a draft head, "
          "model with --draft, else prompt_lookup)")
      ->check(CLI::IsMember(drafter_names()));
}

void add_alternatives_flag(CLI::App& command, EngineOptions& options) {
  command
      .add_option("--alternatives", options.max_alternatives,
                  "Most other candidates for a step's first drafted token that adaptive lookahead "
                  "may have verified beside it, where a request gives none (default 6)")
      ->check(CLI::Range(0, kMaxAlternatives));
}

void add_policy_flags(CLI::App& command, EngineOptions& options) {
  add_drafter_flag(command, options);
  add_alternatives_flag(command, options);
  command.add_option_function<std::string>(
      "--lookahead",
      [&options](const std::string& text) { options.lookahead = read_lookahead(text); },
      "How many tokens are drafted where a request gives no number: adaptive (default) by what "
      "pays, fixed:K, or table:1=4,8=2,… by how many answers share a step");
  command
      .add_option("--tpot-slo", options.tpot_slo_ms,
                  "Milliseconds that a token behind the first shall take at most, where a request "
                  "gives none: adaptive lookahead drafts no more than that allows, and prompts get "
                  "fewer rows beside it (default: no objective)")
      ->check(number_within(0.001, 1e7));
}

void add_batching_flags(CLI::App& command, EngineOptions& options) {
  command
      .add_option("--max-sequences", options.max_sequences,
                  "Answers that are made at once (default 64)")
      ->check(CLI::Range(1, 4096));
  command
      .add_option("--max-rows", options.max_rows,
                  "Rows of a step: prompt tokens, and drafts and one for each answer (default 512)")
      ->check(CLI::Range(kMaxDraftTokens + 2, kMostRows));
  command
      .add_option(
          "--prefill-beside", options.prefill_beside,
          "Most prompt tokens in a step that decodes as well (default: measured, so that it "
          "takes at most 1.4 times as long, a millisecond longer, or as drafts make up for)")
      ->check(CLI::Range(1, 1 << 16));
  command
      .add_option("--kv-cache-tokens", options.kv_cache_tokens,
                  "Positions of the KV cache (default: what 1 GiB on a rank holds; on GPUs, "
                  "--gpu-memory-utilization)")
      ->check(CLI::Range(1, 1 << 30));
  command.add_flag_callback(
      "--no-prefix-cache", [&options] { options.prefix_cache = false; },
      "Compute each prompt anew, even where it begins like an earlier one");
}

void log_progress(EngineOptions& options) {
  options.progress = [last = std::map<std::string, int>()](const std::string& what,
                                                           double done) mutable {
    if (done == 0) spdlog::info("{}", what);
    const int quarter = static_cast<int>(std::floor(done * 4));
    if (std::exchange(last[what], quarter) != quarter && quarter > 0) {
      spdlog::info("{}: {} %", what, quarter * 25);
    }
  };
}

std::string model_name(const EngineOptions& options) {
  return std::filesystem::weakly_canonical(options.model).filename().string();
}

}  // namespace outrider
