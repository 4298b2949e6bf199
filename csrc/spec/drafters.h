// Drafters: those that a server has, made from the files that it was given.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "model/model_config.h"
#include "model/tokenizer.h"
#include "spec/drafter.h"
#include "spec/drafter_kind.h"

namespace outrider {

struct DrafterFiles {
  std::optional<std::filesystem::path> model;   // a checkpoint with the target's vocabulary
  std::optional<std::filesystem::path> head;    // of the target: tools/distill_draft.py
  std::optional<std::filesystem::path> counts;  // a file of tools/count_tokens.py
};

// Whom they draft for.
struct DrafterTarget {
  const std::filesystem::path& directory;
  const std::string& hash;  // checkpoint_hash of it
  const ModelConfig& config;
  const Tokenizer& tokenizer;
};

struct DrafterSizes {
  int64_t num_pages = 0;  // of a drafter's KV cache
  int64_t num_slots = 0;
  int64_t max_rows = 0;  // of a drafter's pass
};

// That need no files, or whose files are there.
std::vector<DrafterKind> drafters_at_hand(const DrafterFiles& files);

// The drafter `chosen`, or what is likeliest to pay of those that there are.
DrafterKind default_drafter(const DrafterFiles& files, std::optional<DrafterKind> chosen);

// Throws Error where the drafter needs a file that is not given, naming its flag, and the directory
// that was looked in for it, if any.
void check_drafter(DrafterKind kind, const DrafterFiles& files, const std::string& looked_in = "");
// Reads what there is to be wrong in a draft model, without its weights. Throws Error.
void check_draft_model(const std::filesystem::path& draft, const ModelConfig& target,
                       const Tokenizer& tokenizer);
// The same of a head for the target in this directory with this hash.
void check_head_files(const std::filesystem::path& head, const std::filesystem::path& target,
                      const std::string& target_hash);
// The same of counts for the target in this directory.
void check_counts(const std::filesystem::path& counts, const std::filesystem::path& target);

class Drafters {
 public:
  // Every rank calls this: what their drafters' packed weights take is shared by those of a host.
  // Throws Error for files that are bad, or made for another target.
  Drafters(const DrafterFiles& files, const DrafterTarget& target, const DrafterSizes& sizes,
           Backend& backend, Communicator& communicator,
           const std::function<void(double)>& progress);

  // Null: it copies, or is not at hand.
  LogitDrafter* find(DrafterKind kind) const { return made_.at(static_cast<int>(kind)).get(); }
  // `model`, or null.
  ModelDrafter* model() const { return model_; }
  // Of the target, whose inputs it is to keep (Transformer::keep_states).
  const std::vector<int32_t>& aux_layers() const { return aux_layers_; }
  // Of the files, and over how many ranks a head is split; empty: none were given.
  const std::string& hash() const { return hash_; }

 private:
  std::array<std::unique_ptr<LogitDrafter>, kNumDrafterKinds> made_;  // by DrafterKind
  ModelDrafter* model_ = nullptr;
  std::vector<int32_t> aux_layers_;
  std::string hash_;
};

}  // namespace outrider
