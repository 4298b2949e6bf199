// Every drafter that there is, for tests of what none of them may change.
#pragma once

#include <array>
#include <filesystem>
#include <string>

#include "engine/executor.h"
#include "model/model_config.h"
#include "testing/checkpoints.h"
#include "testing/count_file.h"
#include "testing/temporary_directory.h"

namespace outrider {

inline constexpr std::array kEveryDrafter = {"model",  "head",          "bigram", "unigram",
                                             "random", "prompt_lookup", "ngram"};
static_assert(kEveryDrafter.size() == kNumDrafterKinds - 1);  // all but none

// For as long as the tests run.
inline std::filesystem::path counts_file(int vocab_size) {
  static const TemporaryDirectory directory;
  const std::string name = std::to_string(vocab_size) + ".safetensors";
  if (!exists(directory.path() / name)) directory.write(name, some_counts(vocab_size));
  return directory.path() / name;
}

// Adds a draft, a head and counts for "tiny" or "tiny-v64".
inline EngineOptions with_every_drafter(EngineOptions options) {
  const std::string model = options.model.filename();
  options.draft = test_checkpoint(model + "-draft");
  options.draft_head = test_checkpoint(model + "-head");
  options.draft_counts = counts_file(static_cast<int>(ModelConfig::load(options.model).vocab_size));
  return options;
}

}  // namespace outrider
