// The load generator, and `outrider loadtest` as a whole, against servers that stall, fail or lie.
#include "launcher/loadtest/load_generator.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "launcher/command_line.h"
#include "launcher/loadtest/report.h"
#include "testing/one_line_error.h"
#include "testing/temporary_directory.h"

namespace outrider {
namespace {

using std::chrono::duration;

constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

// What a call answers: chunks of tokens, a complete that counts them, a status.
struct Script {
  std::vector<std::vector<int32_t>> chunks = {{1}, {2, 3}};
  grpc::Status status = grpc::Status::OK;
  int64_t completion_tokens = 3;  // negative: no complete
};

class ScriptedCall final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  // Once; from then on gRPC owns it.
  void answer(const Script& script) {
    for (const auto& tokens : script.chunks) {
      auto* chunk = messages_.emplace_back().mutable_chunk();
      chunk->mutable_token_ids()->Add(tokens.begin(), tokens.end());
    }
    if (script.completion_tokens >= 0 && script.status.ok()) {
      messages_.emplace_back().mutable_complete()->set_completion_tokens(script.completion_tokens);
    }
    status_ = script.status;
    next();
  }
  void OnWriteDone(bool) override { next(); }
  void OnDone() override { delete this; }

 private:
  void next() {
    if (written_ == messages_.size()) return Finish(status_);
    StartWrite(&messages_[written_++]);
  }

  std::vector<v1::GenerateResponse> messages_;
  size_t written_ = 0;
  grpc::Status status_;
};

// Answers as `script` says, but holds every call until `hold_until` of them have come.
class ScriptedServer final : public v1::GenerationService::CallbackService {
 public:
  explicit ScriptedServer(
      std::function<Script(int64_t index)> script = [](int64_t) { return Script(); },
      int64_t hold_until = 0)
      : script_(std::move(script)), hold_until_(hold_until) {
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 256);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~ScriptedServer() override {
    release();
    server_->Shutdown();
  }

  ServerAddress address() const { return {.port = port_}; }

  void wait_for_calls(int64_t count) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return num_calls_ >= count; });
  }
  int64_t num_calls() {
    const std::lock_guard lock(mutex_);
    return num_calls_;
  }
  int64_t most_at_once() {
    const std::lock_guard lock(mutex_);
    return most_held_;
  }

  // What is held is answered, and nothing is held any more.
  void release() {
    std::vector<std::pair<ScriptedCall*, int64_t>> held;
    {
      const std::lock_guard lock(mutex_);
      hold_until_ = 0;
      held.swap(held_);
    }
    for (const auto& [call, index] : held) call->answer(script_(index));
  }

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext*,
                                                           const v1::GenerateRequest*) override {
    auto* call = new ScriptedCall;
    bool enough = false;
    {
      const std::lock_guard lock(mutex_);
      held_.emplace_back(call, num_calls_++);
      most_held_ = std::max(most_held_, static_cast<int64_t>(held_.size()));
      enough = num_calls_ >= hold_until_;
      arrived_.notify_all();
    }
    if (enough) release();
    return call;
  }
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest*,
                                          v1::GetServerInfoResponse* response) override {
    response->set_num_ranks(7);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const std::function<Script(int64_t)> script_;
  int port_ = 0;
  std::mutex mutex_;  // guards all below
  std::condition_variable arrived_;
  int64_t hold_until_;
  int64_t num_calls_ = 0, most_held_ = 0;
  std::vector<std::pair<ScriptedCall*, int64_t>> held_;
  std::unique_ptr<grpc::Server> server_;
};

std::unique_ptr<LoadGenerator> make_generator(const ScriptedServer& server, LoadPlan plan,
                                              LoadOptions options = {.timeout_s = 30,
                                                                     .progress_every_s = 0}) {
  const auto ask = [index = 0]() mutable {
    v1::GenerateRequest request;
    request.set_text("x");
    return LoadGenerator::Ask{index++, request};
  };
  return std::make_unique<LoadGenerator>(server.address(), std::move(plan), ask,
                                         std::move(options));
}

LoadResult run(const ScriptedServer& server, LoadPlan plan) {
  return make_generator(server, std::move(plan))->run();
}

