#include "engine/executor.h"

#include <algorithm>
#include <cstdio>

#include "core/digest.h"
#include "core/version.h"
#include "model/weights.h"

namespace outrider {

namespace {

constexpr int64_t kNumSlots = 1;  // sequences that run at once

int64_t pages_for(int64_t positions) { return (positions + kPageTokens - 1) / kPageTokens; }

// Rows of the largest step: a prompt chunk, and the decode rows behind it.
int64_t rows_per_step(const EngineOptions& options) {
  return kNumSlots * (options.prefill_chunk + kMaxDraftTokens + 1);
}

std::function<void(double)> progress_of(const EngineOptions& options, const std::string& what) {
  if (!options.progress) return {};
  return [&options, what](double done) { options.progress(what, done); };
}

uint64_t chain(std::span<const int32_t> tokens, uint64_t seed) {
  return digest(tokens.data(), tokens.size_bytes(), seed);
}

// A draft whose token ids mean other text would draft nonsense at best; one of another size cannot
// be verified.
void check_same_vocabulary(const EngineOptions& options, const Tokenizer& tokenizer,
                           const ModelConfig& target, const ModelConfig& draft) {
  if (draft.vocab_size != target.vocab_size) {
    throw Error(options.draft->string() + ": the draft's vocab_size is " +
                std::to_string(draft.vocab_size) + ", expected the target's, " +
                std::to_string(target.vocab_size));
  }
  const Tokenizer other = Tokenizer::load(*options.draft);
  for (int32_t id = 0; id < std::min(tokenizer.vocab_size(), other.vocab_size()); ++id) {
    if (other.token_bytes(id) != tokenizer.token_bytes(id)) {
      throw Error(options.draft->string() + "/tokenizer.json: token " + std::to_string(id) +
                  " is \"" + std::string(other.token_bytes(id)) + "\", expected the target's, \"" +
                  std::string(tokenizer.token_bytes(id)) + "\"");
    }
  }
}

void check_tokenizer(const std::filesystem::path& directory, const Tokenizer& tokenizer,
                     const ModelConfig& config) {
  if (tokenizer.vocab_size() > config.vocab_size) {
    throw Error(directory.string() + "/tokenizer.json: holds token " +
                std::to_string(tokenizer.vocab_size() - 1) +
                ", expected only tokens below config.json's vocab_size, " +
                std::to_string(config.vocab_size));
  }
}

}  // namespace

void check_files(const EngineOptions& options) {
  const ModelConfig config = ModelConfig::load(options.model);
  check_tensors(Checkpoint(options.model), config);
  const Tokenizer tokenizer = Tokenizer::load(options.model);
  check_tokenizer(options.model, tokenizer, config);
  if (!options.draft) return;
  const ModelConfig draft = ModelConfig::load(*options.draft);
  check_tensors(Checkpoint(*options.draft), draft);
  check_same_vocabulary(options, tokenizer, config, draft);
}

Executor::Executor(EngineOptions options, Backend& backend, Communicator& communicator)
    : options_(std::move(options)),
      backend_(backend),
      num_ranks_(communicator.size()),
      tokenizer_(Tokenizer::load(options_.model)),
      target_(options_.model, backend, communicator, rows_per_step(options_),
              options_.max_positions, progress_of(options_, "model")),
      max_positions_(options_.max_positions > 0 ? options_.max_positions
                                                : target_.config().max_position_embeddings),
      cache_(target_.make_kv_cache(kNumSlots * pages_for(max_positions_), kNumSlots)),
      random_drafter_(backend, target_.config().vocab_size),
      step_(backend, communicator, target_, cache_, kNumSlots, rows_per_step(options_)),
      model_hash_(checkpoint_hash(options_.model)),
      slots_(kNumSlots),
      token_digests_(kNumSlots, 0) {
  if (options_.draft) {
    check_same_vocabulary(options_, tokenizer_, target_.config(),
                          ModelConfig::load(*options_.draft));
    model_drafter_ =
        std::make_unique<ModelDrafter>(*options_.draft, backend, kNumSlots, rows_per_step(options_),
                                       progress_of(options_, "draft"));
    draft_hash_ = checkpoint_hash(*options_.draft);
  }
  check_tokenizer(options_.model, tokenizer_, target_.config());
  if (default_drafter() == DrafterKind::model && model_drafter_ == nullptr) {
    throw Error("--drafter model needs a checkpoint: expected --draft DIR, found none");
  }
  for (SequenceState& slot : slots_) slot.tokens.reserve(max_positions_ + kMaxDraftTokens + 1);
}

DrafterKind Executor::default_drafter() const {
  return options_.drafter.value_or(options_.draft ? DrafterKind::model
                                                  : DrafterKind::prompt_lookup);
}

std::vector<DrafterKind> Executor::drafters() const {
  std::vector<DrafterKind> kinds = {DrafterKind::prompt_lookup, DrafterKind::random};
  if (model_drafter_ != nullptr) kinds.push_back(DrafterKind::model);
  return kinds;
}

LogitDrafter* Executor::logit_drafter(DrafterKind kind) {
  switch (kind) {
    case DrafterKind::model:
      return model_drafter_.get();
    case DrafterKind::random:
      return &random_drafter_;
    case DrafterKind::prompt_lookup:
    case DrafterKind::none:
      return nullptr;
  }
  return nullptr;
}

int64_t Executor::max_draft_positions(DrafterKind kind) const {
  return kind == DrafterKind::model ? std::min(max_positions_, model_drafter_->max_positions())
                                    : max_positions_;
}

std::string Executor::numerics_fingerprint() const {
  const std::string text = std::string(kVersion) + "|" + build_id() + "|" + model_hash_ + "|" +
                           draft_hash_ + "|" + std::to_string(num_ranks_) + "|" +
                           backend_.description() + "|bf16";
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016llx",
                static_cast<unsigned long long>(digest(text.data(), text.size())));
  return hex;
}

