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
      hidden_(head_.config().hidden_size),
      aux_width_(head_.config().aux_width()),
      states_(backend.allocate(sizeof(bf16) * num_slots * (hidden_ + aux_width_))),
      lengths_(num_slots, kNoState),
      guesses_(backend.allocate(sizeof(bf16) * max_rows_ * hidden_)),
      aux_states_(backend.allocate(sizeof(bf16) * max_rows_ * aux_width_)),
      carried_(backend.allocate(aux_width_ == 0 ? 0 : sizeof(float) * max_rows_ * hidden_)),
      slots_(backend, max_rows_),
      tokens_(backend, max_rows_) {}

void HeadDrafter::take_state(int64_t slot, int64_t length, TensorView states, Stream& stream) {
  backend_.copy(states_of_slots().rows(slot, slot + 1), states, stream);
  lengths_[slot] = length;
}

TensorView HeadDrafter::states_of_slots() const {
  const auto num_slots = static_cast<int64_t>(lengths_.size());
  return states_.view(DType::bf16, {num_slots, hidden_ + aux_width_});
}

TensorView HeadDrafter::carried(int64_t rows) const {
  return aux_width_ == 0 ? TensorView() : carried_.view(DType::f32, {rows, hidden_});
}

void HeadDrafter::begin_rounds(std::span<const DraftContext> contexts, int64_t rows,
                               Stream& stream) {
  std::fill_n(slots_.host(), rows, 0);
  for (size_t i = 0; i < contexts.size(); ++i) {
    slots_.host()[i] = static_cast<int32_t>(contexts[i].slot);
  }
  slots_.upload(0, rows, stream);
  const TensorView slots(slots_.device(), DType::i32, {rows});
  const TensorView all = states_of_slots();
  backend_.gather_rows(all.slice(1, 0, hidden_), slots, guesses_.view(DType::bf16, {rows, hidden_}),
                       stream);
  if (aux_width_ == 0) return;
  const TensorView aux = aux_states_.view(DType::bf16, {rows, aux_width_});
  backend_.gather_rows(all.slice(1, hidden_, hidden_ + aux_width_), slots, aux, stream);
  head_.project(aux, carried(rows), stream);
}

uint64_t HeadDrafter::prepare(std::span<const DraftContext> contexts, TensorView logits,
                              Stream& stream) {
  // Once a round: a head that is whole makes no collective.
  if (progress_ != nullptr) progress_->begin_collective();
  logits_ = logits;
  const int64_t rows = logits.extent(0);
  tokens_.prepare(contexts, rows, stream);
  for (const DraftContext& context : contexts) {
    CHECK(lengths_[context.slot] == static_cast<int64_t>(context.tokens.size()));
  }
  // A first round goes on from the target's states, a later one from the guesses of the one before.
  if (contexts.front().num_drafted == 0) begin_rounds(contexts, rows, stream);
  const int64_t parts[] = {rows, reinterpret_cast<int64_t>(logits.raw())};
  return digest(parts, sizeof parts);
}

void HeadDrafter::enqueue(Stream& stream) {
  const int64_t rows = logits_.extent(0);
  head_.forward(guesses_.view(DType::bf16, {rows, hidden_}), carried(rows), tokens_.enqueue(stream),
                logits_, stream);
}

}  // namespace outrider
