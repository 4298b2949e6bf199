// ModelDrafter's rows must be those of a drafter that has seen nothing but the context, bit for
// bit, whatever it saw and forgot before; else an answer would depend on what was refused.
#include "spec/drafter.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/float_environment.h"
#include "testing/checkpoints.h"

namespace outrider {
namespace {

using Tokens = std::vector<int32_t>;
using Row = std::vector<float>;

constexpr int64_t kSlots = 3, kMaxRows = 8;
constexpr int kK = 4;  // tokens drafted in a step

Tokens text(int length, int seed) {
  Tokens tokens;
  for (int i = 0; i < length; ++i) tokens.push_back((i * i * 31 + i * 7 + seed * 53) % 512);
  return tokens;
}

struct Context {
  int64_t slot;
  Tokens tokens;
};

class ModelDrafterTest : public ::testing::Test {
 protected:
  ModelDrafterTest() { set_float_environment(); }

  std::unique_ptr<ModelDrafter> make_drafter(int64_t max_rows = kMaxRows) {
    auto drafter =
        std::make_unique<ModelDrafter>(test_checkpoint("tiny-draft"), *backend_, kSlots * 16,
                                       kSlots, max_rows, std::function<void(double)>());
    drafter->cache().deal_pages(stream_);
    return drafter;
  }

  std::vector<Row> next_logits(ModelDrafter& drafter, const std::vector<Context>& contexts) {
    const int64_t vocab = drafter.config().vocab_size;
    const auto count = static_cast<int64_t>(contexts.size());
    const Buffer buffer = backend_->allocate(sizeof(float) * count * vocab);
    const TensorView view = buffer.view(DType::f32, {count, vocab});
    std::vector<DraftContext> views;
    for (const Context& context : contexts) {
      views.push_back({.slot = context.slot, .tokens = context.tokens});
    }
    drafter.begin_step();
    drafter.prepare(views, view, stream_);
    drafter.enqueue(stream_);
    std::vector<Row> rows(count, Row(vocab));
    for (int64_t i = 0; i < count; ++i) {
      backend_->copy_to_host(rows[i].data(), view.rows(i, i + 1), stream_);
    }
    backend_->synchronize(stream_);
    return rows;
  }

  // The contexts in one call, each against a fresh drafter that takes it in one pass.
  void expect_fresh(ModelDrafter& drafter, const std::vector<Context>& contexts) {
    const auto rows = next_logits(drafter, contexts);
    for (size_t i = 0; i < contexts.size(); ++i) {
      const auto fresh_owner = make_drafter(256);
      ModelDrafter& fresh = *fresh_owner;
      const Row expected = next_logits(fresh, {{0, contexts[i].tokens}})[0];
      EXPECT_EQ(std::memcmp(rows[i].data(), expected.data(), expected.size() * sizeof(float)), 0)
          << "context " << i << " of " << contexts[i].tokens.size() << " tokens, slot "
          << contexts[i].slot;
    }
  }

  // A step's rounds: rows behind `tokens`, each extended by a token of `drafted`. The last of them
  // is never fed.
  void draft(ModelDrafter& drafter, int64_t slot, Tokens tokens, const Tokens& drafted) {
    for (const int32_t token : drafted) {
      expect_fresh(drafter, {{slot, tokens}});
      tokens.push_back(token);
    }
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  Stream stream_;
};

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(ModelDrafterTest, ForgetsWhatWasRefused) {
  const Tokens before = text(21, 1), drafted = text(kK, 2);
  for (int accepted = 0; accepted < kK; ++accepted) {
    const auto drafter_owner = make_drafter();
    ModelDrafter& drafter = *drafter_owner;
    draft(drafter, 0, before, drafted);
    Tokens after = joined(before, {drafted.begin(), drafted.begin() + accepted});
    drafter.truncate(0, static_cast<int64_t>(after.size()));
    after.push_back(drafted[accepted] ^ 1);  // the token in place of the refused one
    expect_fresh(drafter, {{0, after}});
  }
  for (int length = 0; length < 21; ++length) {
    const auto drafter_owner = make_drafter();
    ModelDrafter& drafter = *drafter_owner;
    draft(drafter, 0, before, drafted);
    drafter.truncate(0, length);
    expect_fresh(drafter, {{0, joined({before.begin(), before.begin() + length}, text(5, 3))}});
  }
}

// Two tokens are new to it then: the last drafted one and the extra one.
TEST_F(ModelDrafterTest, IsFedTheLastDraftWhenAllWereAccepted) {
  const auto drafter_owner = make_drafter();
  ModelDrafter& drafter = *drafter_owner;
  Tokens tokens = text(12, 4);
  for (int step = 0; step < 3; ++step) {
    const Tokens drafted = text(kK, 5 + step);
    draft(drafter, 0, tokens, drafted);
    tokens = joined(tokens, drafted);
    drafter.truncate(0, static_cast<int64_t>(tokens.size()));
    tokens.push_back(400 + step);
  }
  expect_fresh(drafter, {{0, tokens}});
}

TEST_F(ModelDrafterTest, CatchesUpWithStepsThatDraftedNothing) {
  const auto drafter_owner = make_drafter();
  ModelDrafter& drafter = *drafter_owner;
  Tokens tokens = text(10, 6);
  draft(drafter, 0, tokens, text(kK, 7));
  drafter.truncate(0, static_cast<int64_t>(tokens.size()));
  for (const int32_t token : text(19, 8)) {
    tokens.push_back(token);
    drafter.truncate(0, static_cast<int64_t>(tokens.size()) - 1);
  }
  expect_fresh(drafter, {{0, tokens}});
}

TEST_F(ModelDrafterTest, ASlotKeepsNothingOfItsLastSequence) {
  const auto drafter_owner = make_drafter();
  ModelDrafter& drafter = *drafter_owner;
  for (int sequence = 0; sequence < 4; ++sequence) {
    const Tokens tokens = text(sequence % 2 == 0 ? 30 : 5, 9 + sequence);
    draft(drafter, 1, tokens, text(kK, 13));
    drafter.truncate(1, 0);
    expect_fresh(drafter, {{1, tokens}});
    drafter.truncate(1, 0);
  }
}

TEST_F(ModelDrafterTest, TakesAContextInSeveralPasses) {
  for (const int length : {1, 7, 8, 9, 16, 17, 130}) {
    const auto drafter_owner = make_drafter();
    ModelDrafter& drafter = *drafter_owner;
    expect_fresh(drafter, {{0, text(length, 14)}});
  }
}

// Passes end within contexts, between them, and behind several that end in one pass.
TEST_F(ModelDrafterTest, ContextsOfOneCallAreThoseOfCallsOfTheirOwn) {
  for (const std::vector<int>& lengths :
       {std::vector<int>{1, 2, 3}, {5, 3, 8}, {8, 8, 8}, {20, 1, 9}, {3, 130, 2}}) {
    const auto drafter_owner = make_drafter();
    ModelDrafter& drafter = *drafter_owner;
    std::vector<Context> contexts;
    for (int64_t slot : {2, 0, 1}) {
      contexts.push_back({slot, text(lengths[slot], 15 + static_cast<int>(slot))});
    }
    expect_fresh(drafter, contexts);
    for (Context& context : contexts) context.tokens.push_back(77);
    expect_fresh(drafter, {contexts[1], contexts[2]});  // in another order, without one
    expect_fresh(drafter, {contexts[0]});
  }
}

}  // namespace
}  // namespace outrider
