// The table that one start of the job leaves to the next.
#include "engine/quarantine.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace outrider {
namespace {

using std::chrono::minutes;

class QuarantineTableTest : public testing::Test {
 protected:
  // The job starts, these run, and it dies.
  void die(const std::vector<Digest128>& running, minutes at = minutes(0)) {
    Quarantine quarantine(*table_, time(at));
    for (const Digest128& request : running) quarantine.began(request);
  }
  bool refuses(const Digest128& request, minutes at = minutes(0)) {
    return !Quarantine(*table_, time(at)).check(request, time(at)).ok();
  }
  static Quarantine::Clock::time_point time(minutes at) {
    return Quarantine::Clock::time_point(std::chrono::hours(1000) + at);
  }
  static Digest128 id(uint64_t n) { return {.low = n, .high = 7}; }

  std::unique_ptr<QuarantineTable> table_ = std::make_unique<QuarantineTable>();
};

TEST_F(QuarantineTableTest, CountsDeathsOfTheJob) {
  die({id(1), id(2), id(3)});
  EXPECT_FALSE(refuses(id(1)));
  die({id(1), id(3), id(1)});  // two of the same are one
  EXPECT_TRUE(refuses(id(1)));
  EXPECT_FALSE(refuses(id(2)));
  EXPECT_TRUE(refuses(id(3)));
  EXPECT_FALSE(refuses({.low = 1, .high = 8}));
}

TEST_F(QuarantineTableTest, TwoOfTheSameAtOnceAreOneDeath) {
  die({id(1), id(1), id(1)});
  EXPECT_FALSE(refuses(id(1)));
}

TEST_F(QuarantineTableTest, WhatHadEndedIsNotCounted) {
  for (int start = 0; start < 4; ++start) {
    Quarantine quarantine(*table_, time(minutes(0)));
    quarantine.began(id(1));
    quarantine.ended(id(1), false);
  }
  EXPECT_FALSE(refuses(id(1)));
  // Of two, one goes on.
  for (int start = 0; start < 2; ++start) {
    Quarantine quarantine(*table_, time(minutes(0)));
    quarantine.began(id(1));
    quarantine.began(id(1));
    quarantine.ended(id(1), false);
  }
  EXPECT_TRUE(refuses(id(1)));
}

TEST_F(QuarantineTableTest, AnAnswerClearsARequest) {
  die({id(1)});
  {
    Quarantine quarantine(*table_, time(minutes(0)));
    quarantine.began(id(1));
    quarantine.ended(id(1), true);
    quarantine.began(id(2));
    quarantine.ended(id(2), false);
  }
  die({id(1)});
  EXPECT_FALSE(refuses(id(1)));
}

TEST_F(QuarantineTableTest, EndsAnHourAfterTheLastDeath) {
  die({id(1)}, minutes(0));
  die({id(1)}, minutes(30));
  EXPECT_TRUE(refuses(id(1), minutes(31)));  // it has counted the death
  const Quarantine running(*table_, time(minutes(32)));
  EXPECT_FALSE(running.check(id(1), time(minutes(90))).ok());
  EXPECT_TRUE(running.check(id(1), time(minutes(91))).ok());
  EXPECT_FALSE(refuses(id(1), minutes(91)));
  die({id(1)}, minutes(92));
  EXPECT_FALSE(refuses(id(1), minutes(93)));  // it begins anew
}

TEST_F(QuarantineTableTest, ADeathLongAgoDoesNotAddToAnother) {
  die({id(1)}, minutes(0));
  die({id(1)}, minutes(1));  // the first is counted; the job then runs for long
  EXPECT_FALSE(refuses(id(1), minutes(700)));
}

TEST_F(QuarantineTableTest, AFullTableForgetsTheOldestDeath) {
  const auto capacity = static_cast<uint64_t>(table_->entries.size());
  die({id(1), id(2)}, minutes(0));
  std::vector<Digest128> many;
  for (uint64_t i = 0; i < capacity - 1; ++i) many.push_back(id(10 + i));
  die(many, minutes(1));  // all but one entry; the second of them takes another's
  die({id(2), id(10)}, minutes(2));
  EXPECT_TRUE(refuses(id(10), minutes(3)));
  Quarantine full(*table_, time(minutes(3)));
  for (uint64_t i = 0; i < 2 * capacity; ++i)
    full.began(id(100'000 + i));  // more than there is room
  for (uint64_t i = 0; i < 2 * capacity; ++i) full.ended(id(100'000 + i), false);
}

TEST_F(QuarantineTableTest, AnotherBuildsTableIsForgotten) {
  die({id(1)});
  die({id(1)});
  table_->layout ^= 1;
  EXPECT_FALSE(refuses(id(1)));
}

TEST(RequestDigest, IsThatOfTheSameRequestAskedAgain) {
  QuarantineTable table{};
  const Quarantine quarantine(table);
  Request request;
  request.prompt = {1, 2, 3};
  const Digest128 digest = quarantine.digest_of(request);
  Request same = request;
  same.request_id = "x";
  same.priority = 5;
  same.emitted = {7};
  EXPECT_EQ(quarantine.digest_of(same), digest);
  const auto differs = [&](auto change) {
    Request other = request;
    change(other);
    return !(quarantine.digest_of(other) == digest);
  };
  EXPECT_TRUE(differs([](Request& r) { r.tenant = 1; }));
  EXPECT_TRUE(differs([](Request& r) { r.prompt = {1, 2}; }));
  EXPECT_TRUE(differs([](Request& r) { r.prompt.push_back(0); }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.temperature = 0.5; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.top_p = 0.5; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.top_k = 5; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.seed = 0; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.max_tokens = 4; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.n = 2; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.stop = {"ab"}; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.stop_token_ids = {7}; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.ignore_eos = true; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.logprobs = 0; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.prompt_logprobs = 0; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.min_p = 0.1f; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.repetition_penalty = 2; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.presence_penalty = 1; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.frequency_penalty = 1; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.min_tokens = 1; }));
  EXPECT_TRUE(differs([](Request& r) { r.sampling.logit_bias = {{5, 1.0f}}; }));
  EXPECT_TRUE(differs([](Request& r) { r.speculation.off = true; }));
  EXPECT_TRUE(differs([](Request& r) { r.speculation.mode = VerifyMode::coupled; }));
  EXPECT_TRUE(differs([](Request& r) { r.speculation.lenience = 0.5f; }));
  EXPECT_TRUE(differs([](Request& r) { r.speculation.drafter = "random"; }));
  EXPECT_TRUE(differs([](Request& r) { r.speculation.num_speculative_tokens = 2; }));
  EXPECT_TRUE(differs([](Request& r) { r.speculation.num_alternatives = 2; }));
  EXPECT_TRUE(differs([](Request& r) { r.speculation.tpot_slo_ms = 20; }));
  Request biased = request, more = request;
  biased.sampling.logit_bias = {{5, 1.0f}};
  more.sampling.logit_bias = {{5, 2.0f}};
  EXPECT_FALSE(quarantine.digest_of(biased) == quarantine.digest_of(more));
  QuarantineTable elsewhere{};
  EXPECT_FALSE(Quarantine(elsewhere).digest_of(request) == digest);  // it says nothing by itself
}

}  // namespace
}  // namespace outrider