TEST(LoadGenerator, RecordsWhatCame) {
  ScriptedServer server;
  const LoadResult result = run(server, open_loop(1000, kForever, 20, 1));
  ASSERT_EQ(result.records.size(), 20u);
  for (size_t i = 0; i < result.records.size(); ++i) {
    const RequestRecord& record = result.records[i];
    EXPECT_EQ(record.index, static_cast<int64_t>(i));
    EXPECT_EQ(record.prompt, static_cast<int>(i));
    EXPECT_EQ(record.status, "OK") << record.error;
    EXPECT_EQ(record.token_ids, (std::vector<int32_t>{1, 2, 3}));
    ASSERT_EQ(record.chunks.size(), 2u);
    EXPECT_EQ(record.chunks[1].num_tokens, 2);
    EXPECT_LE(record.due_s, record.sent_s);
    EXPECT_LE(record.sent_s, record.chunks[0].at_s);
    EXPECT_LE(record.chunks[0].at_s, record.chunks[1].at_s);
    EXPECT_LE(record.chunks[1].at_s, record.end_s);
  }
  EXPECT_FALSE(result.gave_up);
  EXPECT_FALSE(result.interrupted);
}

// No coordinated omission. The server answers nobody before the last request has come, so this ends
// only if requests are sent while earlier ones wait; and each must have waited from when it was due
// until the last one was, which all but the last would not have if the stall had delayed them.
TEST(LoadGenerator, AStalledServerCannotHide) {
  constexpr int kRequests = 50;
  ScriptedServer server([](int64_t) { return Script(); }, kRequests);
  const LoadPlan plan = open_loop(200, kForever, kRequests, 1);
  const LoadResult result = run(server, plan);
  ASSERT_EQ(result.records.size(), plan.due_s.size());
  EXPECT_EQ(server.most_at_once(), kRequests);
  for (size_t i = 0; i < plan.due_s.size(); ++i) {
    const RequestRecord& record = result.records[i];
    ASSERT_TRUE(record.ok()) << record.error;
    EXPECT_EQ(record.due_s, plan.due_s[i]);
    EXPECT_GE(record.chunks[0].at_s - record.due_s, plan.due_s.back() - plan.due_s[i]);
  }
  const LoadReport report = make_report(result.records, 0, result.load_end_s);
  EXPECT_GE(report.ttft.max, 1e3 * (plan.due_s.back() - plan.due_s.front()));
  EXPECT_GE(report.ttft.p50, 1e3 * (plan.due_s.back() - plan.due_s[kRequests / 2]));
}

// The same where this program is what stalls: its time began long ago, so every request is late.
TEST(LoadGenerator, LatencyCountsFromWhenARequestWasDue) {
  constexpr double kLateS = 100;
  ScriptedServer server;
  const LoadPlan plan = open_loop(1000, kForever, 20, 1);
  const auto start =
      LoadClock::now() - std::chrono::duration_cast<LoadClock::duration>(duration<double>(kLateS));
  const LoadResult result = make_generator(server, plan)->run(start);
  const LoadReport report = make_report(result.records, 0, result.load_end_s);
  EXPECT_EQ(report.requests, 20);
  EXPECT_GE(report.ttft.p50, 1e3 * (kLateS - plan.due_s.back()));
  EXPECT_GE(report.e2e.p50, 1e3 * (kLateS - plan.due_s.back()));
  EXPECT_GE(report.send_delay.p50, 1e3 * (kLateS - plan.due_s.back()));
  EXPECT_EQ(result.records.front().due_s, plan.due_s.front());
}

TEST(LoadGenerator, TheClosedLoopKeepsItsUsersBusy) {
  constexpr int kUsers = 6;
  ScriptedServer server([](int64_t) { return Script(); }, kUsers);  // all of them come at once
  const LoadResult result = run(server, closed_loop(kUsers, kForever, 40));
  EXPECT_EQ(result.records.size(), 40u);
  EXPECT_EQ(server.num_calls(), 40);
  EXPECT_EQ(server.most_at_once(), kUsers);
  EXPECT_GT(result.records.back().due_s, 0);
}

TEST(LoadGenerator, TheClosedLoopEndsWithItsTime) {
  ScriptedServer server;
  const LoadResult result = run(server, closed_loop(2, 0.05, kAny));
  EXPECT_GE(result.records.size(), 2u);
  for (const RequestRecord& record : result.records) EXPECT_LT(record.due_s, 0.05);
  EXPECT_EQ(result.load_end_s, 0.05);
}

