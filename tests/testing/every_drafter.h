// Every drafter that there is, for tests of what none of them may change.
#pragma once

#include <array>
#include <filesystem>
#include <string>

#include "engine/executor.h"
#include "model/checkpoint_hash.h"
#include "model/model_config.h"
#include "testing/checkpoints.h"
#include "testing/count_file.h"
#include "testing/temporary_directory.h"

namespace outrider {

inline constexpr std::array kEveryDrafter = {"model",  "head",          "bigram", "unigram",
                                             "random", "prompt_lookup", "ngram"};
static_assert(kEveryDrafter.size() == kNumDrafterKinds - 1);  // all but none

// For a test's checkpoint, for as long as the tests run.
inline std::filesystem::path counts_file(const std::filesystem::path& model) {
  static const TemporaryDirectory directory;
  const std::string name = model.filename().string() + ".safetensors";
  if (!exists(directory.path() / name)) {
    directory.write(name, some_counts(static_cast<int32_t>(ModelConfig::load(model).vocab_size),
                                      file_hash(model / "tokenizer.json")));
  }
  return directory.path() / name;
}

// Adds a draft, a head and counts for "tiny" or "tiny-v64".
inline EngineOptions with_every_drafter(EngineOptions options) {
  const std::string model = options.model.filename();
  options.draft = test_checkpoint(model + "-draft");
  options.draft_head = test_checkpoint(model + "-head");
  options.draft_counts = counts_file(options.model);
  return options;
}

}  // namespace outrider
