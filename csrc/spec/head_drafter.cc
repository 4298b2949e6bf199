#include "spec/head_drafter.h"

#include "core/digest.h"
#include "core/error.h"

namespace outrider {

HeadDrafter::HeadDrafter(const std::filesystem::path& directory,
                         const std::filesystem::path& target, Backend& backend, int64_t num_slots)
    : backend_(backend),
      max_rows_(backend.padded_rows(num_slots)),
      head_(directory, target, backend, max_rows_),
      states_(backend.allocate(sizeof(bf16) * num_slots * head_.config().hidden_size)),
      lengths_(num_slots, kNoState),
      guesses_(backend.allocate(sizeof(bf16) * max_rows_ * head_.config().hidden_size)),
      slots_(backend, max_rows_),
      tokens_(backend, kMaxDraftTokens * max_rows_),
      copies_(backend, kMaxDraftTokens * max_rows_) {}

void HeadDrafter::take_state(int64_t slot, int64_t length, TensorView state, Stream& stream) {
  const auto num_slots = static_cast<int64_t>(lengths_.size());
  const TensorView states = states_.view(DType::bf16, {num_slots, head_.config().hidden_size});
  backend_.copy(states.rows(slot, slot + 1), state, stream);
  lengths_[slot] = length;
}

uint64_t HeadDrafter::prepare(std::span<const DraftContext> contexts, TensorView logits,
                              Stream& stream) {
  round_ = contexts.front().num_drafted;
  num_rows_ = logits.extent(0);
  logits_ = logits;
  CHECK(num_rows_ <= max_rows_ && round_ < kMaxDraftTokens);
  for (int64_t i = 0; i < num_rows_; ++i) {
    const bool there = i < static_cast<int64_t>(contexts.size());
    const int64_t at = first(round_) + i;
    tokens_.host()[at] = there ? contexts[i].tokens.back() : 0;
    copies_.host()[at] = {nullptr, tokens_.device() + at};
    if (!there) continue;
    if (round_ > 0) copies_.host()[at].from = contexts[i].drafted + round_ - 1;
    CHECK(lengths_[contexts[i].slot] == static_cast<int64_t>(contexts[i].tokens.size()));
  }
  if (round_ == 0) {
    for (int64_t i = 0; i < num_rows_; ++i) {
      const bool there = i < static_cast<int64_t>(contexts.size());
      slots_.host()[i] = there ? static_cast<int32_t>(contexts[i].slot) : 0;
    }
    slots_.upload(0, num_rows_, stream);
  }
  tokens_.upload(first(round_), num_rows_, stream);
  copies_.upload(first(round_), num_rows_, stream);
  const int64_t parts[] = {round_, num_rows_, reinterpret_cast<int64_t>(logits.raw())};
  return digest(parts, sizeof parts);
}

void HeadDrafter::enqueue(Stream& stream) {
  const int64_t hidden = head_.config().hidden_size;
  const TensorView guesses = guesses_.view(DType::bf16, {num_rows_, hidden});
  if (round_ == 0) {
    const auto num_slots = static_cast<int64_t>(lengths_.size());
    backend_.gather_rows(states_.view(DType::bf16, {num_slots, hidden}),
                         TensorView(slots_.device(), DType::i32, {num_rows_}), guesses, stream);
  }
  backend_.copy_tokens(copies_.device() + first(round_), num_rows_, stream);
  head_.forward(guesses, TensorView(tokens_.device() + first(round_), DType::i32, {num_rows_}),
                logits_, stream);
}

}  // namespace outrider