// The server takes 256 streams a connection; gRPC would queue the rest in this process.
TEST(LoadGenerator, HundredsOfStreamsRunAtOnce) {
  constexpr int kUsers = 600;
  ScriptedServer server([](int64_t) { return Script(); }, kUsers);
  const LoadResult result = run(server, closed_loop(kUsers, kForever, kUsers));
  EXPECT_EQ(server.most_at_once(), kUsers);
  for (const RequestRecord& record : result.records) EXPECT_TRUE(record.ok()) << record.error;
}

TEST(LoadGenerator, HalfOfTheRequestsMayFail) {
  ScriptedServer server([](int64_t index) {
    Script script;
    if (index % 2 == 1) {
      script.chunks.pop_back();
      script.status = {grpc::StatusCode::UNAVAILABLE, "every other one"};
    }
    return script;
  });
  const LoadResult result = run(server, open_loop(1000, kForever, 100, 1));
  const LoadReport report = make_report(result.records, 0, result.load_end_s);
  EXPECT_EQ(report.requests, 100);
  EXPECT_EQ(report.errors, 50);
  EXPECT_EQ(report.errors_by_code.at("UNAVAILABLE"), 50);
  EXPECT_EQ(report.first_error_by_code.at("UNAVAILABLE"), "every other one");
  EXPECT_EQ(report.e2e.count, 50);
  EXPECT_FALSE(result.gave_up);
}

// Nothing has ever succeeded: a test of an hour need not go on.
TEST(LoadGenerator, GivesUpWhereEverythingFails) {
  ScriptedServer server([](int64_t) {
    return Script{.chunks = {}, .status = {grpc::StatusCode::INVALID_ARGUMENT, "no"}};
  });
  for (const LoadPlan& plan : {open_loop(1000, 3600, kAny, 1), closed_loop(10, 3600, kAny)}) {
    const LoadResult result = run(server, plan);
    EXPECT_TRUE(result.gave_up);
    EXPECT_GE(static_cast<int64_t>(result.records.size()), kGiveUpAfter);
    EXPECT_LT(result.load_end_s, 3600);
    for (const RequestRecord& record : result.records) {
      EXPECT_EQ(record.status, "INVALID_ARGUMENT");
    }
  }
}

TEST(LoadGenerator, AnAnswerThatIsNotWholeIsAnError) {
  ScriptedServer server([](int64_t index) {
    const int64_t said[] = {3, 4, -1};  // right; one token too many; no complete
    return Script{.completion_tokens = said[index % 3]};
  });
  const LoadResult result = run(server, closed_loop(1, kForever, 3));
  ASSERT_EQ(result.records.size(), 3u);
  EXPECT_EQ(result.records[0].status, "OK");
  EXPECT_EQ(result.records[1].status, "DATA_LOSS");
  EXPECT_EQ(result.records[1].error, "complete says 4 tokens, the chunks held 3");
  EXPECT_EQ(result.records[2].status, "DATA_LOSS");
}

TEST(LoadGenerator, StopsWhenTold) {
  ScriptedServer server([](int64_t) { return Script(); }, kAny);  // answers nobody
  const auto generator = make_generator(server, closed_loop(5, 3600, kAny));
  std::thread stopper([&] {
    server.wait_for_calls(5);
    generator->stop();
  });
  const LoadResult result = generator->run();
  stopper.join();
  EXPECT_TRUE(result.interrupted);
  EXPECT_LT(result.load_end_s, 3600);
  ASSERT_EQ(result.records.size(), 5u);
  for (const RequestRecord& record : result.records) EXPECT_TRUE(record.cancelled);
}

TEST(LoadGenerator, GivesUpOnAnAnswerInTime) {
  ScriptedServer server([](int64_t) { return Script(); }, kAny);
  const LoadResult result = make_generator(server, closed_loop(2, kForever, 2),
                                           {.timeout_s = 0.05, .progress_every_s = 0})
                                ->run();
  for (const RequestRecord& record : result.records) {
    EXPECT_EQ(record.status, "DEADLINE_EXCEEDED");
  }
}

