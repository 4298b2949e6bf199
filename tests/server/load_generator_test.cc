// The load generator, and `outrider loadtest` as a whole, against servers that stall, fail or lie.
#include "launcher/loadtest/load_generator.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
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
  using Held = std::vector<std::pair<ScriptedCall*, int64_t>>;

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
  // In the order in which they came.
  std::vector<v1::GenerateRequest> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  int64_t most_at_once() {
    const std::lock_guard lock(mutex_);
    return most_held_;
  }

  // From now on it answers nobody.
  void freeze() {
    const std::lock_guard lock(mutex_);
    hold_until_ = std::numeric_limits<int64_t>::max();
  }

  // What is held is answered, and nothing is held any more.
  void release() {
    Held held;
    {
      const std::lock_guard lock(mutex_);
      hold_until_ = 0;
      held.swap(held_);
    }
    answer(held);
  }

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext*, const v1::GenerateRequest* request) override {
    auto* call = new ScriptedCall;
    Held answered;
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(*request);
      held_.emplace_back(call, num_calls_++);
      most_held_ = std::max(most_held_, static_cast<int64_t>(held_.size()));
      if (num_calls_ >= hold_until_) answered.swap(held_);
      arrived_.notify_all();
    }
    answer(answered);
    return call;
  }
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest*,
                                          v1::GetServerInfoResponse* response) override {
    response->set_num_ranks(7);
    response->set_lookahead("fixed:3");
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const v1::GetModelInfoRequest*,
                                         v1::GetModelInfoResponse* response) override {
    response->set_vocab_size(11);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  void answer(const Held& held) {
    for (const auto& [call, index] : held) call->answer(script_(index));
  }

  const std::function<Script(int64_t)> script_;
  int port_ = 0;
  std::mutex mutex_;  // guards all below
  std::condition_variable arrived_;
  int64_t hold_until_;
  int64_t num_calls_ = 0, most_held_ = 0;
  std::vector<v1::GenerateRequest> requests_;
  Held held_;
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
  const LoadReport report = make_report({result});
  EXPECT_GE(report.ttft.max, 1e3 * (plan.due_s.back() - plan.due_s.front()));
  EXPECT_GE(report.ttft.p50, 1e3 * (plan.due_s.back() - plan.due_s[kRequests / 2]));
}

// A server that freezes for 300 ms in the middle of its work. Whatever is due meanwhile waits for
// the rest of them, so the percentiles are at least those of these waits and of none for the
// others.
TEST(LoadGenerator, APauseShowsInThePercentiles) {
  constexpr int kRequests = 200;
  ScriptedServer server;
  const LoadPlan plan = open_loop(400, kForever, kRequests, 1);
  const auto start = LoadClock::now();
  double frozen_s = 0, thawed_s = 0;
  std::thread pause([&] {
    server.wait_for_calls(20);
    server.freeze();
    frozen_s = seconds_since(start, LoadClock::now());
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    thawed_s = seconds_since(start, LoadClock::now());
    server.release();
  });
  const LoadResult result = make_generator(server, plan)->run(start);
  pause.join();
  Samples least_ms;
  int due_meanwhile = 0;
  for (const RequestRecord& record : result.records) {
    ASSERT_TRUE(record.ok()) << record.error;
    const bool frozen = record.due_s >= frozen_s && record.due_s < thawed_s;
    due_meanwhile += frozen ? 1 : 0;
    least_ms.add(frozen ? 1e3 * (thawed_s - record.due_s) : 0, record.index);
  }
  ASSERT_GT(due_meanwhile, 0);
  const LoadReport report = make_report({result});
  const Summary least = summarise(least_ms, 0);
  EXPECT_GT(least.p99, 0);
  for (const auto& [name, member] : kStatistics) {
    EXPECT_GE(report.e2e.*member, least.*member) << name;
    EXPECT_GE(report.ttft.*member, least.*member) << name;
  }
}

// The closed loop cannot show it: of one user, one request waits.
TEST(LoadGenerator, APauseHidesFromAClosedLoop) {
  ScriptedServer server;
  std::thread pause([&] {
    server.wait_for_calls(20);
    server.freeze();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server.release();
  });
  run(server, closed_loop(1, kForever, 100));
  pause.join();
  EXPECT_EQ(server.most_at_once(), 1);
}

