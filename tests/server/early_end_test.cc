// Calls that end before their answers do: whatever ends them, their slots and pages are free at
// once, and what nobody collects is given up.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/server_harness.h"

namespace outrider {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kDeadline{20};

double ms_since(steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - begin).count();
}

int64_t tokens_made(RunningServer& server) { return server.engine().stats().num_completion_tokens; }

// An endless request's answers come one after another.
EngineOptions one_slot() {
  EngineOptions options = tiny_engine();
  options.max_sequences = 1;
  options.kv_cache_tokens = 2 * kEndlessTokens;  // one slot's would be too few for 16 answers
  return options;
}

// A GenerateOnce that another thread waits for.
struct OpenUnaryCall {
  OpenUnaryCall(int port, const v1::GenerateRequest& request,
                milliseconds timeout = std::chrono::minutes(1))
      : stub(v1::GenerationService::NewStub(connect(port))) {
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    status = std::async(std::launch::async, [this, request] {
      return stub->GenerateOnce(&context, request, &response);
    });
  }

  std::unique_ptr<v1::GenerationService::Stub> stub;
  grpc::ClientContext context;
  v1::GenerateOnceResponse response;
  std::future<grpc::Status> status;
};

v1::GenerateRequest named(v1::GenerateRequest request, const std::string& request_id) {
  request.set_request_id(request_id);
  return request;
}

TEST(EarlyEnd, OfACallThatRunsFreesItsSlotsAndPages) {
  RunningServer server({}, /*run_engine=*/true, one_slot());
  int64_t made_before = 0;
  const auto wait_until_it_runs = [&] {
    while (server.engine().stats().num_requests_running == 0 ||
           tokens_made(server) == made_before) {
      std::this_thread::yield();
    }
  };
  const std::vector<std::pair<const char*, std::function<void()>>> ends = {
      {"a stream's client cancels",
       [&] {
         OpenCall call(server.port(), endless("a"));
         wait_until_it_runs();
         call.context.TryCancel();
         EXPECT_EQ(call.finish().status.error_code(), StatusCode::CANCELLED);
       }},
      {"a stream's client goes",
       [&] {
         OpenCall call(server.port(), endless("b"));
         wait_until_it_runs();
       }},
      {"a stream's deadline passes",
       [&] {
         OpenCall call(server.port(), endless("c"), kDeadline);
         EXPECT_EQ(call.finish().status.error_code(), StatusCode::DEADLINE_EXCEEDED);
       }},
      {"a stream is aborted",
       [&] {
         OpenCall call(server.port(), named(endless("d"), "stream"));
         wait_until_it_runs();
         EXPECT_TRUE(abort(server.port(), "stream").ok());
         const Heard heard = call.finish();
         EXPECT_TRUE(heard.status.ok()) << heard.status.error_message();
         EXPECT_EQ(heard.num_completes, 16);
         EXPECT_EQ(heard.complete.finish_reason(), v1::FINISH_REASON_CANCELLED);
       }},
      {"a GenerateOnce's client cancels",
       [&] {
         OpenUnaryCall call(server.port(), endless("e"));
         wait_until_it_runs();
         call.context.TryCancel();
         EXPECT_EQ(call.status.get().error_code(), StatusCode::CANCELLED);
       }},
      {"a GenerateOnce's deadline passes",
       [&] {
         OpenUnaryCall call(server.port(), endless("f"), kDeadline);
         EXPECT_EQ(call.status.get().error_code(), StatusCode::DEADLINE_EXCEEDED);
       }},
      {"a GenerateOnce is aborted",
       [&] {
         OpenUnaryCall call(server.port(), named(endless("g"), "unary"));
         wait_until_it_runs();
         EXPECT_TRUE(abort(server.port(), "unary").ok());
         EXPECT_TRUE(call.status.get().ok());
         EXPECT_EQ(call.response.complete().finish_reason(), v1::FINISH_REASON_CANCELLED);
       }},
  };
  for (const auto& [name, end] : ends) {
    made_before = tokens_made(server);
    end();
    const auto ended = steady_clock::now();
    server.wait_until_idle();
    const double ms = ms_since(ended);
    const int64_t made = tokens_made(server) - made_before;
    std::printf("%s: idle %.1f ms later, with %ld of %ld tokens\n", name, ms, made, kEndlessTokens);
    EXPECT_LT(made, kEndlessTokens / 2) << name;
    EXPECT_TRUE(server.server().wait_for_calls(std::chrono::minutes(1))) << name;
  }
}

