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

// Prompts of the most bytes that are read at all, all one word, which no step may need: they are
// longer than the model allows.
class IntakeUnderLoad : public ::testing::Test {
 protected:
  static constexpr int kPrompts = 64;

  IntakeUnderLoad() : server_(options()) {}

  void send_long_prompts() {
    v1::GenerateRequest request = greedy(std::string(kBytes, 'a'), 5);
    for (int i = 0; i < kPrompts; ++i) calls_.emplace_back(server_.port(), request);
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
  static constexpr int kBytes = 2048 * 64 * 4;  // positions, bytes of a token, normalisation

  static ServerOptions options() {
    ServerOptions options;
    options.max_waiting_tokens = int64_t{1} << 30;
    return options;
  }

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
