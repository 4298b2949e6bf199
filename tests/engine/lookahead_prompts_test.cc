// LookaheadPlanner where steps have rows of prompts too.
#include <gtest/gtest.h>

#include <vector>

#include "engine/lookahead_planner.h"
#include "lookahead_tables.h"

namespace outrider {
namespace {

// Two sequences, whose drafts are accepted or not, beside prompts in every second step.
struct BesidePrompts {
  PromptRows prompts{.waiting = 1000, .plain = 20, .most = 256};
  bool accepted = true;
  bool one_names_its_k = false;
  double objective_ms = 0;
  int alone = 0, beside = 0;  // tokens drafted
  double bought_ms = 0;       // that prompts may take, in the last step beside them

  void run() {
    LookaheadPlanner planner(adaptive(), tables());
    planner.add(1, {.drafter = kModel, .max_step_ms = objective_ms});
    planner.add(2, {.drafter = kModel, .exact = one_names_its_k});
    const std::vector<int32_t> tokens = {1};
    for (int i = 0; i < 400; ++i) {
      const bool prompted = i % 2 == 1;
      std::vector<DecodeChoice> both = {
          {.id = 1, .tokens = tokens, .num_draft_tokens = kMaxDraftTokens},
          {.id = 2,
           .exact = one_names_its_k,
           .tokens = tokens,
           .num_draft_tokens = one_names_its_k ? 4 : kMaxDraftTokens}};
      const double ms = planner.choose(both, prompted ? StepRoom{prompts} : StepRoom{});
      if (prompted) bought_ms = ms;
      EXPECT_TRUE(prompted || ms == 0);
      EXPECT_TRUE(!one_names_its_k || both[1].num_draft_tokens == 4);
      (prompted ? beside : alone) += both[0].num_draft_tokens;
      std::vector<LookaheadOutcome> outcomes;
      DecodeShape shape;
      for (const DecodeChoice& choice : both) {
        const int k = choice.num_draft_tokens, kept = accepted ? k : 0;
        shape.add(tables().target, 1, kModel, Drawing::greedy, {.num_drafted = k});
        outcomes.push_back({.id = choice.id,
                            .position = 1,
                            .drafts = {.num_drafted = k, .num_accepted = kept},
                            .num_emitted = kept + 1});
      }
      const StepPricing real(tables());
      const double draft_ms = real.draft_ms(shape);
      planner.observe(outcomes, {.target = prompted ? prompts.plain : 0},
                      {real.step_ms(shape) + draft_ms, draft_ms});
      if (one_names_its_k) continue;
      DecodeShape plain = shape;
      plain.drafted_rows = 0;
      const double added_ms = real.step_ms(shape) - real.step_ms(plain) + draft_ms;
      // Prompts that were there had their share.
      EXPECT_NEAR(planner.owed_to_prompts_ms(), prompted ? 0 : added_ms, 0.2 * added_ms + 1e-9);
    }
  }
};

// Steps that are longer, but emit more, have more time for prompts: 4 ms without drafts.
TEST(LookaheadPlanner, DraftsBesidePromptsWhereTheseGetOnFaster) {
  BesidePrompts good;
  good.run();
  EXPECT_GT(good.beside, 100);
  EXPECT_GT(good.bought_ms, 8);
}

TEST(LookaheadPlanner, NothingIsDraftedBesidePromptsThatGainNothingByIt) {
  std::vector<BesidePrompts> cases(5);
  cases[0].accepted = false;
  cases[1].prompts.waiting = 20;  // done with this step
  cases[2].prompts.most = 20;     // as many as there may be
  cases[3].objective_ms = 50;
  cases[4].one_names_its_k = true;  // it is not helped
  for (BesidePrompts& of : cases) {
    of.run();
    EXPECT_LE(of.beside, of.accepted ? 0 : 10);  // until it is known
    EXPECT_EQ(of.bought_ms, 0);
    EXPECT_GT(of.alone, 0);
  }
}

}  // namespace
}  // namespace outrider
