#include "spec/drafters.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "model/checkpoint_hash.h"
#include "model/draft_head.h"
#include "model/json_file.h"
#include "model/safetensors.h"
#include "model/weights.h"
#include "spec/head_drafter.h"
#include "spec/table_drafter.h"

namespace outrider {

namespace {

struct DrafterSource {
  const std::optional<std::filesystem::path>* file = nullptr;  // null: it needs none
  const char* flag = "";                                       // by which a server is given it
};

DrafterSource source_of(DrafterKind kind, const DrafterFiles& files) {
  switch (kind) {
    case DrafterKind::model:
      return {&files.model, "--draft DIR"};
    case DrafterKind::head:
      return {&files.head, "--draft-head DIR"};
    case DrafterKind::bigram:
    case DrafterKind::unigram:
      return {&files.counts, "--draft-counts FILE"};
    case DrafterKind::none:
    case DrafterKind::prompt_lookup:
    case DrafterKind::ngram:
    case DrafterKind::random:
      return {};
  }
  return {};
}

bool at_hand(DrafterKind kind, const DrafterFiles& files) {
  const DrafterSource source = source_of(kind, files);
  return source.file == nullptr || source.file->has_value();
}

// A draft whose token ids mean other text would draft nonsense at best; one of another size cannot
// be verified.
void check_same_vocabulary(const std::filesystem::path& directory, const Tokenizer& tokenizer,
                           const ModelConfig& target, const ModelConfig& draft) {
  if (draft.vocab_size != target.vocab_size) {
    throw Error(directory.string() + ": the draft's vocab_size is " +
                std::to_string(draft.vocab_size) + ", expected the target's, " +
                std::to_string(target.vocab_size));
  }
  if (!std::filesystem::exists(directory / "tokenizer.json")) {
    throw Error(directory.string() +
                ": holds no tokenizer.json; expected a whole checkpoint (tools/complete_draft.py "
                "makes one of a draft without what it shares with its target)");
  }
  const Tokenizer other = Tokenizer::load(directory);
  if (other.vocab_size() < tokenizer.vocab_size()) {
    throw Error(directory.string() + "/tokenizer.json: has " + std::to_string(other.vocab_size()) +
                " tokens, expected the target's, " + std::to_string(tokenizer.vocab_size()));
  }
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (other.token(id) != tokenizer.token(id) ||
        other.is_special(id) != tokenizer.is_special(id)) {
      throw Error(directory.string() + "/tokenizer.json: token " + std::to_string(id) + " is " +
                  quote(other.token(id)) + ", expected the target's, " +
                  quote(tokenizer.token(id)));
    }
  }
}

// The states of another model mean nothing to a head.
void check_head_target(const std::filesystem::path& directory, const DraftHeadConfig& head,
                       const std::string& target_hash) {
  if (head.target.empty() || head.target == target_hash) return;
  throw Error((directory / "config.json").string() + ": target is " + head.target +
              "; expected the hash of --model, " + target_hash);
}

CountTables load_counts(const std::filesystem::path& counts, const std::filesystem::path& target,
                        int64_t vocab_size) {
  return CountTables::load(counts, vocab_size, file_hash(target / "tokenizer.json"));
}

}  // namespace

std::vector<DrafterKind> drafters_at_hand(const DrafterFiles& files) {
  std::vector<DrafterKind> kinds;
  for (int d = 1; d < kNumDrafterKinds; ++d) {
    const auto kind = static_cast<DrafterKind>(d);
    if (at_hand(kind, files)) kinds.push_back(kind);
  }
  return kinds;
}

DrafterKind default_drafter(const DrafterFiles& files, std::optional<DrafterKind> chosen) {
  if (chosen) return *chosen;
  for (const DrafterKind kind : {DrafterKind::head, DrafterKind::model}) {
    if (at_hand(kind, files)) return kind;
  }
  return DrafterKind::prompt_lookup;
}

void check_drafter(DrafterKind kind, const DrafterFiles& files, const std::string& looked_in) {
  if (at_hand(kind, files)) return;
  throw Error("--drafter " + drafter_name(kind) + ": expected " + source_of(kind, files).flag +
              ", found none" +
              (looked_in.empty() ? "" : ", and none for this model in " + looked_in));
}

void check_draft_model(const std::filesystem::path& draft, const ModelConfig& target,
                       const Tokenizer& tokenizer) {
  const ModelConfig config = ModelConfig::load(draft);
  check_same_vocabulary(draft, tokenizer, target, config);
  check_tensors(Checkpoint(draft), config);
}

void check_head_files(const std::filesystem::path& head, const std::filesystem::path& target,
                      const std::string& target_hash) {
  check_head_target(head, check_draft_head(head, target), target_hash);
}

void check_counts(const std::filesystem::path& counts, const std::filesystem::path& target) {
  load_counts(counts, target, ModelConfig::load(target).vocab_size);
}

Drafters::Drafters(const DrafterFiles& files, const DrafterTarget& target,
                   const DrafterSizes& sizes, Backend& backend, Communicator& communicator,
                   const std::function<void(double)>& progress) {
  const int64_t vocab_size = target.config.vocab_size;
  const auto made = [this](DrafterKind kind) -> std::unique_ptr<LogitDrafter>& {
    return made_[static_cast<int>(kind)];
  };
  backend.packed_memory();  // the target's, which differs from rank to rank
  made(DrafterKind::random) = std::make_unique<RandomDrafter>(backend, vocab_size);
  if (files.model) {
    check_same_vocabulary(*files.model, target.tokenizer, target.config,
                          ModelConfig::load(*files.model));
    auto model = std::make_unique<ModelDrafter>(*files.model, backend, sizes.num_pages,
                                                sizes.num_slots, sizes.max_rows, progress);
    model_ = model.get();
    made(DrafterKind::model) = std::move(model);
    hash_ += checkpoint_hash(*files.model);
    for (const std::span<std::byte> memory : backend.packed_memory()) communicator.share(memory);
  }
  if (files.head) {
    auto head = std::make_unique<HeadDrafter>(*files.head, target.directory, backend, communicator,
                                              sizes.num_slots);
    check_head_target(*files.head, head->head().config(), target.hash);
    aux_layers_ = head->head().config().aux_layers;
    hash_ += checkpoint_hash(*files.head) + " in " + std::to_string(head->head().num_parts());
    made(DrafterKind::head) = std::move(head);
  }
  if (files.counts) {
    const CountTables counts = load_counts(*files.counts, target.directory, vocab_size);
    made(DrafterKind::unigram) =
        std::make_unique<TableDrafter>(counts.unigram, backend, sizes.num_slots);
    made(DrafterKind::bigram) =
        std::make_unique<TableDrafter>(counts.bigram, backend, sizes.num_slots);
    hash_ += file_hash(*files.counts);
  }
}

}  // namespace outrider
