// What is said of requests beside their answers: log lines, ids, when to try again, traces.
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/metrics.h"
#include "engine/retry_error.h"
#include "server/call_record.h"
#include "server/logging.h"
#include "server/retry_info.h"
#include "server/server_harness.h"
#include "server/service_rate.h"
#include "server/status.h"
#include "testing/held_sink.h"
#include "testing/temporary_directory.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;

// The default log, captured while it lives.
class CapturedLog {
 public:
  explicit CapturedLog(LogFormat format, spdlog::level::level_enum level = spdlog::level::info)
      : before_(spdlog::default_logger()) {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    auto logger = std::make_shared<spdlog::logger>("test", std::move(sink));
    logger->set_formatter(make_log_formatter(format));
    logger->set_level(level);
    spdlog::set_default_logger(std::move(logger));
  }
  ~CapturedLog() { spdlog::set_default_logger(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::shared_ptr<spdlog::logger> before_;
  std::ostringstream text_;
};

struct Asked {
  grpc::Status status;
  std::string given_id;  // by the server
};

Asked ask(int port, const v1::GenerateRequest& request) {
  const auto stub = v1::GenerationService::NewStub(connect(port));
  grpc::ClientContext context;
  set_timeout(context);
  v1::GenerateOnceResponse response;
  Asked asked;
  asked.status = stub->GenerateOnce(&context, request, &response);
  const auto& metadata = context.GetServerInitialMetadata();
  if (const auto it = metadata.find("outrider-request-id"); it != metadata.end()) {
    asked.given_id.assign(it->second.data(), it->second.size());
  }
  return asked;
}

// What is asked about the server is answered while its step loop stands still.
TEST(Information, NeverWaitsForAStep) {
  ServerOptions options;
  options.max_waiting_requests = 77;
  RunningServer server(options);
  const auto sink = std::make_shared<HeldSink>();
  Request request;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = 4;
  server.engine().submit(request, sink);
  sink->wait_until_held();
  const auto stub = v1::GenerationService::NewStub(connect(server.port()));
  grpc::ClientContext model_context, server_context;
  set_timeout(model_context);
  set_timeout(server_context);
  v1::GetModelInfoResponse model;
  EXPECT_TRUE(stub->GetModelInfo(&model_context, {}, &model).ok());
  EXPECT_EQ(model.vocab_size(), 512);
  v1::GetServerInfoResponse info;
  EXPECT_TRUE(stub->GetServerInfo(&server_context, {}, &info).ok());
  EXPECT_EQ(info.limits().max_waiting_requests(), 77);
  EXPECT_EQ(info.stats().kv_pages(), server.engine().stats().kv_pages);
  sink->let_go();
}

TEST(RequestLog, HasALineForEachRequestAndNoneOfItsText) {
  CapturedLog log(LogFormat::text);
  std::string given;
  {
    RunningServer server;
    v1::GenerateRequest request = greedy("Sesame and saffron", 7);
    request.set_request_id("my-request");
    EXPECT_EQ(ask(server.port(), request).given_id, "");
    given = ask(server.port(), greedy("Sesame and saffron", 3)).given_id;
    request.set_request_id("broken one\n[error] forged");
    request.mutable_sampling_params()->set_top_p(2);
    EXPECT_FALSE(ask(server.port(), request).status.ok());
  }
  const std::string text = log.text();
  EXPECT_NE(text.find("request my-request: OK, "), std::string::npos) << text;
  EXPECT_NE(text.find(" prompt tokens, 7 completion tokens, "), std::string::npos) << text;
  EXPECT_EQ(given.size(), 16u);
  EXPECT_EQ(given.find_first_not_of("0123456789abcdef"), std::string::npos) << given;
  EXPECT_NE(text.find("request " + given + ": OK, "), std::string::npos) << text;
  EXPECT_NE(text.find("request \"broken one\\n[error] forged\": INVALID_ARGUMENT, 0 prompt"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("esame"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
}

TEST(RequestLog, TellsWhatAFailedCallWasGiven) {
  CapturedLog log(LogFormat::text);
  {
    RunningServer server;
    v1::GenerateRequest request = endless("Fails");
    request.set_request_id("failed");
    OpenCall call(server.port(), request);
    v1::GenerateResponse response;
    ASSERT_TRUE(call.stream->Read(&response));
    server.server().fail_calls("rank 1 is lost");
    EXPECT_EQ(call.finish().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  const std::string text = log.text();
  EXPECT_NE(text.find("request failed: UNAVAILABLE, "), std::string::npos) << text;
  EXPECT_EQ(text.find(" 0 completion tokens, "), std::string::npos) << text;
}

TEST(RequestLog, TellsADeadlineFromACancel) {
  constexpr milliseconds kTimeout{3000};
  CapturedLog log(LogFormat::text);
  {
    RunningServer server({}, /*run_engine=*/false);
    v1::GenerateRequest request = endless("Waits");
    request.set_request_id("late");
    OpenCall late(server.port(), request, kTimeout);
    server.wait_for_waiting(kEndlessAnswers);
    request.set_request_id("cancelled");
    OpenCall cancelled(server.port(), request);
    server.wait_for_waiting(2 * kEndlessAnswers);
    // Its deadline passes behind that of `late` as the server has it, which was there before.
    request.set_request_id("later");
    EXPECT_EQ(OpenCall(server.port(), request, kTimeout).finish().status.error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
    cancelled.context.TryCancel();
    server.start_engine();
    EXPECT_EQ(late.finish().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_EQ(cancelled.finish().status.error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_TRUE(server.server().wait_for_calls(std::chrono::minutes(1)));
  }
  const std::string text = log.text();
  EXPECT_NE(text.find("request late: DEADLINE_EXCEEDED, "), std::string::npos) << text;
  EXPECT_NE(text.find("request cancelled: CANCELLED, "), std::string::npos) << text;
}

TEST(RequestLog, JsonIsAnObjectALine) {
  CapturedLog log(LogFormat::json);
  {
    ServerOptions options;
    options.log_format = LogFormat::json;
    RunningServer server(options);
    v1::GenerateRequest request = greedy("Hello", 4);
    request.set_request_id("quoted \"id\"");
    EXPECT_TRUE(ask(server.port(), request).status.ok());
    spdlog::info("another \"line\"\n with \xff");
  }
  std::istringstream lines(log.text());
  int num_requests = 0, num_others = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    EXPECT_EQ(object["level"], "info");
    EXPECT_EQ(object["time"].get<std::string>().size(),
              std::string("2000-01-01T00:00:00.000Z").size());
    if (object.contains("message")) {
      ++num_others;
      EXPECT_EQ(object["message"], "another \"line\"\n with \xEF\xBF\xBD");
      continue;
    }
    ++num_requests;
    EXPECT_EQ(object["event"], "request_end");
    EXPECT_EQ(object["request_id"], "quoted \"id\"");
    EXPECT_EQ(object["code"], "OK");
    EXPECT_EQ(object["completion_tokens"], 4);
    EXPECT_GT(object["prompt_tokens"], 0);
    EXPECT_GT(object["ms"], 0);
  }
  EXPECT_EQ(num_requests, 1);
  EXPECT_EQ(num_others, 1);
}

TEST(RequestLog, IsSilentAboveItsLevel) {
  CapturedLog log(LogFormat::text, spdlog::level::warn);
  {
    RunningServer server;
    EXPECT_TRUE(ask(server.port(), greedy("Hello", 4)).status.ok());
  }
  EXPECT_EQ(log.text(), "");
}

double value(const EngineMetrics& metrics, const std::string& name) {
  const std::string text = "\n" + metrics.text();
  const size_t at = text.find("\n" + name + " ");
  if (at == std::string::npos) {
    ADD_FAILURE() << name << " is not in" << text;
    return -1;
  }
  return std::stod(text.substr(at + name.size() + 2));
}

Completion answer(int32_t index, int64_t num_tokens, const Timings& timings) {
  Completion completion;
  completion.index = index;
  completion.last = false;
  completion.finish_reason = FinishReason::length;
  completion.completion_tokens = completion.speculation.num_decoded_tokens = num_tokens;
  completion.timings = timings;
  return completion;
}

// Each answer has a rhythm of its own; the request takes as long as all of them.
TEST(CallRecord, CountsEachOfSeveralAnswers) {
  const CapturedLog log(LogFormat::text);
  EngineMetrics metrics;
  ServiceRate service_rate;
  const std::vector<Completion> answers = {
      answer(1, 5, {.queue_ms = 35, .prefill_ms = 15, .decode_ms = 200, .total_ms = 250}),
      answer(0, 3, {.queue_ms = 30, .prefill_ms = 10, .decode_ms = 20, .total_ms = 300}),
      answer(2, 1, {.queue_ms = 36, .prefill_ms = 14, .decode_ms = 0, .total_ms = 400})};
  {
    RequestLog requests(LogFormat::text);
    CallRecord whole({metrics, requests, service_rate, nullptr}, "whole");
    for (const Completion& completion : answers) whole.complete(completion);
    whole.end(absl::OkStatus());
  }
  // It ran from when its first answer left the queue.
  EXPECT_EQ(service_rate.retry_delay(100, 1), milliseconds(50 * (400 - 30)));
  EXPECT_NE(log.text().find("request whole: OK, 0 prompt tokens, 9 completion tokens, "),
            std::string::npos)
      << log.text();
  EXPECT_EQ(value(metrics, "outrider_time_per_output_token_seconds_count"), 2);
  EXPECT_NEAR(value(metrics, "outrider_time_per_output_token_seconds_sum"), 0.05 + 0.01, 1e-9);
  EXPECT_EQ(value(metrics, "outrider_e2e_request_latency_seconds_count"), 1);
  EXPECT_NEAR(value(metrics, "outrider_e2e_request_latency_seconds_sum"), 0.4, 1e-9);
  EXPECT_EQ(value(metrics, "outrider_request_queue_time_seconds_count"), 1);
  EXPECT_NEAR(value(metrics, "outrider_request_queue_time_seconds_sum"), 0.03, 1e-9);
  EXPECT_EQ(value(metrics, "outrider_request_success_total{finished_reason=\"length\"}"), 1);

  {
    RequestLog requests(LogFormat::text);
    CallRecord aborted({metrics, requests, service_rate, nullptr}, "aborted");
    aborted.complete(answers[0]);
    Completion rest = answers[1];
    rest.finish_reason = FinishReason::cancelled;
    aborted.complete(rest);
    aborted.end(absl::OkStatus());
  }
  EXPECT_NE(log.text().find("request aborted: CANCELLED, "), std::string::npos) << log.text();
  EXPECT_EQ(value(metrics, "outrider_time_per_output_token_seconds_count"), 3);
  EXPECT_EQ(value(metrics, "outrider_e2e_request_latency_seconds_count"), 1);
  EXPECT_EQ(value(metrics, "outrider_request_success_total{finished_reason=\"cancelled\"}"), 1);
}

TEST(CallRecord, WhatNeverRanSaysNothingOfHowLongRequestsRun) {
  const CapturedLog log(LogFormat::text);
  EngineMetrics metrics;
  ServiceRate service_rate;
  RequestLog requests(LogFormat::text);
  CallRecord waited({metrics, requests, service_rate, nullptr}, "waited");
  Completion nothing = answer(0, 0, {.queue_ms = 500, .total_ms = 500});
  nothing.finish_reason = FinishReason::cancelled;
  waited.complete(nothing);
  waited.end(absl::OkStatus());
  EXPECT_EQ(service_rate.retry_delay(100, 1), milliseconds(1000));  // nothing is known
}

TEST(RequestIds, AreNew) { EXPECT_NE(new_request_id(), new_request_id()); }

TEST(RetryInfo, ComesWithAFullQueue) {
  ServerOptions options;
  options.max_waiting_requests = 0;
  RunningServer server(options);
  const Asked asked = ask(server.port(), greedy("Too many", 5));
  EXPECT_EQ(asked.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(retry_delay_s(asked.status), 1.0);  // nothing has been served yet
  EXPECT_EQ(asked.given_id.size(), 16u);        // a refused request has a name too
}

TEST(RetryInfo, HasFractionsOfASecond) {
  EXPECT_EQ(retry_delay_s(to_grpc(retry_error("too many", milliseconds(1500)))), 1.5);
  EXPECT_EQ(retry_delay_s(to_grpc(absl::ResourceExhaustedError("too much"))), std::nullopt);
}

TEST(ServiceRate, GoesByHowLongRequestsRan) {
  ServiceRate rate;
  EXPECT_EQ(rate.retry_delay(100, 4), milliseconds(1000));
  rate.completed(400);
  EXPECT_NEAR(static_cast<double>(rate.retry_delay(100, 4).count()), 5000, 1);
  EXPECT_NEAR(static_cast<double>(rate.retry_delay(100, 0).count()), 20'000, 1);
  EXPECT_EQ(rate.retry_delay(0, 4), milliseconds(100));
  EXPECT_EQ(rate.retry_delay(1'000'000'000, 4), milliseconds(60'000));
  for (int i = 0; i < 100; ++i) rate.completed(40);  // at once, as those of one step
  EXPECT_NEAR(static_cast<double>(rate.retry_delay(100, 4).count()), 500, 5);
}

TEST(StreamStats, EachChunkTellsHowTheAnswerWasMadeSoFar) {
  RunningServer server;
  v1::GenerateRequest request = greedy("Tell", 12);
  request.mutable_speculation()->set_drafter("random");
  request.mutable_speculation()->set_num_speculative_tokens(3);
  for (const bool wanted : {true, false}) {
    request.set_stream_stats(wanted);
    OpenCall call(server.port(), request);
    v1::GenerateResponse response;
    v1::SpeculationStats last;
    while (call.stream->Read(&response) && response.has_chunk()) {
      EXPECT_EQ(response.chunk().has_speculation(), wanted);
      EXPECT_GE(response.chunk().speculation().num_draft_tokens(), last.num_draft_tokens());
      last = response.chunk().speculation();
    }
    EXPECT_TRUE(response.has_complete());
    if (wanted) {
      EXPECT_EQ(last.SerializeAsString(), response.complete().speculation().SerializeAsString());
      EXPECT_GT(last.num_draft_tokens(), 0);
    }
  }
}

TEST(Trace, HasASpanForEachRequest) {
  TemporaryDirectory directory;
  ServerOptions options;
  options.trace_file = (directory.path() / "trace.json").string();
  {
    RunningServer server(options);
    v1::GenerateRequest request = greedy("Traced", 6);
    request.set_request_id("traced-one");
    EXPECT_TRUE(ask(server.port(), request).status.ok());
    request.set_request_id("refused-one");
    sampling(request).set_top_p(2);
    EXPECT_FALSE(ask(server.port(), request).status.ok());
  }
  std::ifstream file(options.trace_file);
  std::map<std::string, nlohmann::json> requests;
  int64_t sequences = 0, prompt_rows = 0;
  for (const auto& event : nlohmann::json::parse(file)) {
    const auto& arguments = event["args"];
    if (event["ph"] == "b" && event["name"] == "request") {
      requests[arguments["request_id"]] = arguments;
    } else if (event["name"] == "step") {
      sequences += arguments["sequences"].get<int64_t>();
      prompt_rows += arguments["prompt_rows"].get<int64_t>();
    }
  }
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests["traced-one"]["code"], "OK");
  EXPECT_EQ(requests["traced-one"]["completion_tokens"], 6);
  EXPECT_EQ(requests["refused-one"]["code"], "INVALID_ARGUMENT");
  EXPECT_GT(sequences, 0);
  EXPECT_GT(prompt_rows, 0);
}

}  // namespace
}  // namespace outrider
