#include <algorithm>

#include "comm/self_communicator.h"
#include "spec/drafter.h"

namespace outrider {

ModelDrafter::ModelDrafter(const std::filesystem::path& directory, Backend& backend,
                           int64_t num_pages, int64_t num_slots, int64_t max_rows,
                           const std::function<void(double)>& progress)
    : self_(make_self_communicator()),
      model_(directory, backend, *self_, max_rows, 0, progress),
      cache_(model_.make_kv_cache(num_pages, num_slots)),
      rows_(backend, max_rows),
      seen_(num_slots, 0) {}

template <typename Flush>
void ModelDrafter::feed(std::span<const DraftContext> contexts, bool wants_logits,
                        const Flush& flush) {
  for (const DraftContext& context : contexts) {
    const auto length = static_cast<int64_t>(context.tokens.size());
    int64_t& seen = seen_[context.slot];
    CHECK(length <= cache_.capacity(context.slot));
    for (; seen < length; ++seen) {
      if (rows_.full()) flush();
      rows_.add(context.slot, context.tokens[seen], seen, wants_logits && seen + 1 == length);
    }
  }
  flush();
}

void ModelDrafter::prefill(std::span<const DraftContext> contexts, Stream& stream) {
  feed(contexts, false, [&] {
    const TensorView none(nullptr, DType::f32, {0, config().vocab_size});
    model_.forward(rows_.upload(stream), cache_, none, stream);
    rows_.clear();
  });
}

void ModelDrafter::next_logits(std::span<const DraftContext> contexts, TensorView logits,
                               Stream& stream) {
  for (const DraftContext& context : contexts) {
    CHECK(seen_[context.slot] < static_cast<int64_t>(context.tokens.size()));
  }
  int64_t done = 0;  // logits rows written
  feed(contexts, true, [&] {
    const int64_t wanted = rows_.num_logit_rows();
    model_.forward(rows_.upload(stream), cache_, logits.rows(done, done + wanted), stream);
    done += wanted;
    rows_.clear();
  });
}

void ModelDrafter::truncate(int64_t slot, int64_t length) {
  seen_[slot] = std::min(seen_[slot], length);
}

}  // namespace outrider
