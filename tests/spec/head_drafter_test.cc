// A draft head goes on from the target's state behind which the last token was drawn, whatever was
// drafted and refused before; and its rows are those of the head alone.
#include "spec/head_drafter.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

#include "comm/self_communicator.h"
#include "core/float_environment.h"
#include "spec/speculative_step.h"
#include "testing/checkpoints.h"

namespace outrider {
namespace {

constexpr int64_t kSlots = 3, kMaxRows = 96, kHidden = 64, kVocab = 512;
constexpr std::array<int32_t, 2> kAuxLayers = {0, 1};  // of tiny-head
constexpr int64_t kWidth = 3 * kHidden;                // of a row of states

std::vector<int32_t> text(int length, int seed) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back((i * i * 31 + i * 7 + seed * 53) % 500 + 1);
  return tokens;
}

// Drafts like a model, and notes the states that it is given.
class NotingDrafter final : public LogitDrafter {
 public:
  struct Note {
    int64_t slot, length;
    std::vector<bf16> state;
  };

  explicit NotingDrafter(Backend& backend)
      : backend_(backend),
        model_(test_checkpoint("tiny-draft"), backend, kSlots * 16, kSlots, kMaxRows, {}) {}

  KvCache& cache() { return model_.cache(); }
  const std::vector<Note>& notes() const { return notes_; }

  void begin_step() override { model_.begin_step(); }
  int64_t num_seen(int64_t slot) const override { return model_.num_seen(slot); }
  void admit(int64_t slot, int64_t num_cached) override { model_.admit(slot, num_cached); }
  void prefill(std::span<const DraftContext> contexts, Stream& stream) override {
    model_.prefill(contexts, stream);
  }
  uint64_t prepare(std::span<const DraftContext> contexts, TensorView logits,
                   Stream& stream) override {
    return model_.prepare(contexts, logits, stream);
  }
  void enqueue(Stream& stream) override { model_.enqueue(stream); }
  void truncate(int64_t slot, int64_t length) override { model_.truncate(slot, length); }
  void take_state(int64_t slot, int64_t length, TensorView state, Stream& stream) override {
    notes_.push_back({slot, length, std::vector<bf16>(kWidth)});
    backend_.copy_to_host(notes_.back().state.data(), state, stream);
    backend_.synchronize(stream);
  }

 private:
  Backend& backend_;
  ModelDrafter model_;
  std::vector<Note> notes_;
};

class HeadDrafterTest : public ::testing::Test {
 protected:
  HeadDrafterTest() { set_float_environment(); }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  Stream stream_ = backend_->make_stream();
};

TEST_F(HeadDrafterTest, IsGivenTheStatesBehindTheLastToken) {
  Transformer target(test_checkpoint("tiny"), *backend_, *self_, kMaxRows, 0);
  target.keep_states(kAuxLayers);
  KvCache cache = target.make_kv_cache(kSlots * 16, kSlots);
  cache.deal_pages(stream_);
  SpeculativeStep step(*backend_, *self_, target, cache, kSlots, kMaxRows);
  NotingDrafter drafter(*backend_);
  drafter.cache().deal_pages(stream_);

  // Prompts and decodes in one step, other K a slot, sampled so that some drafts are refused.
  std::vector<SequenceState> slots(kSlots);
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    SequenceState& state = slots[slot];
    state.tokens = text(5 + 9 * static_cast<int>(slot), static_cast<int>(slot));
    state.processors = {.mode = VerifyMode::rejection};
    state.seed = 17 + slot;
    state.drafter = &drafter;
    drafter.admit(slot, 0);
  }
  int64_t accepted = 0, refused = 0;
  for (int i = 0; i < 12; ++i) {
    std::vector<SlotWork> work;
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      if (i < slot) continue;  // joins later
      work.push_back({.slot = slot,
                      .prefill_end = static_cast<int64_t>(slots[slot].tokens.size()) - 1,
                      .decode = true,
                      .num_draft_tokens = static_cast<int>((i + slot) % 4)});
    }
    for (const SlotOutcome& outcome : step.run(slots, work, 0, stream_)) {
      accepted += outcome.verdict.num_accepted;
      refused += outcome.num_drafted - outcome.verdict.num_accepted;
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
  ASSERT_EQ(drafter.notes().size(), 12u + 11u + 10u);

  // Each sequence once more from its beginning, in one pass.
  Transformer again(test_checkpoint("tiny"), *backend_, *self_, kMaxRows, 0);
  again.keep_states(kAuxLayers);
  KvCache empty = again.make_kv_cache(kSlots * 16, kSlots);
  empty.deal_pages(stream_);
  const Buffer logits = backend_->allocate(sizeof(float) * kMaxRows * kVocab);
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    BatchBuilder rows(*backend_, kMaxRows);
    rows.begin_step();
    const std::vector<int32_t>& tokens = slots[slot].tokens;
    const auto count = static_cast<int64_t>(tokens.size());
    for (int64_t i = 0; i < count; ++i) rows.add(slot, tokens[i], i, true);
    rows.upload(stream_);
    again.forward(rows.batch(stream_), empty, logits.view(DType::f32, {count, kVocab}), stream_);
    const TensorView states = again.states(count, count);
    for (const NotingDrafter::Note& note : drafter.notes()) {
      if (note.slot != slot) continue;
      // The token at length - 1 was drawn behind the one at length - 2.
      std::vector<bf16> expected(kWidth);
      backend_->copy_to_host(expected.data(), states.rows(note.length - 2, note.length - 1),
                             stream_);
      backend_->synchronize(stream_);
      EXPECT_EQ(std::memcmp(note.state.data(), expected.data(), kWidth * sizeof(bf16)), 0)
          << "slot " << slot << ", length " << note.length;
    }
  }
}

