// What becomes of requests when a row, a rank or the job fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/quarantine.h"
#include "testing/checkpoints.h"
#include "testing/edited_checkpoint.h"
#include "testing/engine_harness.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr int32_t kPoison = 300;  // no prompt of the harness holds it

Request request(int seed, int max_tokens = 20) {
  return greedy_request(12, seed, max_tokens, 0, "random");
}

Request poisoned(int seed) {
  Request bad = request(seed);
  bad.prompt.push_back(kPoison);
  return bad;
}

TEST(NonFinite, FailsItsOwnRequestAlone) {
  const PoisonedCheckpoint model(test_checkpoint("tiny-odd"), kPoison);
  for (const int ranks : {1, 2}) {
    const EngineOptions options{.model = model.path()};
    const auto expected = run_requests(options, ranks, {request(1), request(2)});
    const auto answers =
        run_requests(options, ranks, {request(1), poisoned(3), request(2), poisoned(4)});
    EXPECT_EQ(answers[0].token_ids, expected[0].token_ids);
    EXPECT_EQ(answers[2].token_ids, expected[1].token_ids);
    EXPECT_EQ(answers[0].token_ids.size(), 20u);
    for (const int bad : {1, 3}) {
      EXPECT_EQ(answers[bad].status.code(), absl::StatusCode::kInternal);
      EXPECT_THAT(std::string(answers[bad].status.message()),
                  MatchesRegex("the model's logits hold a NaN or an infinity at position 13, "
                               "step [0-9]+"));
      EXPECT_TRUE(answers[bad].token_ids.empty());
    }
  }
}

// The answer's own first token poisons what follows, wherever in a step that is.
TEST(NonFinite, IsWhereItIsThoughDraftsWereAccepted) {
  const PoisonedCheckpoint model(test_checkpoint("tiny-odd"), kPoison);
  for (const int k : {0, 3}) {
    Request bad = request(1);
    bad.sampling.logit_bias = {{kPoison, 100.0f}};
    bad.speculation.num_speculative_tokens = k;
    const auto answer = run_requests({.model = model.path()}, 1, {bad})[0];
    EXPECT_THAT(std::string(answer.status.message()), HasSubstr("at position 13,")) << k;
  }
}

// A prompt is fed in pieces, each of which tells what it found.
TEST(NonFinite, NoLogProbabilityOfAPromptIsTold) {
  const PoisonedCheckpoint model(test_checkpoint("tiny-odd"), kPoison);
  for (const int ranks : {1, 2}) {
    Request bad = poisoned(1);
    bad.prompt.insert(bad.prompt.end(), 12, 1);
    bad.sampling.prompt_logprobs = 1;
    const auto answers =
        run_requests({.model = model.path(), .prefill_chunk = 16}, ranks, {bad, request(2)});
    EXPECT_EQ(answers[0].status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(answers[0].status.message()), HasSubstr("at position 13,"));
    EXPECT_TRUE(answers[0].prompt_logprobs.empty());
    EXPECT_EQ(answers[1].token_ids.size(), 20u);
  }
}

// The answers of one request that fails are one failure.
TEST(NonFinite, ARequestWithSeveralAnswersIsOne) {
  const PoisonedCheckpoint model(test_checkpoint("tiny-odd"), kPoison);
  Request many = poisoned(1);
  many.sampling.n = 4;
  const auto answers = run_requests({.model = model.path()}, 1, {many, request(2)});
  EXPECT_EQ(answers[0].status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(answers[1].token_ids.size(), 20u);
}

TEST(NonFinite, SeveralRequestsWithinAFewStepsEndTheJob) {
  const PoisonedCheckpoint model(test_checkpoint("tiny-odd"), kPoison);
  std::vector<CollectedAnswer> answers(4);
  const auto backend = make_cpu_backend();
  const auto self = make_self_communicator();
  Executor executor({.model = model.path()}, *backend, *self);
  Engine engine(executor, nullptr);
  std::atomic<int> left = 100;  // nobody stops it
  const std::vector<Request> requests = {request(1, 500), poisoned(2), poisoned(3), poisoned(4)};
  for (size_t i = 0; i < requests.size(); ++i) {
    engine.submit(requests[i], std::make_shared<CollectingSink>(answers[i], engine, left));
  }
  EXPECT_THAT([&] { engine.run(); }, ::testing::ThrowsMessage<Error>(
                                         HasSubstr("not finite for 3 prompts within 16 steps")));
  EXPECT_EQ(answers[0].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(answers[0].status.message()), HasSubstr("not finite for 3 prompts"));
}

// Whoever asks again for what has failed shows nothing new.
TEST(NonFinite, TheSamePromptAgainEndsNothing) {
  const PoisonedCheckpoint model(test_checkpoint("tiny-odd"), kPoison);
  Request longer = poisoned(2);
  longer.sampling.max_tokens = 7;
  const auto answers =
      run_requests({.model = model.path()}, 1,
                   {request(1), poisoned(2), poisoned(2), longer, poisoned(3), poisoned(2)});
  EXPECT_EQ(answers[0].token_ids.size(), 20u);
  for (size_t i = 1; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].status.code(), absl::StatusCode::kInternal) << i;
  }
}