// All that wait behind answers for the only slot, which take long beside the deadline of one.
TEST(EarlyEnd, OfACallThatWaitsIsSeenBeforeItsTurn) {
  RunningServer server({}, /*run_engine=*/false, one_slot());
  constexpr int kNumFirst = 16, kAnswersAhead = kEndlessAnswers * kNumFirst;
  std::vector<std::unique_ptr<OpenCall>> first;
  for (int i = 1; i <= kNumFirst; ++i) {
    first.push_back(std::make_unique<OpenCall>(server.port(), named(endless("First"), "first")));
    server.wait_for_waiting(kEndlessAnswers * i);
  }
  OpenCall cancelled(server.port(), greedy("Cancelled", 1900));
  server.wait_for_waiting(kAnswersAhead + 1);
  OpenCall late(server.port(), greedy("Too late", 1900), 25 * kDeadline);
  server.wait_for_waiting(kAnswersAhead + 2);
  auto gone = std::make_unique<OpenCall>(server.port(), greedy("Gone", 1900));
  server.wait_for_waiting(kAnswersAhead + 3);
  OpenUnaryCall unary(server.port(), greedy("Cancelled as well", 1900));
  server.wait_for_waiting(kAnswersAhead + 4);
  OpenCall aborted(server.port(), named(greedy("Aborted", 1900), "aborted"));
  server.wait_for_waiting(kAnswersAhead + 5);
  OpenCall patient(server.port(), greedy("Patient", 10));
  server.wait_for_waiting(kAnswersAhead + 6);
  server.start_engine();

  const auto begin = steady_clock::now();
  cancelled.context.TryCancel();
  unary.context.TryCancel();
  gone.reset();  // its connection with it
  EXPECT_TRUE(abort(server.port(), "aborted").ok());
  EngineStats stats;
  do {
    std::this_thread::yield();
    stats = server.engine().stats();
  } while (stats.num_requests_failed < 5 && stats.num_requests_finished < kNumFirst);
  std::printf("dropped %.1f ms later\n", ms_since(begin));
  EXPECT_EQ(stats.num_requests_failed, 5);
  EXPECT_LT(stats.num_requests_finished, kNumFirst) << "those before had to end";
  EXPECT_EQ(cancelled.finish().status.error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(unary.status.get().error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(late.finish().status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(aborted.finish().status.error_code(), StatusCode::CANCELLED);

  EXPECT_TRUE(abort(server.port(), "first").ok());
  int64_t first_tokens = 0;
  for (const auto& call : first) first_tokens += call->finish().completion_tokens;
  const Heard patient_heard = patient.finish();
  EXPECT_TRUE(patient_heard.status.ok()) << patient_heard.status.error_message();
  EXPECT_EQ(patient_heard.token_ids.size(), 10u);
  server.wait_until_idle();
  stats = server.engine().stats();
  EXPECT_EQ(stats.num_completion_tokens, first_tokens + 10);
  EXPECT_EQ(stats.num_tokens_waiting, 0);
}

// Nothing is computed for it, and it is the server that tells the client why it ended.
TEST(EarlyEnd, OfACallThatIsAbortedWhileItWaitsTakesNoStep) {
  RunningServer server({}, /*run_engine=*/false);
  OpenCall stream(server.port(), named(greedy("Waits", 5), "waits"));
  server.wait_for_waiting(1);
  OpenUnaryCall unary(server.port(), named(greedy("Waits too", 5), "waits"));
  server.wait_for_waiting(2);
  EXPECT_TRUE(abort(server.port(), "waits").ok());
  server.start_engine();
  for (const grpc::Status& status : {stream.finish().status, unary.status.get()}) {
    EXPECT_EQ(status.error_code(), StatusCode::CANCELLED);
    EXPECT_EQ(status.error_message(), "cancelled while waiting");
  }
  server.wait_until_idle();
  EXPECT_EQ(server.engine().stats().num_steps, 0);
}

// Keeps all that a client leaves unread, for so long after the answer's end.
ServerOptions patient(milliseconds collect_timeout) {
  ServerOptions options;
  options.calls.collect_timeout = collect_timeout;
  options.calls.max_undelivered_bytes = 64 << 20;
  return options;
}

// Some 7 MB, of which gRPC itself buffers 4 where the client reads nothing.
v1::GenerateRequest large(const std::string& text) {
  v1::GenerateRequest request = endless(text);
  sampling(request).set_logprobs(20);
  return request;
}

TEST(EarlyEnd, OfAnAnswerThatNobodyCollectsIsACancel) {
  RunningServer server(patient(milliseconds(100)));
  OpenCall lazy(server.port(), large("Unread"), std::chrono::minutes(5));
  while (tokens_made(server) == 0) std::this_thread::yield();
  server.wait_until_idle();
  const auto begin = steady_clock::now();
  EXPECT_TRUE(server.server().wait_for_calls(std::chrono::seconds(20)));
  std::printf("given up %.1f ms later\n", ms_since(begin));
  EXPECT_EQ(lazy.finish().status.error_code(), StatusCode::CANCELLED);
}

// It ends before its tokens do, since they are more than is kept for whoever does not read; then
// the call is given up as well.
TEST(EarlyEnd, OfAnAnswerThatGrowsTooLargeUnreadIsACancel) {
  ServerOptions options;
  options.calls.collect_timeout = milliseconds(100);
  RunningServer server(options);
  OpenCall lazy(server.port(), large("Unread"), std::chrono::minutes(5));
  while (tokens_made(server) == 0) std::this_thread::yield();
  server.wait_until_idle();
  EXPECT_LT(tokens_made(server), kEndlessTokens);
  EXPECT_TRUE(server.server().wait_for_calls(std::chrono::seconds(20)));
  EXPECT_EQ(lazy.finish().status.error_code(), StatusCode::CANCELLED);
}

// More in all than may be unread at a time.
TEST(EarlyEnd, IsNoneForALargeAnswerThatIsRead) {
  ServerOptions options;
  options.calls.max_undelivered_bytes = 5 << 20;
  RunningServer server(options);
  OpenCall call(server.port(), large("Read"), std::chrono::minutes(5));
  int64_t bytes = 0;
  for (v1::GenerateResponse response; call.stream->Read(&response);) {
    bytes += static_cast<int64_t>(response.ByteSizeLong());
  }
  EXPECT_TRUE(call.stream->Finish().ok());
  EXPECT_GT(bytes, options.calls.max_undelivered_bytes);
}

// It takes three times as long as whoever reads nothing has.
TEST(EarlyEnd, IsNoneWhileTheClientReads) {
  RunningServer server(patient(milliseconds(1000)));
  OpenCall slow(server.port(), large("Slowly"), std::chrono::minutes(5));
  v1::GenerateResponse response;
  ASSERT_TRUE(slow.stream->Read(&response));
  server.wait_until_idle();
  const int64_t made = tokens_made(server);
  auto next = steady_clock::now();
  int64_t heard = response.chunk().token_ids_size();
  while (slow.stream->Read(&response)) {
    heard += response.chunk().token_ids_size();
    std::this_thread::sleep_until(next += std::chrono::microseconds(3'000'000 / made));
  }
  EXPECT_TRUE(slow.stream->Finish().ok());
  EXPECT_EQ(heard, tokens_made(server));
}

// The client has read nothing of it.
TEST(EarlyEnd, OfACallThatIsOverIsNotFound) {
  RunningServer server(patient(std::chrono::minutes(1)));
  OpenCall unread(server.port(), named(large("Over"), "over"), std::chrono::minutes(5));
  while (tokens_made(server) == 0) std::this_thread::yield();
  server.wait_until_idle();
  const auto begin = steady_clock::now();
  grpc::Status aborted;
  do {  // until delivery has told the call
    aborted = abort(server.port(), "over");
  } while (aborted.ok() && ms_since(begin) < 10'000);
  EXPECT_EQ(aborted.error_code(), StatusCode::NOT_FOUND);
  EXPECT_TRUE(unread.finish().status.ok());
}

}  // namespace
}  // namespace outrider