class HeadDrafterOf : public HeadDrafterTest, public ::testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Heads, HeadDrafterOf, testing::Values("tiny-head", "tiny-plain-head"),
                         [](const auto& info) {
                           return std::string(info.param == "tiny-head" ? "Aux" : "Plain");
                         });

// Two sequences, of which the second drafts fewer tokens, against the head fed by hand.
TEST_P(HeadDrafterOf, GoesOnFromItsOwnGuesses) {
  const auto directory = test_checkpoint(GetParam());
  HeadDrafter drafter(directory, test_checkpoint("tiny"), *backend_, *self_, kSlots);
  DraftHead alone(directory, test_checkpoint("tiny"), *backend_, *self_, 1);
  const bool takes_aux = alone.config().aux_width() > 0;
  const int64_t width = kHidden + alone.config().aux_width();
  const std::vector<int32_t> drafted = {3, 300, 9};  // of each sequence
  const Buffer on_device = backend_->allocate(drafted.size() * sizeof(int32_t));
  backend_->copy_from_host(on_device.view(DType::i32, {3}), drafted.data(), stream_);
  const Buffer state_memory = backend_->allocate(kSlots * width * sizeof(bf16));
  const TensorView states = state_memory.view(DType::bf16, {kSlots, width});
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    std::vector<bf16> state(width);
    for (int64_t i = 0; i < width; ++i) {
      state[i] = to_bf16(static_cast<float>((i * 37 + slot * 11) % 19 - 9) / 8);
    }
    backend_->copy_from_host(states.rows(slot, slot + 1), state.data(), stream_);
  }
  const std::vector<std::vector<int32_t>> tokens = {text(7, 1), text(4, 2)};
  const std::vector<int64_t> slots = {2, 0};
  for (size_t i = 0; i < 2; ++i) {
    drafter.admit(slots[i], 0);
    drafter.take_state(slots[i], static_cast<int64_t>(tokens[i].size()),
                       states.rows(slots[i], slots[i] + 1), stream_);
  }
  const Buffer carried_memory = backend_->allocate(kHidden * sizeof(float));
  const TensorView carried =
      takes_aux ? carried_memory.view(DType::f32, {1, kHidden}) : TensorView();
  const Buffer found_memory = backend_->allocate(2 * kVocab * sizeof(float));
  const Buffer expected_memory = backend_->allocate(kVocab * sizeof(float));
  const TensorView expected = expected_memory.view(DType::f32, {1, kVocab});
  const Buffer token_memory = backend_->allocate(sizeof(int32_t));
  const TensorView token = token_memory.view(DType::i32, {1});
  StepProgress progress;
  drafter.report_to(progress);
  drafter.begin_step();
  for (int64_t round = 0; round < 4; ++round) {
    std::vector<DraftContext> contexts;
    for (size_t i = 0; i < (round < 2 ? 2 : 1); ++i) {
      contexts.push_back({.slot = slots[i],
                          .tokens = tokens[i],
                          .drafted = static_cast<const int32_t*>(on_device.data()),
                          .num_drafted = round});
    }
    const auto count = static_cast<int64_t>(contexts.size());
    const TensorView found = found_memory.view(DType::f32, {count, kVocab});
    drafter.prepare(contexts, found, stream_);
    drafter.enqueue(stream_);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t next = round == 0 ? tokens[i].back() : drafted[round - 1];
      backend_->copy_from_host(token, &next, stream_);
      const TensorView row = states.rows(slots[i], slots[i] + 1);
      if (takes_aux) alone.project(row.slice(1, kHidden, width), carried, stream_);
      alone.forward(row.slice(1, 0, kHidden), carried, token, expected, stream_);
      backend_->synchronize(stream_);
      EXPECT_EQ(std::memcmp(found.rows(i, i + 1).raw(), expected.raw(), kVocab * sizeof(float)), 0)
          << "round " << round << ", sequence " << i;
    }
  }
  EXPECT_EQ(progress.report().collectives, 4u);  // once a round: a lone head makes none itself
}

}  // namespace
}  // namespace outrider