TEST(LoadGenerator, SaysHowItGoesOn) {
  ScriptedServer server([](int64_t) { return Script(); }, kAny);
  std::vector<LoadProgress> seen;
  LoadOptions options{.progress_every_s = 0.01};
  options.on_progress = [&](const LoadProgress& progress) {
    seen.push_back(progress);
    if (seen.size() == 3) server.release();
  };
  make_generator(server, closed_loop(4, kForever, 4), options)->run();
  ASSERT_GE(seen.size(), 3u);
  EXPECT_GE(seen[0].elapsed_s, 0.01);
  EXPECT_GT(seen[2].elapsed_s, seen[1].elapsed_s);
  EXPECT_EQ(seen[2].running, 4);
  EXPECT_EQ(seen[2].done, 0);
}

// The command, in this process.
class Loadtest : public testing::Test {
 protected:
  int run(const ScriptedServer& server, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(),
                     {"loadtest", "--port", std::to_string(server.address().port), "--json",
                      json_path().string(), "--report-every", "0"});
    int exit_code = 0;
    const Action action = parse_command_line(arguments, exit_code);
    EXPECT_TRUE(action);
    testing::internal::CaptureStdout();
    try {
      exit_code = action();
    } catch (const Error&) {
      output_ = testing::internal::GetCapturedStdout();
      throw;
    }
    output_ = testing::internal::GetCapturedStdout();
    return exit_code;
  }
  std::filesystem::path json_path() const { return directory_.path() / "report.json"; }
  nlohmann::json report() const { return nlohmann::json::parse(std::ifstream(json_path())); }

  TemporaryDirectory directory_;
  std::string output_;
};

TEST_F(Loadtest, ReportsOnTheTerminalAndInJson) {
  ScriptedServer server;
  EXPECT_EQ(run(server, {"--concurrency", "4", "--requests", "40", "--temperature", "0"}), 0);
  EXPECT_EQ(report()["requests"], 40);
  EXPECT_EQ(report()["errors"], 0);
  EXPECT_EQ(report()["completion_tokens"], 120);
  EXPECT_EQ(report()["server"]["num_ranks"], 7);
  EXPECT_EQ(report()["server_afterwards"]["num_requests_running"], 0);
  EXPECT_EQ(report()["greedy"]["differences"].size(), 0u);
  EXPECT_GT(report()["greedy"]["num_compared"], 0);
  EXPECT_NE(output_.find("40 requests, 0 errors"), std::string::npos) << output_;
  EXPECT_NE(output_.find("P99.9"), std::string::npos);
}

TEST_F(Loadtest, ReportsWhatFailed) {
  ScriptedServer server([](int64_t index) {
    Script script;
    if (index % 2 == 1) script.status = {grpc::StatusCode::RESOURCE_EXHAUSTED, "full"};
    return script;
  });
  EXPECT_EQ(run(server, {"--rate", "1000", "--requests", "60"}), 0);
  EXPECT_EQ(report()["requests"], 60);
  EXPECT_EQ(report()["errors"], 30);
  EXPECT_EQ(report()["errors_by_code"]["RESOURCE_EXHAUSTED"], 30);
  EXPECT_TRUE(report()["greedy"].is_null());
  EXPECT_NE(output_.find("30 RESOURCE_EXHAUSTED, the first: full"), std::string::npos) << output_;
}

TEST_F(Loadtest, IsVoidWhereNothingSucceeded) {
  ScriptedServer server([](int64_t) {
    return Script{.chunks = {}, .status = {grpc::StatusCode::INTERNAL, "broken"}};
  });
  expect_one_line_error({"void", "INTERNAL", "broken"}, [&] {
    run(server, {"--concurrency", "4", "--duration", "3600"});
  });
  EXPECT_EQ(report()["requests"], report()["errors"]);
  EXPECT_TRUE(report()["gave_up"]);
  EXPECT_TRUE(report()["e2e_ms"]["p99"].is_null());
  EXPECT_EQ(output_.find("nan"), std::string::npos) << output_;
}

TEST_F(Loadtest, GreedyAnswersThatDifferFailIt) {
  ScriptedServer server([](int64_t index) {
    Script script;
    if (index == 77) script.chunks[1][1] = 99;
    return script;
  });
  expect_one_line_error({"1 of", "greedy", "token 2"}, [&] {
    run(server, {"--concurrency", "4", "--requests", "200", "--temperature", "0"});
  });
  EXPECT_EQ(report()["greedy"]["differences"].size(), 1u);
  EXPECT_EQ(report()["errors"], 0);
  // Sampled answers may differ.
  EXPECT_EQ(run(server, {"--concurrency", "4", "--requests", "200", "--temperature", "1"}), 0);
}

}  // namespace
}  // namespace outrider