// Whatever made a NaN may be in pages that others would find.
TEST(NonFinite, ItsPrefixIsNotFoundAgain) {
  const PoisonedCheckpoint model(test_checkpoint("tiny-odd"), kPoison);
  const auto found = [&](const Request& asked) {
    EngineStats stats;
    // In pieces: those before the one that tells of the NaN are in the prefix cache by then.
    const EngineOptions options{
        .model = model.path(), .max_sequences = 1, .prefill_chunk = kPageTokens};
    run_requests(options, 1, {asked, asked}, {}, &stats);
    return stats.prefix_cache_hits;
  };
  Request asked = request(1);
  asked.prompt.resize(3 * kPageTokens, 1);
  EXPECT_EQ(found(asked), 2 * kPageTokens);
  asked.prompt[0] = kPoison;
  EXPECT_EQ(found(asked), 0);
}

TEST(NonFinite, NowAndThenEndsNothing) {
  const PoisonedCheckpoint model(test_checkpoint("tiny-odd"), kPoison);
  // One after the other, with an answer of more than 16 steps between them.
  EngineOptions options{.model = model.path(), .max_sequences = 1};
  const auto answers = run_requests(options, 1,
                                    {poisoned(1), request(2, 40), poisoned(3), request(4, 40),
                                     poisoned(5), request(6, 40), poisoned(7), request(8, 5)});
  for (const int good : {1, 3, 5, 7}) EXPECT_FALSE(answers[good].token_ids.empty());
}

TEST(Disagreement, FailsEveryRequestBeforeAnythingOfTheStepIsTold) {
  constexpr int kRanks = 2;
  const EngineOptions options{.model = test_checkpoint("tiny")};
  std::vector<CollectedAnswer> answers(2);
  std::string thrown;
  const std::string secret = make_control_secret();
  ControlServer control(kRanks - 1, secret);
  constexpr uint64_t kBadStep = 4;
  const auto rank = [&](Communicator& communicator) {
    const auto backend = make_cpu_backend();
    Executor executor(options, *backend, communicator);
    if (communicator.rank() > 0) {
      ControlClient client(control.address(), communicator.rank(), secret);
      while (const auto bytes = client.receive(std::chrono::microseconds(200))) {
        StepPlan plan = StepPlan::parse(*bytes);
        if (plan.step == kBadStep) plan.step ^= 64;  // a bit has flipped
        executor.execute(plan.serialise());
      }
      return;
    }
    control.accept_all(std::chrono::seconds(60));
    Engine engine(executor, &control);
    std::atomic<int> left = 100;
    for (size_t i = 0; i < answers.size(); ++i) {
      engine.submit(request(static_cast<int>(i), 50),
                    std::make_shared<CollectingSink>(answers[i], engine, left));
    }
    try {
      engine.run();
    } catch (const Error& error) {
      thrown = error.what();
      throw;
    }
  };
  EXPECT_THROW(run_thread_ranks(kRanks, rank), Error);
  EXPECT_THAT(thrown, HasSubstr("step 4: "));
  EXPECT_THAT(thrown, HasSubstr("rank 1"));
  const auto sound = run_requests(options, 1, {request(0, 50), request(1, 50)});
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(std::string(answers[i].status.message()), thrown);
    EXPECT_EQ(answers[i].token_ids.size(), kBadStep - 1);
    EXPECT_TRUE(std::equal(answers[i].token_ids.begin(), answers[i].token_ids.end(),
                           sound[i].token_ids.begin()));
  }
}

// One start of the job after the other.
class Job {
 public:
  explicit Job(EngineOptions options = {.model = test_checkpoint("tiny")})
      : options_(std::move(options)) {}

