#include "spec/head_drafter.h"

#include <algorithm>

#include "core/digest.h"
#include "core/error.h"

namespace outrider {

HeadDrafter::HeadDrafter(const std::filesystem::path& directory,
                         const std::filesystem::path& target, Backend& backend,
                         Communicator& communicator, int64_t num_slots)
    : backend_(backend),
      max_rows_(backend.padded_rows(num_slots)),
      head_(directory, target, backend, communicator, max_rows_),
      states_(backend.allocate(sizeof(bf16) * num_slots * head_.config().hidden_size)),
      lengths_(num_slots, kNoState),
      guesses_(backend.allocate(sizeof(bf16) * max_rows_ * head_.config().hidden_size)),
      slots_(backend, max_rows_),
      tokens_(backend, max_rows_) {}

void HeadDrafter::take_state(int64_t slot, int64_t length, TensorView state, Stream& stream) {
  const auto num_slots = static_cast<int64_t>(lengths_.size());
  const TensorView states = states_.view(DType::bf16, {num_slots, head_.config().hidden_size});
  backend_.copy(states.rows(slot, slot + 1), state, stream);
  lengths_[slot] = length;
}

uint64_t HeadDrafter::prepare(std::span<const DraftContext> contexts, TensorView logits,
                              Stream& stream) {
  // Once a round: a head that is whole makes no collective.
  if (progress_ != nullptr) progress_->begin_collective();
  logits_ = logits;
  const int64_t rows = logits.extent(0), hidden = head_.config().hidden_size;
  tokens_.prepare(contexts, rows, stream);
  for (const DraftContext& context : contexts) {
    CHECK(lengths_[context.slot] == static_cast<int64_t>(context.tokens.size()));
  }
  // A first round goes on from the target's states, a later one from the guesses of the one before.
  if (contexts.front().num_drafted == 0) {
    std::fill_n(slots_.host(), rows, 0);
    for (size_t i = 0; i < contexts.size(); ++i) {
      slots_.host()[i] = static_cast<int32_t>(contexts[i].slot);
    }
    slots_.upload(0, rows, stream);
    const auto num_slots = static_cast<int64_t>(lengths_.size());
    backend_.gather_rows(states_.view(DType::bf16, {num_slots, hidden}),
                         TensorView(slots_.device(), DType::i32, {rows}),
                         guesses_.view(DType::bf16, {rows, hidden}), stream);
  }
  const int64_t parts[] = {rows, reinterpret_cast<int64_t>(logits.raw())};
  return digest(parts, sizeof parts);
}

void HeadDrafter::enqueue(Stream& stream) {
  const int64_t hidden = head_.config().hidden_size, rows = logits_.extent(0);
  head_.forward(guesses_.view(DType::bf16, {rows, hidden}), tokens_.enqueue(stream), logits_,
                stream);
}

}  // namespace outrider
