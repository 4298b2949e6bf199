// What happens to requests before the engine has them: how much may wait, and that nobody else
// waits for their tokenising.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <deque>
#include <string>

#include "engine/metrics.h"
#include "server/retry_info.h"
#include "server/server_harness.h"

namespace outrider {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

TEST(Intake, RefusesAtOnceWhatIsTooManyTokensToWait) {
  ServerOptions options;
  options.max_waiting_tokens = 10;
  RunningServer server(options, /*run_engine=*/false);
  // Alone, it is taken whatever its length.
  OpenCall first(server.port(), greedy("1234567890 and some more of it", 5));
  server.wait_for_waiting(1);
  const grpc::Status refused = generate(server.port(), greedy("Second", 5)).status;
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(refused.error_message().find("tokens would wait, of 10 that may"), std::string::npos)
      << refused.error_message();
  EXPECT_GT(retry_delay_s(refused).value_or(0), 0);
  server.start_engine();
  const Heard served = first.finish();
  EXPECT_TRUE(served.status.ok()) << served.status.error_message();
  EXPECT_EQ(served.token_ids.size(), 5u);
  EXPECT_TRUE(generate(server.port(), greedy("Second again", 5)).status.ok());
}

// What is to be computed before the first new token waits, whoever wrote it.
TEST(Intake, TokensOfAnAnswerThatGoesOnWaitToo) {
  RunningServer server({}, /*run_engine=*/false);
  v1::GenerateRequest request = greedy("On", 60);
  for (int i = 0; i < 50; ++i) request.add_emitted_token_ids(65 + i % 20);
  OpenCall call(server.port(), request);
  server.wait_for_waiting(1);
  EXPECT_GE(server.engine().stats().num_tokens_waiting, 51);
  server.start_engine();
  EXPECT_TRUE(call.finish().status.ok());
  server.wait_until_idle();
  EXPECT_EQ(server.engine().stats().num_tokens_waiting, 0);
}

// Prompts of the most bytes that are read at all, all one word, which no step may need: they are
// longer than the model allows.
constexpr int kPrompts = 64;
constexpr int kBytes = 2048 * 64 * 4;  // positions, bytes of a token, normalisation
v1::GenerateRequest long_prompt() { return greedy(std::string(kBytes, 'a'), 5); }

ServerOptions with_room_for_all() {
  ServerOptions options;
  options.max_waiting_tokens = int64_t{1} << 30;
  return options;
}

// What waits to be tokenised counts, though no engine knows of it yet.
TEST(Intake, RefusesAtOnceWhatIsTooMuchBeforeTheEngine) {
  ServerOptions few_answers = with_room_for_all(), few_tokens;
  few_answers.max_waiting_requests = 4;
  few_tokens.max_waiting_tokens = kBytes;  // of three such prompts, at 4 bytes a token
  for (const auto& [options, why] : {std::pair{few_answers, "answers, of 4 that may, are waiting"},
                                     std::pair{few_tokens, "tokens would wait"}}) {
    RunningServer server(options);
    std::deque<OpenCall> calls;
    for (int i = 0; i < kPrompts; ++i) calls.emplace_back(server.port(), long_prompt());
    int refused = 0;
    for (OpenCall& call : calls) {
      const grpc::Status status = call.finish().status;
      if (status.error_code() == StatusCode::INVALID_ARGUMENT) continue;
      EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
      EXPECT_NE(status.error_message().find(why), std::string::npos) << status.error_message();
      ++refused;
    }
    EXPECT_GT(refused, 0) << why;
    EXPECT_LT(refused, kPrompts) << why;
    EXPECT_EQ(server.engine().stats().num_requests_failed, 0);
  }
}

class IntakeUnderLoad : public ::testing::Test {
 protected:
  IntakeUnderLoad() : server_(with_room_for_all()) {}

  void send_long_prompts() {
    for (int i = 0; i < kPrompts; ++i) calls_.emplace_back(server_.port(), long_prompt());
  }
  // How many of them have ended.
  int num_ended() {
    const std::string text = server_.server().metrics().text();
    const std::string name = "outrider_request_errors_total{code=\"INVALID_ARGUMENT\"} ";
    return std::stoi(text.substr(text.find(name) + name.size()));
  }
  void expect_all_refused() {
    for (OpenCall& call : calls_) {
      EXPECT_EQ(call.finish().status.error_code(), StatusCode::INVALID_ARGUMENT);
    }
    EXPECT_EQ(num_ended(), kPrompts);
  }

  void expect_unused_engine() {
    const EngineStats stats = server_.engine().stats();
    EXPECT_EQ(stats.num_steps, 0);
    EXPECT_EQ(stats.num_requests_failed, 0) << "the intake has handed on what was cancelled";
  }

  RunningServer server_;

 private:
  std::deque<OpenCall> calls_;
};

TEST_F(IntakeUnderLoad, HealthAndAbortDoNotWaitForIt) {
  const auto begin = steady_clock::now();
  const auto ms = [&] {
    return std::chrono::duration<double, std::milli>(steady_clock::now() - begin).count();
  };
  send_long_prompts();
  v1::GenerateRequest request = greedy("Behind them", 5);
  request.set_request_id("behind");
  OpenCall behind(server_.port(), request);
  while (!abort(server_.port(), "behind").ok()) {  // until it is there
    ASSERT_LT(num_ended(), kPrompts) << "it was answered before it could be aborted";
  }
  const double aborted_ms = ms();
  EXPECT_EQ(health(server_.port(), ""), 1);
  const double healthy_ms = ms();
  EXPECT_LT(num_ended(), kPrompts);
  grpc::ClientContext context;
  set_timeout(context);
  v1::GetServerInfoResponse info;
  EXPECT_TRUE(v1::GenerationService::NewStub(connect(server_.port()))
                  ->GetServerInfo(&context, {}, &info)
                  .ok());
  EXPECT_LT(num_ended(), kPrompts);
  std::printf(
      "Abort after %.1f ms, Health after %.1f, GetServerInfo after %.1f, with %d of %d ended",
      aborted_ms, healthy_ms, ms(), num_ended(), kPrompts);
  expect_all_refused();
  std::printf("; all after %.1f ms\n", ms());
  EXPECT_EQ(behind.finish().status.error_code(), StatusCode::CANCELLED);
  expect_unused_engine();
}

TEST_F(IntakeUnderLoad, ADeadlineThatPassesInItTakesNoStep) {
  send_long_prompts();
  OpenCall late(server_.port(), greedy("Too late", 5), milliseconds(2));
  EXPECT_EQ(late.finish().status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  expect_all_refused();
  EXPECT_TRUE(server_.server().wait_for_calls(std::chrono::minutes(1)));
  expect_unused_engine();
}

}  // namespace
}  // namespace outrider