// The same where this program is what stalls: its time began long ago, so every request is late.
TEST(LoadGenerator, LatencyCountsFromWhenARequestWasDue) {
  constexpr double kLateS = 100;
  ScriptedServer server;
  const LoadPlan plan = open_loop(1000, kForever, 20, 1);
  const auto start =
      LoadClock::now() - std::chrono::duration_cast<LoadClock::duration>(duration<double>(kLateS));
  const LoadResult result = make_generator(server, plan)->run(start);
  const LoadReport report = make_report({result});
  EXPECT_EQ(report.requests, 20);
  EXPECT_GE(report.ttft.p50, 1e3 * (kLateS - plan.due_s.back()));
  EXPECT_GE(report.e2e.p50, 1e3 * (kLateS - plan.due_s.back()));
  EXPECT_GE(report.send_delay.p50, 1e3 * (kLateS - plan.due_s.back()));
  EXPECT_EQ(result.records.front().due_s, plan.due_s.front());
  for (const RequestRecord& record : result.records) {  // from sending, nothing of it is seen
    EXPECT_LT(record.end_s - record.sent_s, kLateS / 2);
  }
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
  const LoadReport report = make_report({result});
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
  std::string html_path() const { return directory_.path() / "report.html"; }
  std::string samples_path() const { return directory_.path() / "samples.jsonl"; }
  std::string html() const {
    std::ifstream file(html_path());
    return {std::istreambuf_iterator<char>(file), {}};
  }
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

TEST_F(Loadtest, IsVoidWhereMoreFailedThanSucceeded) {
  ScriptedServer server([](int64_t index) {
    Script script;
    if (index % 3 != 0) script.status = {grpc::StatusCode::UNAVAILABLE, "two of three"};
    return script;
  });
  expect_one_line_error({"void", "20 of 60", "UNAVAILABLE", "two of three"}, [&] {
    run(server, {"--rate", "1000", "--requests", "60"});
  });
  EXPECT_EQ(report()["errors_by_code"]["UNAVAILABLE"], 40);  // the report is there all the same
  EXPECT_EQ(report()["ttft_ms"]["count"], 20);
}

TEST_F(Loadtest, AnswersOfOneTokenHaveNoPace) {
  ScriptedServer server([](int64_t) { return Script{.chunks = {{1}}, .completion_tokens = 1}; });
  EXPECT_EQ(run(server, {"--concurrency", "2", "--requests", "10", "--slo", "tpot=30ms"}), 0);
  EXPECT_EQ(report()["tpot_ms"]["count"], 0);
  EXPECT_TRUE(report()["tpot_ms"]["p50"].is_null());
  EXPECT_TRUE(report()["itl_ms"]["p50"].is_null());
  EXPECT_EQ(report()["goodput"]["requests"], 10);
  EXPECT_NE(output_.find("n/a"), std::string::npos) << output_;
}

TEST_F(Loadtest, SweepsUntilTheServerIsSaturated) {
  ScriptedServer server;
  EXPECT_EQ(run(server, {"--sweep", "users=1,2", "--requests", "30", "--html", html_path()}), 0);
  nlohmann::json sweep = report()["sweep"];
  ASSERT_EQ(sweep["steps"].size(), 2u);
  EXPECT_EQ(sweep["variable"], "users");
  EXPECT_EQ(sweep["steps"][1]["value"], 2);
  EXPECT_EQ(sweep["steps"][1]["requests"], 30);
  EXPECT_TRUE(sweep["saturated_at"].is_null());
  EXPECT_TRUE(sweep["knee"].is_number());
  EXPECT_NE(output_.find("Knee at users="), std::string::npos) << output_;
  EXPECT_NE(html().find("Throughput against P99"), std::string::npos);
}

TEST_F(Loadtest, ASweepEndsWhereItIsSaturated) {
  ScriptedServer server([](int64_t index) {
    Script script;
    if (index >= 30) script.status = {grpc::StatusCode::RESOURCE_EXHAUSTED, "full"};
    return script;
  });
  EXPECT_EQ(run(server, {"--sweep", "rate=20,2000,4000", "--requests", "30"}), 0);
  EXPECT_EQ(report()["sweep"]["steps"].size(), 2u);
  EXPECT_EQ(report()["sweep"]["saturated_at"], 2000);
  EXPECT_NE(output_.find("saturated at rate=2000, so more was not tried"), std::string::npos)
      << output_;
  EXPECT_NE(output_.find("RESOURCE_EXHAUSTED, the first: full"), std::string::npos) << output_;
}

// A server that has stopped answering: the time limit of the requests ends it.
TEST_F(Loadtest, ASweepPastSaturationEnds) {
  ScriptedServer server([](int64_t) { return Script(); }, kAny);
  expect_one_line_error({"rate=1000", "void", "DEADLINE_EXCEEDED"}, [&] {
    run(server, {"--sweep", "rate=1000,2000", "--requests", "30", "--timeout", "0.3"});
  });
  EXPECT_EQ(report()["sweep"]["saturated_at"], 1000);
  EXPECT_TRUE(report()["sweep"]["knee"].is_null());
}

TEST_F(Loadtest, ComparesArmsInTurns) {
  ScriptedServer server;
  EXPECT_EQ(run(server, {"--compare", "K=0,4", "--rounds", "3", "--concurrency", "1", "--requests",
                         "4", "--html", html_path(), "--samples", samples_path()}),
            0);
  const nlohmann::json compare = report()["compare"];
  EXPECT_EQ(compare["rounds"], 3);
  ASSERT_EQ(compare["arms"].size(), 2u);
  EXPECT_EQ(compare["arms"][0]["requests"], 12);
  EXPECT_EQ(compare["arms"][1]["requests"], 12);
  EXPECT_GT(compare["ratios"][0]["tpot_ms"]["p50"]["ratio"], 0);
  EXPECT_NE(html().find("K=4 / K=0"), std::string::npos);
  EXPECT_NE(output_.find("K=4 / K=0, end to end"), std::string::npos) << output_;

  // What was asked, in the order of asking: K=0 first, then K=4 first; each round's questions are
  // the same for both, and go on from round to round.
  std::vector<v1::GenerateRequest> requests = server.requests();
  ASSERT_EQ(requests.size(), 24u);
  const int32_t tokens[] = {0, 4, 4, 0, 0, 4};
  std::set<std::string> prompts;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(requests[i].speculation().num_speculative_tokens(), tokens[i / 4]) << i;
    EXPECT_EQ(requests[i].request_id(), "loadtest-" + std::to_string(i));
    prompts.insert(requests[i].messages().SerializeAsString());
    if (i % 8 < 4) continue;
    v1::GenerateRequest other = requests[i - 4];
    other.set_request_id(requests[i].request_id());
    other.mutable_speculation()->set_num_speculative_tokens(tokens[i / 4]);
    EXPECT_EQ(other.SerializeAsString(), requests[i].SerializeAsString()) << i;
  }
  EXPECT_EQ(prompts.size(), 12u);
  std::ifstream samples(samples_path());
  std::string line;
  std::getline(samples, line);
  EXPECT_EQ(nlohmann::json::parse(line)["run"], "K=0, round 0");
}

