#include "engine/step_plan.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace outrider {
namespace {

StepPlan example() {
  StepPlan plan{.step = 77};
  plan.released = {3, 1};
  plan.admitted.push_back({.slot = 1,
                           .prompt = {5, 6, 7},
                           .processors = {VerifyMode::rejection, 0.5f, 40, 0.9f},
                           .seed = 1234567890123ull,
                           .drafter = DrafterKind::random});
  plan.work.push_back(
      {.slot = 0, .decode = 1, .prefill_end = 9, .num_draft_tokens = 2, .proposed = {8, 9}});
  plan.work.push_back({.slot = 1, .prefill_end = 2});
  return plan;
}

TEST(StepPlan, ComesBackAsItWas) {
  const auto bytes = example().serialise();
  const StepPlan plan = StepPlan::parse(bytes);
  EXPECT_EQ(plan.step, 77u);
  EXPECT_EQ(plan.released, (std::vector<int32_t>{3, 1}));
  ASSERT_EQ(plan.admitted.size(), 1u);
  EXPECT_EQ(plan.admitted[0].prompt, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(plan.admitted[0].seed, 1234567890123ull);
  EXPECT_EQ(plan.admitted[0].processors.top_k, 40);
  EXPECT_EQ(plan.admitted[0].drafter, DrafterKind::random);
  ASSERT_EQ(plan.work.size(), 2u);
  EXPECT_EQ(plan.work[0].proposed, (std::vector<int32_t>{8, 9}));
  EXPECT_EQ(plan.work[1].prefill_end, 2);
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