  // Runs requests until `fail_after` chunks were told, then fails; 0: until all have ended, or the
  // engine has by itself.
  std::vector<CollectedAnswer> start(const std::vector<Request>& requests, size_t fail_after) {
    std::vector<CollectedAnswer> answers(requests.size());
    const auto backend = make_cpu_backend();
    const auto self = make_self_communicator();
    Executor executor(options_, *backend, *self);
    Quarantine quarantine(*table_);
    Engine engine(executor, nullptr, {}, &quarantine);
    std::atomic<int> left = static_cast<int>(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      engine.submit(requests[i],
                    std::make_shared<FailingSink>(answers[i], engine, left, fail_after));
    }
    died_ = false;
    try {
      engine.run();
    } catch (const Error&) {
      died_ = true;
    }
    return answers;
  }
  bool died() const { return died_; }

 private:
  class FailingSink : public RequestSink {
   public:
    FailingSink(CollectedAnswer& answer, Engine& engine, std::atomic<int>& left, size_t fail_after)
        : sink_(answer, engine, left), engine_(engine), fail_after_(fail_after) {}
    void on_chunk(Chunk chunk) override {
      sink_.on_chunk(std::move(chunk));
      if (fail_after_ > 0 && --fail_after_ == 0) engine_.fail("rank 1 is lost");
    }
    void on_complete(Completion completion) override { sink_.on_complete(std::move(completion)); }
    void on_error(absl::Status status) override { sink_.on_error(std::move(status)); }
    bool cancelled() const override { return sink_.cancelled(); }

   private:
    CollectingSink sink_;
    Engine& engine_;
    size_t fail_after_;
  };

  const EngineOptions options_;
  bool died_ = false;
  std::unique_ptr<QuarantineTable> table_ = std::make_unique<QuarantineTable>();
};

TEST(Quarantine, ARequestThatRanWheneverTheJobDiedIsRefused) {
  Job job;
  const Request bad = request(1, 1000), other = request(2);
  for (int death = 0; death < 2; ++death) {
    // At the first chunk: where delivery lags, there are few, of many tokens each.
    const auto answers = job.start({bad}, 1);
    EXPECT_EQ(answers[0].status, absl::UnavailableError("rank 1 is lost"));
    EXPECT_FALSE(answers[0].token_ids.empty());
  }
  Request again = bad;  // as a client goes on behind what it has
  again.emitted = {1, 2, 3};
  again.request_id = "another";
  const auto answers = job.start({bad, again, other}, 0);
  EXPECT_FALSE(job.died());
  for (const int i : {0, 1}) {
    EXPECT_EQ(answers[i].status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(answers[i].status.message(),
              "this request was running when the job died, 2 times; it is refused for 60 min");
  }
  EXPECT_EQ(answers[2].token_ids.size(), 20u);
}

TEST(Quarantine, WhoWasAnsweredInBetweenIsNotToBlame) {
  Job job;
  const Request good = request(1, 100);
  job.start({good}, 1);
  EXPECT_EQ(job.start({good}, 0)[0].token_ids.size(), 100u);
  job.start({good}, 1);
  EXPECT_EQ(job.start({good}, 0)[0].token_ids.size(), 100u);
}

TEST(Quarantine, WhoOnlyWaitedIsNotToBlame) {
  Job job({.model = test_checkpoint("tiny"), .max_sequences = 1});
  const std::vector<Request> requests = {request(1, 1000), request(2)};
  for (int death = 0; death < 2; ++death) job.start(requests, 1);
  const auto answers = job.start(requests, 0);
  EXPECT_FALSE(job.died());
  EXPECT_EQ(answers[0].status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(answers[1].token_ids.size(), 20u);
}

// They had failed before the job died of them.
TEST(Quarantine, RequestsWhoseNansEndTheJobAreRefused) {
  const PoisonedCheckpoint model(test_checkpoint("tiny-odd"), kPoison);
  Job job({.model = model.path()});
  const std::vector<Request> requests = {poisoned(1), poisoned(2), poisoned(3), request(4)};
  for (int death = 0; death < 2; ++death) {
    job.start({requests.begin(), requests.begin() + 3}, 0);
    EXPECT_TRUE(job.died());
  }
  const auto answers = job.start(requests, 0);
  EXPECT_FALSE(job.died());
  for (const int i : {0, 1, 2}) {
    EXPECT_EQ(answers[i].status.code(), absl::StatusCode::kFailedPrecondition) << i;
  }
  EXPECT_EQ(answers[3].token_ids.size(), 20u);
}

}  // namespace
}  // namespace outrider
