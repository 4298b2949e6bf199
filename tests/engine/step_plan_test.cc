#include "engine/step_plan.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace outrider {
namespace {

StepPlan example() {
  StepPlan plan{.step = 77};
  plan.admitted.push_back({.slot = 1,
                           .choice = 2,
                           .tokens = {5, 6, 7},
                           .num_prompt_tokens = 2,
                           .rules = {.repetition_penalty = 1.5f,
                                     .frequency_penalty = -1,
                                     .presence_penalty = 0.5f,
                                     .min_tokens = 9,
                                     .listed = {{3, -2.5f, 1}, {5, 1.0f, 0}}},
                           .processors = {VerifyMode::rejection, 0.5f, 40, 0.9f},
                           .seed = 1234567890123ull,
                           .drafter = DrafterKind::random,
                           .num_cached = 32,
                           .num_draft_cached = 16});
  plan.target_pages = {{.slot = 1, .first = 0, .pages = {4, 2, 9}}, {.slot = 0, .first = 3}};
  plan.draft_pages = {{.slot = 0, .first = 2, .pages = {1}}};
  plan.work.push_back({.slot = 0,
                       .decode = 1,
                       .prefill_end = 9,
                       .draft_prefill_end = 8,
                       .num_draft_tokens = 2,
                       .num_alternatives = 3,
                       .proposed = {8, 9}});
  plan.work.push_back({.slot = 1, .prefill_end = 2, .prompt_logits = 1});
  return plan;
}

TEST(StepPlan, ComesBackAsItWas) {
  const auto bytes = example().serialise();
  const StepPlan plan = StepPlan::parse(bytes);
  EXPECT_EQ(plan.step, 77u);
  ASSERT_EQ(plan.admitted.size(), 1u);
  const Admission& admission = plan.admitted[0];
  EXPECT_EQ(admission.slot, 1);
  EXPECT_EQ(admission.choice, 2);
  EXPECT_EQ(admission.tokens, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(admission.num_prompt_tokens, 2);
  EXPECT_EQ(admission.rules.repetition_penalty, 1.5f);
  EXPECT_EQ(admission.rules.frequency_penalty, -1.0f);
  EXPECT_EQ(admission.rules.presence_penalty, 0.5f);
  EXPECT_EQ(admission.rules.min_tokens, 9);
  ASSERT_EQ(admission.rules.listed.size(), 2u);
  EXPECT_EQ(admission.rules.listed[0].token, 3);
  EXPECT_EQ(admission.rules.listed[0].bias, -2.5f);
  EXPECT_EQ(admission.rules.listed[0].ends, 1);
  EXPECT_EQ(admission.seed, 1234567890123ull);
  EXPECT_EQ(admission.processors.top_k, 40);
  EXPECT_EQ(admission.drafter, DrafterKind::random);
  EXPECT_EQ(admission.num_cached, 32);
  EXPECT_EQ(admission.num_draft_cached, 16);
  ASSERT_EQ(plan.target_pages.size(), 2u);
  EXPECT_EQ(plan.target_pages[0].pages, (std::vector<int32_t>{4, 2, 9}));
  EXPECT_EQ(plan.target_pages[1].first, 3);
  EXPECT_TRUE(plan.target_pages[1].pages.empty());
  ASSERT_EQ(plan.draft_pages.size(), 1u);
  EXPECT_EQ(plan.draft_pages[0].first, 2);
  ASSERT_EQ(plan.work.size(), 2u);
  EXPECT_EQ(plan.work[0].num_draft_tokens, 2);
  EXPECT_EQ(plan.work[0].num_alternatives, 3);
  EXPECT_EQ(plan.work[0].proposed, (std::vector<int32_t>{8, 9}));
  EXPECT_EQ(plan.work[0].draft_prefill_end, 8);
  EXPECT_EQ(plan.work[1].prefill_end, 2);
  EXPECT_EQ(plan.work[1].prompt_logits, 1);
  EXPECT_EQ(plan.serialise(), bytes);
}

TEST(StepPlan, RefusesWhatIsCutShortOrLonger) {
  const auto bytes = example().serialise();
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_THROW(StepPlan::parse({bytes.data(), n}), Error) << n;
  }
  auto longer = bytes;
  longer.push_back(0);
  EXPECT_THROW(StepPlan::parse(longer), Error);
  auto other_version = bytes;
  other_version[0] ^= 0x40;
  EXPECT_THROW(StepPlan::parse(other_version), Error);
}

}  // namespace
}  // namespace outrider
