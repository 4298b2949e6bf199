// How many different passes a server's steps ask to be replayed: each is a graph on a GPU, which
// takes memory and, once, time.
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "comm/self_communicator.h"
#include "spec/head_drafter.h"
#include "spec/speculative_step.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/edited_checkpoint.h"
#include "tests/testing/metering_backend.h"
#include "tests/testing/read_file.h"

namespace outrider {
namespace {

constexpr int64_t kMaxRows = 128;
constexpr int64_t kMaxSequences = 16;
constexpr int kMostDrafted = 8;

// What rows of up to `most` may be padded to.
int64_t num_sizes(int64_t most) {
  int64_t count = 0;
  for (int64_t rows = 1; rows <= most; ++rows) count += cuda_padded_rows(rows) == rows ? 1 : 0;
  return count;
}

// A server with every kind of request: greedy, sampled by either mode, with filters, with edited
// logits, drafted for by a model or a head or not at all; K as it comes.
class MixedSteps {
 public:
  // max_model_rows: of a drafting model's pass, which has yet to see up to most_unseen positions of
  // a sequence, beside its last token.
  MixedSteps(int64_t max_model_rows, int64_t most_unseen)
      : communicator_(make_self_communicator()),
        target_(test_checkpoint("tiny"), backend_, *communicator_, kMaxRows, 0),
        cache_(target_.make_kv_cache(512, kMaxSequences)),
        model_(test_checkpoint("tiny-draft"), backend_, 512, kMaxSequences, max_model_rows,
               nullptr),
        head_(test_checkpoint("tiny-head"), test_checkpoint("tiny"), backend_, *communicator_,
              kMaxSequences),
        step_(backend_, *communicator_, target_, cache_, kMaxSequences, kMaxRows),
        most_unseen_(most_unseen) {
    target_.keep_states(head_.head().config().aux_layers);
    cache_.deal_pages(stream_);
    model_.cache().deal_pages(stream_);
  }

  void run() {
    std::vector<SequenceState> states(kMaxSequences);
    std::vector<SlotWork> work;
    const int64_t sequences = 1 + below(kMaxSequences);
    const bool branches = below(4) == 0, fed_again = below(4) == 0;
    int64_t rows = 0;
    for (int64_t slot = 0; slot < sequences; ++slot) {
      const auto drafted = static_cast<int>(below(kMostDrafted + 1));
      if (rows + drafted + 1 > kMaxRows) break;
      rows += drafted + 1;
      begin(slot, states[slot]);
      const bool drafts = states[slot].drafter != nullptr;
      // Some steps have them, with as many draws for all.
      int alternatives = 0;
      if (drafts && drafted > 0 && branches && rows + 2 <= kMaxRows) {
        alternatives = 2;
        rows += alternatives;
      }
      states[slot].is_stale = fed_again && rows < kMaxRows;
      if (states[slot].is_stale) {
        --states[slot].num_cached;
        ++rows;
      }
      work.push_back({.slot = slot,
                      .prefill_end = kContext,
                      .decode = true,
                      .num_draft_tokens = drafts ? drafted : 0,
                      .num_alternatives = alternatives});
    }
    step_.run(states, work, 0, stream_);
  }

  size_t num_replayed() const { return backend_.num_replayed(); }

 private:
  static constexpr int64_t kContext = 40;

  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % n); }

  // A sequence of whatever kind takes the slot.
  void begin(int64_t slot, SequenceState& state) {
    state.tokens.assign(kContext + 1, 1);
    state.num_cached = kContext;
    state.processors.mode = static_cast<VerifyMode>(below(3));
    if (below(3) == 0) state.processors.top_p = 0.9f;
    LogitRules rules;
    if (below(8) == 0) rules.frequency_penalty = 0.5f;
    step_.admit(slot, rules, state.tokens, kContext);
    LogitDrafter* const drafters[] = {nullptr, &model_, &head_};
    state.drafter = drafters[below(3)];
    model_.admit(slot, kContext - below(most_unseen_ + 1));
    head_.take_state(slot, kContext + 1, target_.states(1, 1), stream_);
  }

  MeteringBackend backend_;
  Stream stream_;
  std::unique_ptr<Communicator> communicator_;
  Transformer target_;
  KvCache cache_;
  ModelDrafter model_;
  HeadDrafter head_;
  SpeculativeStep step_;
  int64_t most_unseen_;
  std::mt19937 random_{1};
};

TEST(ReplayedPasses, AreFew) {
  // Where all drafts were accepted, the model has yet to see the last of them.
  MixedSteps steps(kMaxRows, 1);
  for (int step = 0; step < 3000; ++step) steps.run();
  // The target's: of each size, with or without a race, filtered rows, edited ones. A drafter's:
  // with edited rows or without, with alternatives or without, all greedy or not; the model's first
  // round may have two rows a sequence.
  const int64_t target = 2 * 2 * 2 * num_sizes(kMaxRows);
  const int64_t head = 2 * 2 * 2 * num_sizes(kMaxSequences), model = 2 * head;
  EXPECT_LE(steps.num_replayed(), target + model + head);
  EXPECT_GT(steps.num_replayed(), 30u);  // the steps are mixed
  RecordProperty("replayed", static_cast<int>(steps.num_replayed()));
}

