// Flags that say which models are loaded, and how they are used.
#pragma once

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

// --default-drafts: where a draft head made for the model may lie, for whoever names no drafter.
class DefaultDrafts {
 public:
  DefaultDrafts();
  void add_to(CLI::App& command);
  // Fills in the model's hash, which is read once, and the draft head that there is for it where no
  // flag says who drafts. Returns that in words, for the log; empty where a flag does, or nobody is
  // to look. Throws Error.
  std::string choose(EngineOptions& options) const;

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