std::span<const SlotOutcome> Executor::execute(std::span<const uint8_t> bytes) {
  const StepPlan plan = StepPlan::parse(bytes);
  const uint64_t agreed = digest(bytes.data(), bytes.size(), state_digest());
  for (int32_t slot : plan.released) {
    slots_[slot].tokens.clear();
    cache_.truncate(slot, 0);
    if (model_drafter_ != nullptr) model_drafter_->truncate(slot, 0);
  }
  for (const Admission& admission : plan.admitted) admit(admission);

  std::vector<SlotWork> work;
  for (const PlannedWork& w : plan.work) {
    work.push_back({w.slot, w.prefill_end, w.decode != 0, w.num_draft_tokens, w.proposed});
  }
  const auto outcomes = step_.run(slots_, work, agreed, stream_);
  for (const SlotOutcome& outcome : outcomes) {
    if (outcome.verdict.non_finite) continue;
    const auto& tokens = slots_[outcome.slot].tokens;
    token_digests_[outcome.slot] = chain(std::span(tokens).last(outcome.verdict.num_accepted + 1),
                                         token_digests_[outcome.slot]);
  }
  return outcomes;
}

void Executor::admit(const Admission& admission) {
  SequenceState& slot = slots_[admission.slot];
  CHECK(slot.tokens.empty());
  slot.tokens.assign(admission.prompt.begin(), admission.prompt.end());
  slot.num_cached = 0;
  slot.processors = admission.processors;
  slot.seed = admission.seed;
  slot.drafter = logit_drafter(admission.drafter);
  token_digests_[admission.slot] = chain(slot.tokens, 0);
}

uint64_t Executor::state_digest() const {
  uint64_t state = cache_.state_digest();
  for (size_t i = 0; i < slots_.size(); ++i) {
    const int64_t parts[] = {static_cast<int64_t>(slots_[i].tokens.size()), slots_[i].num_cached,
                             static_cast<int64_t>(token_digests_[i])};
    state = digest(parts, sizeof parts, state);
  }
  return state;
}

}  // namespace outrider