// A model behind by as much as it may be, whose first rounds take several passes: wherever these
// end, a round stays within its logits, and only what comes again is replayed.
TEST(ReplayedPasses, AreFewWhereRoundsTakeSeveralPasses) {
  constexpr int64_t kModelRows = 16;
  MixedSteps steps(kModelRows, kMaxDraftTokens);
  for (int step = 0; step < 1000; ++step) steps.run();
  const int64_t target = 2 * 2 * 2 * num_sizes(kMaxRows);
  // A model's: of fewer sequences than rows, or drawn from what the passes before have made.
  const int64_t model = 2 * 2 * 2 * num_sizes(kMaxSequences) * (num_sizes(kModelRows) + 1);
  EXPECT_LE(steps.num_replayed(), target + model + 2 * 2 * 2 * num_sizes(kMaxSequences));
  EXPECT_GT(steps.num_replayed(), 30u);
}

// One whose model allows for more positions than graphs of many rows are made for at first.
class LongCheckpoint : public EditedCheckpoint {
 public:
  explicit LongCheckpoint(const std::string& name) : EditedCheckpoint(test_checkpoint(name)) {
    const std::string field = "\"max_position_embeddings\": ";
    std::string config = read_file(path() / "config.json");
    const size_t number = config.find(field) + field.size();
    config.replace(number, config.find_first_not_of("0123456789", number) - number, "8192");
    std::ofstream(path() / "config.json") << config;
  }
};

// A graph of many rows has its scratch memory laid out for a context for good: what sees farther is
// another one, and contexts are few.
TEST(ReplayedPasses, OfManyRowsAreOthersWhereContextsAreLonger) {
  const LongCheckpoint files("tiny");
  MeteringBackend backend;
  Stream stream;
  const auto self = make_self_communicator();
  Transformer target(files.path(), backend, *self, kMaxRows, 0);
  KvCache cache = target.make_kv_cache(1, 1);
  SpeculativeStep step(backend, *self, target, cache, kMaxSequences, kMaxRows);
  const auto newly_replayed = [&](int64_t rows, int64_t position) {
    const size_t before = backend.num_replayed();
    step.measure_target(rows, rows, position, /*replayed=*/true, stream);
    return backend.num_replayed() - before;
  };
  EXPECT_EQ(newly_replayed(32, 0), 1u);
  EXPECT_EQ(newly_replayed(32, 2048 - 32), 0u);
  EXPECT_EQ(newly_replayed(32, 2048 - 31), 1u);
  EXPECT_EQ(newly_replayed(32, 8192 - 32), 0u);
  EXPECT_EQ(newly_replayed(32, 8192 - 31), 1u);
  EXPECT_EQ(newly_replayed(16, 0), 1u);  // there is room for few rows wherever they stand
  EXPECT_EQ(newly_replayed(16, 8000), 0u);
}

// The second pass is recorded, which takes a thousand seconds; each takes one.
class RecordingBackend final : public CpuBackend {
 public:
  RecordingBackend() : CpuBackend(cpu::select_isa()) {}
  bool replay(uint64_t, Stream&, bool, const std::function<void()>& enqueue) override {
    const bool records = ++num_replayed_ == 2;
    if (records) seconds_ += 1000;
    enqueue();
    return records;
  }
  void mark(int mark, Stream&) override { marked_.at(mark) = ++seconds_; }
  double seconds_between(int from, int to) const override {
    return marked_.at(to) - marked_.at(from);
  }

 private:
  int num_replayed_ = 0;
  double seconds_ = 0;
  std::array<double, kMaxMarks> marked_{};
};

// What one pass takes more than another is measured, too: a recorded one would make it nothing.
TEST(ReplayedPasses, AreMeasuredWithoutTheRecording) {
  RecordingBackend backend;
  Stream stream;
  const auto self = make_self_communicator();
  Transformer target(test_checkpoint("tiny"), backend, *self, kMaxRows, 0);
  KvCache cache = target.make_kv_cache(1, 1);
  cache.deal_pages(stream);
  SpeculativeStep step(backend, *self, target, cache, 1, kMaxRows);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(step.measure_target(3, 3, 0, /*replayed=*/true, stream), 1) << i;
  }
}

TEST(ReplayedPasses, OfAModelsRoundAreOthersWhereContextsAreLonger) {
  constexpr int64_t kSlots = 17, kLongest = 2049;
  const LongCheckpoint files("tiny-draft");
  MeteringBackend backend;
  Stream stream;
  ModelDrafter model(files.path(), backend, kSlots * (kLongest / kPageTokens + 1), kSlots, kMaxRows,
                     nullptr);
  model.cache().deal_pages(stream);
  const int64_t rows = cuda_padded_rows(kSlots), vocab = model.config().vocab_size;
  const Buffer logits = backend.allocate(rows * vocab * sizeof(float));
  const auto key = [&](int64_t length) {
    const std::vector<int32_t> tokens(length, 1);
    std::vector<DraftContext> contexts;
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      model.admit(slot, length - 1);
      contexts.push_back({.slot = slot, .tokens = tokens});
    }
    model.begin_step();
    return model.prepare(contexts, logits.view(DType::f32, {rows, vocab}), stream);
  };
  EXPECT_EQ(key(2048), key(40));
  EXPECT_NE(key(kLongest), key(40));
}

}  // namespace
}  // namespace outrider
