#include <algorithm>

#include "comm/self_communicator.h"
#include "core/digest.h"
#include "model/safetensors.h"
#include "model/weights.h"
#include "spec/drafter.h"

namespace outrider {

ModelDrafter::ModelDrafter(const std::filesystem::path& directory, Backend& backend,
                           int64_t num_pages, int64_t num_slots, int64_t max_rows,
                           const std::function<void(double)>& progress)
    : backend_(backend),
      self_(make_self_communicator()),
      reporting_(*self_),
      model_(
          ModelConfig::load_draft(directory),
          [&](const ModelConfig& config, const Shard& shard, Backend& to) {
            return load_weights(Checkpoint(directory), config, shard, to, progress);
          },
          backend, reporting_, max_rows, 0),
      cache_(model_.make_kv_cache(num_pages, num_slots)),
      rows_(backend, max_rows, kMaxDraftTokens),
      seen_(num_slots, 0) {}

void ModelDrafter::run_pass(TensorView logits, Stream& stream) {
  model_.forward(rows_.batch(stream), cache_, logits, stream);
}

void ModelDrafter::gather(std::span<const DraftContext> contexts, bool wants_logits,
                          TensorView logits, Stream& stream) {
  logits_done_ = 0;
  rows_.begin_pass(stream);
  for (const DraftContext& context : contexts) {
    const auto known = static_cast<int64_t>(context.tokens.size());
    int64_t& seen = seen_[context.slot];
    CHECK(context.length() <= cache_.capacity(context.slot));
    for (; seen < context.length(); ++seen) {
      if (rows_.full()) {
        const int64_t end = logits_done_ + rows_.num_logit_rows();
        rows_.upload(stream);
        run_pass(logits.rows(logits_done_, end), stream);
        rows_.begin_pass(stream);
        logits_done_ = end;
      }
      const bool wanted = wants_logits && seen + 1 == context.length();
      if (seen < known) {
        rows_.add(context.slot, context.tokens[seen], seen, wanted);
      } else {
        rows_.add(context.slot, context.drafted + (seen - known), seen, wanted);
      }
    }
  }
}

void ModelDrafter::prefill(std::span<const DraftContext> contexts, Stream& stream) {
  const TensorView none(nullptr, DType::f32, {0, config().vocab_size});
  gather(contexts, false, none, stream);
  rows_.upload(stream);
  run_pass(none, stream);
}

uint64_t ModelDrafter::prepare(std::span<const DraftContext> contexts, TensorView logits,
                               Stream& stream) {
  for (const DraftContext& context : contexts) CHECK(seen_[context.slot] < context.length());
  gather(contexts, true, logits, stream);
  if (logits_done_ == 0) rows_.pad();
  rows_.upload(stream);
  logits_ = logits.rows(logits_done_, logits_done_ + rows_.num_logit_rows());
  if (logits_done_ > 0) {
    run_pass(logits_, stream);
    return 0;
  }
  const int64_t parts[] = {rows_.num_rows(), rows_.num_logit_rows(), rows_.context(),
                           reinterpret_cast<int64_t>(logits_.raw())};
  return digest(parts, sizeof parts);
}

void ModelDrafter::enqueue(Stream& stream) {
  if (logits_done_ == 0) run_pass(logits_, stream);
}

void ModelDrafter::truncate(int64_t slot, int64_t length) {
  seen_[slot] = std::min(seen_[slot], length);
}

}  // namespace outrider
