// What delivery tells of an answer's time.
#include "engine/delivery.h"

#include <gtest/gtest.h>

#include "model/tokenizer.h"
#include "testing/checkpoints.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;

class Kept : public RequestSink {
 public:
  void on_chunk(Chunk chunk) override {
    origins.insert(origins.end(), chunk.origins.begin(), chunk.origins.end());
  }
  void on_complete(Completion told) override { completion = std::move(told); }
  void on_error(absl::Status status) override { FAIL() << status; }
  bool cancelled() const override { return false; }
  std::vector<TokenOrigin> origins;
  std::optional<Completion> completion;
};

// An answer, and what is told of it.
struct Told {
  Told() {
    const auto request = std::make_shared<RequestProgress>();
    request->sink = sink;
    answer = std::make_shared<Answer>(request, OutputStream(tokenizer, {}));
  }

  Completion of(std::vector<Delivered>& items) const {
    Delivery delivery;
    delivery.push(items);
    delivery.drain();
    return sink->completion.value();
  }

  Tokenizer tokenizer = Tokenizer::load(test_checkpoint("tiny"));
  std::shared_ptr<Kept> sink = std::make_shared<Kept>();
  std::shared_ptr<Answer> answer;
};

// Received at 0 ms and started at 10; the first of 5 tokens at 30, the others at 50 and 70; then
// cancelled at 100.
Completion timed(double tpot_slo_ms) {
  const EngineClock::time_point zero{};
  const Told told;
  const auto& answer = told.answer;
  answer->received = zero;
  answer->started = zero + milliseconds(10);
  answer->completion.speculation.tpot_slo_ms = tpot_slo_ms;
  std::vector<Delivered> items;
  for (const auto& [at, tokens] : std::initializer_list<std::pair<int, std::vector<int32_t>>>{
           {30, {5}}, {50, {6, 7}}, {70, {8, 9}}}) {
    items.push_back({.answer = answer, .at = zero + milliseconds(at), .tokens = tokens});
  }
  items.push_back({.answer = answer, .at = zero + milliseconds(100), .cancelled = true});
  return told.of(items);
}

TEST(Delivery, TellsWhenEachPartOfAnAnswerWas) {
  const Completion completion = timed(0);
  EXPECT_EQ(completion.completion_tokens, 5);
  EXPECT_EQ(completion.timings.queue_ms, 10);
  EXPECT_EQ(completion.timings.prefill_ms, 20);
  EXPECT_EQ(completion.timings.ttft_ms, 30);
  EXPECT_EQ(completion.timings.decode_ms, 40);
  EXPECT_EQ(completion.timings.total_ms, 100);
}

// Of the time from token to token: four of them here, 10 ms each.
TEST(Delivery, AnObjectiveIsMissedByTheMeanFromTokenToToken) {
  EXPECT_FALSE(timed(0).speculation.tpot_slo_missed);
  EXPECT_TRUE(timed(9).speculation.tpot_slo_missed);
  EXPECT_FALSE(timed(11).speculation.tpot_slo_missed);
}

// A step that kept one of its alternatives, and one that kept none and put its own token there.
TEST(Delivery, TellsOfAlternatives) {
  const Told told;
  const auto& answer = told.answer;
  std::vector<Delivered> items;
  items.push_back({.answer = answer, .tokens = {5}});
  items.push_back({.answer = answer, .tokens = {6, 7}});
  items.back().drafts = {.num_drafted = 2, .num_alternatives = 3, .alternative = 1};
  items.push_back({.answer = answer, .tokens = {8}});
  items.back().drafts = {.num_drafted = 2, .num_alternatives = 4};
  items.push_back({.answer = answer, .cancelled = true});
  const SpeculationStats stats = told.of(items).speculation;
  using enum TokenOrigin;
  EXPECT_EQ(told.sink->origins, (std::vector{plain, drafted, bonus, corrected}));
  EXPECT_EQ(stats.num_spec_steps, 2);
  EXPECT_EQ(stats.num_draft_tokens, 11);
  EXPECT_EQ(stats.num_accepted_draft_tokens, 1);
  EXPECT_EQ(stats.num_alternative_draft_tokens, 7);
  EXPECT_EQ(stats.num_accepted_alternatives, 1);
  EXPECT_EQ(stats.drafted_per_position[0], 2);
  EXPECT_EQ(stats.accepted_per_position[0], 1);
  EXPECT_EQ(stats.accepted_per_position[1], 0);
}

// A drafted token costs what it does when it is drafted, and nothing where it is copied.
TEST(Delivery, TellsWhatADraftedTokenCostInTheMean) {
  const Told told;
  const auto& answer = told.answer;
  std::vector<Delivered> items;
  items.push_back({.answer = answer, .tokens = {5}});
  for (const auto& [num_drafted, cost] :
       std::initializer_list<std::pair<int, double>>{{1, 0.3}, {1, 0}, {2, 0.6}}) {
    items.push_back({.answer = answer, .tokens = {5}, .copied = cost == 0, .draft_cost = cost});
    items.back().drafts = {.num_drafted = num_drafted};
  }
  items.push_back({.answer = answer, .cancelled = true});
  EXPECT_DOUBLE_EQ(told.of(items).speculation.draft_cost().value(), 1.5 / 4);
}

}  // namespace
}  // namespace outrider
