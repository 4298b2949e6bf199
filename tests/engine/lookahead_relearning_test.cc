// What LookaheadPlanner has learnt and is not true any more: nothing that it holds keeps it from
// finding out.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "engine/lookahead_planner.h"
#include "lookahead_tables.h"

namespace outrider {
namespace {

constexpr auto kCopy = DrafterKind::prompt_lookup;

// Sequences that share steps of 10 ms, 0.2 more for each further row and 1 for a round of drawing.
class Steps {
 public:
  // Of so many drafted tokens, how many are right.
  using Accepts = std::function<int(DrafterKind drafter, int drafted)>;
  struct Took {
    DrafterKind drafter;
    int drafted;
  };

  Steps(const std::vector<DraftingTerms>& terms, Accepts accepts) : accepts_(std::move(accepts)) {
    for (const DraftingTerms& of : terms) begin(of);
  }

  void end_first() {
    planner_.remove(sequences_.front().id);
    sequences_.erase(sequences_.begin());
  }
  // … and another begins.
  void end_first(const DraftingTerms& terms) {
    end_first();
    begin(terms);
  }

  // Of each sequence.
  std::vector<Took> step(int64_t drafted_rows = INT64_MAX) {
    const std::vector<int32_t> repeats(8, 1);  // there is always something to copy
    std::vector<DecodeChoice> choices;
    for (const auto& [id, exact] : sequences_) {
      choices.push_back({.id = id,
                         .exact = exact,
                         .tokens = repeats,
                         .num_draft_tokens = exact ? 4 : kMaxDraftTokens});
    }
    planner_.choose(choices, {.drafted_rows = drafted_rows});
    std::vector<Took> took;
    std::vector<LookaheadOutcome> outcomes;
    int rows = 0, rounds = 0;
    for (const DecodeChoice& choice : choices) {
      const DrafterKind drafter = planner_.drafter_now(choice.id);
      const int k = choice.num_draft_tokens, accepted = accepts_(drafter, k);
      took.push_back({drafter, k});
      outcomes.push_back({.id = choice.id,
                          .position = 8,
                          .drafts = {.num_drafted = k, .num_accepted = accepted},
                          .num_emitted = accepted + 1});
      rows += k;
      if (drafter != kCopy) rounds = std::max(rounds, k);
    }
    const double draft_ms = rounds * round_ms;
    const double others = static_cast<double>(sequences_.size()) - 1 + rows;
    planner_.observe(outcomes, {}, {10 + 0.2 * others + draft_ms, draft_ms});
    return took;
  }

  double round_ms = 1;

 private:
  struct Sequence {
    int64_t id;
    bool exact;
  };

  void begin(const DraftingTerms& terms) {
    planner_.add(next_id_, terms);
    sequences_.push_back({next_id_++, terms.exact});
  }

  std::vector<Sequence> sequences_;
  int64_t next_id_ = 0;
  LookaheadPlanner planner_{adaptive(), tables()};
  Accepts accepts_;
};

// Copies were refused, many times, and what is drawn is better than what is known of them. Every
// answer begins with that, and hardly has the time to be tried again.
TEST(LookaheadRelearning, CopiesThatArePassedOver) {
  bool refused = true;
  std::mt19937_64 random(3);
  Steps steps({{.drafter = kCopy, .exact = true}, {.drafter = kModel, .may_copy = true}},
              [&](DrafterKind drafter, int k) {
                if (drafter == kCopy) return refused ? 0 : k;
                return random() % 5 < 4 ? std::min(k, 1) : 0;
              });
  for (int i = 0; i < 200; ++i) steps.step();
  steps.end_first();
  refused = false;
  int copied = 0, taken = 0;
  for (; copied < 200 && taken < 50'000; ++taken) {
    if (taken % 50 == 0) steps.end_first({.drafter = kModel, .may_copy = true});
    const auto took = steps.step().front();
    copied += took.drafter == kCopy && took.drafted > 0;
  }
  EXPECT_LT(taken, 8000);
}

// What was drawn was wrong, and copies that are seldom right were preferred ever since.
TEST(LookaheadRelearning, DrawingThatIsPassedOver) {
  bool refused = true;
  std::mt19937_64 random(3);
  Steps steps({{.drafter = kModel, .may_copy = true}}, [&](DrafterKind drafter, int k) {
    if (drafter == kCopy) return random() % 10 < 4 ? std::min(k, 1) : 0;
    return refused ? 0 : k;
  });
  for (int i = 0; i < 200; ++i) steps.step();
  refused = false;
  int drawn = 0, taken = 0;
  for (; drawn < 10 && taken < 10'000; ++taken) {
    const auto took = steps.step().front();
    drawn += took.drafter == kModel && took.drafted > 0;
  }
  EXPECT_LT(taken, 5000);
}

// What was drawn for one of two answers was wrong, so that it owes all that the other's drafts may
// make it wait. A round costs more than it is granted until the next try of the other.
TEST(LookaheadRelearning, BadLuckOfWhoOwes) {
  bool refused = true;
  int turn = 0;
  Steps steps({{.drafter = kModel}, {.drafter = kModel}}, [&](DrafterKind, int k) {
    const bool first = turn++ % 2 == 0;
    return first && refused ? 0 : k;
  });
  steps.round_ms = 4;
  for (int i = 0; i < 300; ++i) steps.step();
  refused = false;
  int drafted = 0, taken = 0;
  for (; drafted < 10 && taken < 20'000; ++taken) drafted += steps.step().front().drafted > 0;
  EXPECT_LT(taken, 200);
}

// A round took thrice as long for a while: more than an objective of 12 ms leaves. Where nothing is
// drafted no step says that it does not any more.
TEST(LookaheadRelearning, PricesThatMissAnObjective) {
  Steps steps({{.drafter = kModel, .max_step_ms = 12}}, [](DrafterKind, int k) { return k; });
  steps.round_ms = 3;
  for (int i = 0; i < 50; ++i) steps.step();
  steps.round_ms = 1;
  int drafted = 0, taken = 0;
  for (; drafted < 10 && taken < 10'000; ++taken) drafted += steps.step().front().drafted > 0;
  EXPECT_LT(taken, 1200);
}

// Rows that a step does not have are not planned with, and nobody goes without for others.
TEST(LookaheadRelearning, TooFewRowsAreShared) {
  constexpr int kSequences = 16, kRows = 24;
  std::mt19937_64 random(3);
  Steps steps(std::vector(kSequences, DraftingTerms{.drafter = kModel}), [&](DrafterKind, int k) {
    int accepted = 0;
    while (accepted < k && random() % 10 < 9) ++accepted;
    return accepted;
  });
  std::vector<int> drafted(kSequences);
  for (int i = 0; i < 1000; ++i) {
    int rows = 0;
    const auto took = steps.step(kRows);
    for (int s = 0; s < kSequences; ++s) {
      rows += took[s].drafted;
      drafted[s] += took[s].drafted;
    }
    ASSERT_LE(rows, kRows);
  }
  for (const int of_sequence : drafted) EXPECT_GT(of_sequence, 800);
}

}  // namespace
}  // namespace outrider