TEST_F(Loadtest, AnAdaptiveArmNeedsAnAdaptiveServer) {
  ScriptedServer server;
  expect_one_line_error({"K=adaptive", "fixed:3", "--lookahead adaptive"}, [&] {
    run(server, {"--compare", "K=0,adaptive", "--concurrency", "1", "--requests", "1"});
  });
}

TEST_F(Loadtest, ReplaysATrace) {
  directory_.write("trace.jsonl",
                   "{\"timestamp\": 70, \"text\": \"one\", \"output_length\": 9}\n"
                   "{\"timestamp\": 80, \"input_length\": 5}\n"
                   "{\"timestamp\": 95, \"text\": \"three\"}\n");
  ScriptedServer server;
  EXPECT_EQ(run(server, {"--trace", directory_.path() / "trace.jsonl", "--raw", "--max-tokens", "7",
                         "--samples", samples_path()}),
            0);
  EXPECT_EQ(report()["requests"], 3);
  std::map<std::string, v1::GenerateRequest> requests;  // they may arrive in another order
  for (const auto& request : server.requests()) requests[request.request_id()] = request;
  EXPECT_EQ(requests["loadtest-0"].text(), "one");
  EXPECT_EQ(requests["loadtest-0"].sampling_params().max_tokens(), 9);
  EXPECT_EQ(requests["loadtest-1"].tokenized().input_ids_size(), 5);
  for (const int32_t id : requests["loadtest-1"].tokenized().input_ids()) EXPECT_LT(id, 11);
  EXPECT_EQ(requests["loadtest-1"].sampling_params().max_tokens(), 7);
  std::ifstream samples(samples_path());
  std::string line;
  for (const double due_s : {0.0, 0.010, 0.025}) {
    std::getline(samples, line);
    EXPECT_NEAR(nlohmann::json::parse(line)["due_s"].get<double>(), due_s, 1e-9);
  }
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
