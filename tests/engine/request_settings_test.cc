// What a request leaves open is chosen as the documentation says.
#include "engine/request_settings.h"

#include <gtest/gtest.h>

#include <cmath>

namespace outrider {
namespace {

constexpr double kObjectiveMs = 40;
constexpr float kMinP = 0.1f;

class RequestSettingsTest : public testing::Test {
 protected:
  RequestSettingsTest() {
    limits_.max_positions = 1000;
    limits_.max_kv_tokens = 4000;
    limits_.eos_token_ids = {2};
    limits_.drafters = {DrafterKind::head, DrafterKind::prompt_lookup, DrafterKind::random};
    limits_.default_drafter = DrafterKind::head;
    request_.prompt = {5, 6, 7};
  }

  RequestSettings settings() const { return settle(request_, limits_, policy_, kObjectiveMs); }

  Limits limits_;
  LookaheadPolicy policy_ = {.kind = LookaheadPolicy::Kind::adaptive, .fixed = 3};
  Request request_;
};

TEST_F(RequestSettingsTest, GreedyDraftsAsFarAsPays) {
  request_.sampling.temperature = 0;
  const RequestSettings s = settings();
  EXPECT_EQ(s.mode, SpeculationMode::greedy);
  EXPECT_EQ(s.drafter, DrafterKind::head);
  EXPECT_EQ(s.lookahead, policy_.most());
  EXPECT_FALSE(s.lookahead_is_exact);
  EXPECT_EQ(s.tpot_slo_ms, kObjectiveMs);
}

TEST_F(RequestSettingsTest, SampledTokensAreVerifiedByRejectionAndCoupledWithASeed) {
  EXPECT_EQ(settings().mode, SpeculationMode::rejection);
  EXPECT_NE(settings().seed, settings().seed);
  request_.sampling.seed = 9;
  EXPECT_EQ(settings().mode, SpeculationMode::coupled);
  EXPECT_EQ(settings().seed, 9u);
  EXPECT_FALSE(settings().lookahead_is_exact);
}

TEST_F(RequestSettingsTest, ASeedsRejectionHasAFixedKAndADrafterOfEveryStep) {
  request_.sampling.seed = 9;
  request_.speculation.mode = VerifyMode::rejection;
  const RequestSettings s = settings();
  EXPECT_EQ(s.mode, SpeculationMode::rejection);
  EXPECT_EQ(s.lookahead, policy_.fixed);
  EXPECT_TRUE(s.lookahead_is_exact);
  EXPECT_EQ(s.drafter, DrafterKind::prompt_lookup);
}

TEST_F(RequestSettingsTest, WhatTheRequestNamesHolds) {
  request_.speculation.num_speculative_tokens = 2;
  request_.speculation.drafter = "random";
  request_.speculation.tpot_slo_ms = 7;
  const RequestSettings s = settings();
  EXPECT_EQ(s.lookahead, 2);
  EXPECT_TRUE(s.lookahead_is_exact);
  EXPECT_EQ(s.drafter, DrafterKind::random);
  EXPECT_EQ(s.tpot_slo_ms, 7);
}

TEST_F(RequestSettingsTest, AlternativesStandWhereTheyMay) {
  request_.sampling.temperature = 0;
  EXPECT_EQ(settings().alternatives, limits_.max_alternatives);
  limits_.max_alternatives = 2;
  EXPECT_EQ(settings().alternatives, 2);
  request_.sampling.logprobs = 0;
  EXPECT_EQ(settings().alternatives, 0);
  request_.sampling.logprobs.reset();
  request_.speculation.drafter = "prompt_lookup";
  EXPECT_EQ(settings().alternatives, 0);
  request_.speculation.drafter.reset();
  request_.speculation.num_alternatives = 5;
  EXPECT_EQ(settings().alternatives, 5);
  request_.sampling.temperature = 1;  // by rejection
  EXPECT_EQ(settings().alternatives, 5);
  request_.sampling.seed = 9;  // coupled
  EXPECT_EQ(settings().alternatives, 5);
  request_.speculation.num_alternatives.reset();
  request_.speculation.mode = VerifyMode::rejection;  // to repeat
  EXPECT_EQ(settings().alternatives, 0);
  request_.speculation.mode.reset();
  request_.speculation.off = true;
  EXPECT_EQ(settings().alternatives, 0);
}

// Beside a K that is not chosen they are as many as the request says.
TEST_F(RequestSettingsTest, AlternativesBesideAGivenK) {
  request_.sampling.temperature = 0;
  request_.speculation.num_speculative_tokens = 12;
  EXPECT_EQ(settings().alternatives, 0);
  request_.speculation.num_alternatives = 3;
  EXPECT_EQ(settings().alternatives, 3);
  request_.speculation.num_speculative_tokens.reset();
  policy_.kind = LookaheadPolicy::Kind::fixed;
  policy_.fixed = 13;
  EXPECT_EQ(settings().alternatives, kMaxDraftTokens - 13);
  request_.speculation.num_alternatives.reset();
  EXPECT_EQ(settings().alternatives, 0);
}

// What the server allows bounds what it chooses; what a request names was checked against it.
TEST_F(RequestSettingsTest, NoMoreIsDraftedThanTheServerAllows) {
  limits_.max_draft_tokens = 5;
  EXPECT_EQ(settings().lookahead, 5);
  policy_.fixed = 7;  // of seeded answers by rejection
  request_.sampling.seed = 9;
  request_.speculation.mode = VerifyMode::rejection;
  EXPECT_EQ(settings().lookahead, 5);
  request_.sampling.seed.reset();
  policy_ = {.kind = LookaheadPolicy::Kind::fixed, .fixed = 3};
  request_.speculation.num_alternatives = 4;
  EXPECT_EQ(settings().lookahead, 3);
  EXPECT_EQ(settings().alternatives, 5 - 3);
  limits_.max_draft_tokens = 0;
  EXPECT_EQ(settings().mode, SpeculationMode::off);
  EXPECT_EQ(settings().alternatives, 0);
}

TEST_F(RequestSettingsTest, WithoutDraftsTheSeedRepeatsTheAnswer) {
  const SpeculationParams without_drafts[] = {
      {.off = true},
      {.num_speculative_tokens = 0},
      {.mode = VerifyMode::rejection, .num_speculative_tokens = 0},
  };
  for (const SpeculationParams& speculation : without_drafts) {
    request_.speculation = speculation;
    const RequestSettings s = settings();
    EXPECT_EQ(s.mode, SpeculationMode::off);
    EXPECT_EQ(s.processors.mode, VerifyMode::coupled);
    EXPECT_EQ(s.drafter, DrafterKind::none);
    EXPECT_EQ(s.lookahead, 0);
  }
}

TEST_F(RequestSettingsTest, NothingIsLenientOnAServerThatDraftsNothing) {
  request_.speculation.lenience = 0.5f;
  for (const float temperature : {0.0f, 1.0f}) {
    request_.sampling.temperature = temperature;
    EXPECT_EQ(settings().processors.lenience, 0.5f);
    policy_ = {.kind = LookaheadPolicy::Kind::fixed, .fixed = 0};
    EXPECT_EQ(settings().processors.lenience, 1);
    policy_ = LookaheadPolicy{.kind = LookaheadPolicy::Kind::adaptive, .fixed = 3};
  }
}

TEST_F(RequestSettingsTest, AnswersWithoutALimitShareWhatFits) {
  EXPECT_EQ(settings().max_tokens, limits_.max_positions - 3);
  request_.sampling.n = 8;
  EXPECT_EQ(settings().max_tokens, limits_.max_kv_tokens / 8 - kMaxDraftTokens - 1 - 3);
  request_.sampling.max_tokens = 12;
  EXPECT_EQ(settings().max_tokens, 12);
}

TEST_F(RequestSettingsTest, MinPReachesFurtherWhereItIsHotter) {
  EXPECT_LT(settings().processors.min_p_reach, 0);  // off
  request_.sampling.min_p = kMinP;
  request_.sampling.temperature = 2;
  EXPECT_FLOAT_EQ(settings().processors.min_p_reach, -2 * std::log(kMinP));
}

TEST_F(RequestSettingsTest, MinTokensListsWhatEnds) {
  request_.sampling.logit_bias = {{7, 1.5f}, {8, -1.0f}};
  request_.sampling.stop_token_ids = {7};
  EXPECT_EQ(settings().rules.listed.size(), 2u);
  request_.sampling.min_tokens = 4;
  const auto listed = settings().rules.listed;
  ASSERT_EQ(listed.size(), 3u);
  EXPECT_EQ(listed[0].token, 2);
  EXPECT_EQ(listed[0].ends, 1);
  EXPECT_EQ(listed[1].token, 7);
  EXPECT_EQ(listed[1].bias, 1.5f);
  EXPECT_EQ(listed[1].ends, 1);
  EXPECT_EQ(listed[2].ends, 0);
}

}  // namespace
}  // namespace outrider
