// `head`: a drafter that goes on from the target's own last states, with one layer and a trimmed LM
// head. It has no cache: nothing is prefilled, and a preempted sequence loses one step's drafts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "model/draft_head.h"
#include "spec/drafter.h"
#include "spec/round_tokens.h"

namespace outrider {

class HeadDrafter final : public LogitDrafter {
 public:
  // Every rank makes it. target: the directory of the model that it drafts for, which is to keep
  // the states of the head's aux_layers. Throws Error as DraftHead does.
  HeadDrafter(const std::filesystem::path& directory, const std::filesystem::path& target,
              Backend& backend, Communicator& communicator, int64_t num_slots);

  const DraftHead& head() const { return head_; }
  int64_t weight_bytes() const override { return head_.weight_bytes(); }

  void report_to(StepProgress& progress) override { progress_ = &progress; }
  void begin_step() override {}
  int64_t num_seen(int64_t) const override { return INT64_MAX; }
  void admit(int64_t slot, int64_t) override { lengths_[slot] = kNoState; }
  void prefill(std::span<const DraftContext>, Stream&) override {}
  // The sequences of a round are the first ones of the round before it; each one's target state
  // was taken in the step that made its last token.
  uint64_t prepare(std::span<const DraftContext> contexts, TensorView logits,
                   Stream& stream) override;
  void enqueue(Stream& stream) override;
  void truncate(int64_t, int64_t) override {}
  void take_state(int64_t slot, int64_t length, TensorView states, Stream& stream) override;

 private:
  static constexpr int64_t kNoState = -1;

  // Of the sequences that begin to draft, padded to so many rows.
  void begin_rounds(std::span<const DraftContext> contexts, int64_t rows, Stream& stream);
  TensorView states_of_slots() const;
  // Empty where there are no auxiliary layers.
  TensorView carried(int64_t rows) const;

  Backend& backend_;
  int64_t max_rows_;  // of a round
  DraftHead head_;
  int64_t hidden_, aux_width_;
  Buffer states_;  // bf16 [slots, hidden + aux_width]: the target's, at the last position but one
  std::vector<int64_t> lengths_;  // [slots]: of the sequence that the state belongs to
  Buffer guesses_;                // bf16 [max_rows, hidden]: of a round, then of the next
  Buffer aux_states_;             // bf16 [max_rows, aux_width]: of the first round
  Buffer carried_;                // f32 [max_rows, hidden]: what they add to every round
  Staged<int32_t> slots_;         // [max_rows]
  RoundTokens tokens_;
  TensorView logits_;  // of `prepare`
  StepProgress* progress_ = nullptr;
};

}  // namespace outrider
