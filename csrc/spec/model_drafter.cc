#include <algorithm>

#include "comm/self_communicator.h"
#include "spec/drafter.h"

namespace outrider {

namespace {

// Every slot can hold the longest context, so a reservation never fails.
int64_t pages_for(int64_t num_slots, int64_t max_positions) {
  return num_slots * ((max_positions + kPageTokens - 1) / kPageTokens);
}

}  // namespace

ModelDrafter::ModelDrafter(const std::filesystem::path& directory, Backend& backend,
                           int64_t num_slots, int64_t max_rows,
                           const std::function<void(double)>& progress)
    : self_(make_self_communicator()),
      model_(directory, backend, *self_, max_rows, 0, progress),
      cache_(model_.make_kv_cache(pages_for(num_slots, model_.config().max_position_embeddings),
                                  num_slots)),
      rows_(backend, max_rows),
      seen_(num_slots, 0) {}

void ModelDrafter::next_logits(std::span<const DraftContext> contexts, TensorView logits,
                               Stream& stream) {
  int64_t done = 0;  // logits rows written
  const auto flush = [&] {
    const int64_t wanted = rows_.num_logit_rows();
    model_.forward(rows_.upload(stream), cache_, logits.rows(done, done + wanted), stream);
    done += wanted;
    rows_.clear();
  };
  for (const DraftContext& context : contexts) {
    const auto length = static_cast<int64_t>(context.tokens.size());
    int64_t& seen = seen_[context.slot];
    CHECK(seen < length && cache_.reserve(context.slot, length));
    for (; seen < length; ++seen) {
      if (rows_.full()) flush();
      rows_.add(context.slot, context.tokens[seen], seen, seen + 1 == length);
    }
  }
  flush();
}

void ModelDrafter::truncate(int64_t slot, int64_t length) {
  seen_[slot] = std::min(seen_[slot], length);
  cache_.truncate(slot, length);
}

}  // namespace outrider
