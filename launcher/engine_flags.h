// Flags that say which models are loaded, and how they are used.
#pragma once

#include <optional>
#include <string>

#include "engine/executor.h"

namespace CLI {
class App;
}  // namespace CLI

namespace outrider {

// Of a step, at most. The second dimension of a CUDA grid, which is at most 65535, counts rows, and
// in verification as many again, for log-probabilities of them.
constexpr int kMostRows = 32767;

// --model, --draft, --prefill-chunk and --max-positions. `options` outlives the command.
void add_model_flags(CLI::App& command, EngineOptions& options);

// --default-drafts: where a draft head and counts made for the model may lie, for whoever names no
// drafter, or one of theirs.
class DefaultDrafts {
 public:
  DefaultDrafts();
  void add_to(CLI::App& command);
  // Whether what this drafter needs may be found: a draft model never is.
  bool look_for(DrafterKind drafter) const;
  // Fills in the model's hash, which is read once, and what there is for it to draft with where no
  // flag gives it: a draft head and counts where nobody asks for a drafter, else what `asked`
  // needs and then has to have. Checks heads and counts, found or given. Returns what was looked
  // for in words, for the log; empty where nothing was. Throws Error.
  std::string choose(EngineOptions& options, std::optional<DrafterKind> asked) const;

 private:
  std::string directory_;  // or "none"
};

// --drafter alone, and --alternatives.
void add_drafter_flag(CLI::App& command, EngineOptions& options);
void add_alternatives_flag(CLI::App& command, EngineOptions& options);

// --drafter, --lookahead, --alternatives and --tpot-slo: what holds where a request says nothing.
void add_policy_flags(CLI::App& command, EngineOptions& options);

// --max-sequences, --max-rows, --prefill-beside, --kv-cache-tokens and --no-prefix-cache: how
// answers share steps and the cache.
void add_batching_flags(CLI::App& command, EngineOptions& options);

// Logs a line for each quarter of the loading, and one where measuring begins.
void log_progress(EngineOptions& options);

// The directory's own name, whatever way it was written.
std::string model_name(const EngineOptions& options);

}  // namespace outrider
