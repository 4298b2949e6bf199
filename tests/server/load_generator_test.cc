// The load generator, against servers that stall, fail or lie.
#include "launcher/loadtest/load_generator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "launcher/loadtest/report.h"
#include "tests/server/scripted_server.h"

namespace outrider {
namespace {

using std::chrono::duration;

constexpr double kForever = std::numeric_limits<double>::infinity();

LoadOptions quietly() { return {.timeout_s = 30, .progress_every_s = 0}; }

struct OwnConnections {
  Connections connections;
};

class Generator : private OwnConnections, public LoadGenerator {
 public:
  Generator(const ScriptedServer& server, LoadPlan plan, std::function<Ask()> ask,
            LoadOptions options)
      : OwnConnections{Connections(server.address())},
        LoadGenerator(connections, std::move(plan), std::move(ask), std::move(options)) {}
};

std::unique_ptr<Generator> make_generator(const ScriptedServer& server, LoadPlan plan,
                                          LoadOptions options = quietly()) {
  const auto ask = [index = 0]() mutable {
    v1::GenerateRequest request;
    request.set_text("x");
    return LoadGenerator::Ask{index++, request};
  };
  return std::make_unique<Generator>(server, std::move(plan), ask, std::move(options));
}

LoadResult run(const ScriptedServer& server, LoadPlan plan) {
  return make_generator(server, std::move(plan))->run();
}

TEST(LoadGenerator, RecordsWhatCame) {
  Script script;
  script.complete.set_finish_reason(v1::FINISH_REASON_STOP);
  script.complete.set_prompt_tokens(11);
  script.complete.set_cached_tokens(12);
  script.complete.mutable_timings()->set_queue_ms(13);
  v1::SpeculationStats& speculation = *script.complete.mutable_speculation();
  speculation.set_num_spec_steps(15);
  speculation.set_num_draft_tokens(16);
  speculation.set_num_accepted_draft_tokens(17);
  speculation.set_num_alternative_draft_tokens(18);
  speculation.set_num_accepted_alternatives(19);
  speculation.set_mean_acceptance_length(1.8);
  speculation.set_mode("coupled");
  speculation.set_drafter("head");
  ScriptedServer server([&](int64_t) { return script; });
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
    EXPECT_TRUE(record.stopped);
    EXPECT_EQ(record.prompt_tokens, 11);
    EXPECT_EQ(record.cached_tokens, 12);
    EXPECT_EQ(record.queue_ms, 13);
    EXPECT_EQ(record.num_spec_steps, 15);
    EXPECT_EQ(record.num_draft_tokens, 16);
    EXPECT_EQ(record.num_accepted_draft_tokens, 17);
    EXPECT_EQ(record.num_alternative_draft_tokens, 18);
    EXPECT_EQ(record.num_accepted_alternatives, 19);
    EXPECT_EQ(record.mean_acceptance_length, 1.8);
    EXPECT_EQ(record.mode, "coupled");
    EXPECT_EQ(record.drafter, "head");
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

// Where this program comes late, its users have waited all the same.
TEST(LoadGenerator, AUserOfTheClosedLoopIsDueWhenAnswered) {
  constexpr size_t kUsers = 3;
  ScriptedServer server;
  const auto slow_ask = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    v1::GenerateRequest request;
    request.set_text("x");
    return LoadGenerator::Ask{0, request};
  };
  Generator generator(server, closed_loop(kUsers, kForever, 20), slow_ask, quietly());
  const LoadResult result = generator.run();
  std::set<double> ends_s;
  for (const RequestRecord& record : result.records) ends_s.insert(record.end_s);
  for (size_t i = kUsers; i < result.records.size(); ++i) {
    EXPECT_TRUE(ends_s.contains(result.records[i].due_s)) << i;
    EXPECT_GE(result.records[i].sent_s - result.records[i].due_s, 0.005);
  }
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

// A server that refuses at once is not asked again at once.
TEST(LoadGenerator, AUserWhomTheServerRefusesWaits) {
  ScriptedServer server([](int64_t index) {
    return index == 2 ? Script()
                      : Script{.chunks = {}, .status = {grpc::StatusCode::RESOURCE_EXHAUSTED, ""}};
  });
  const LoadResult result = run(server, closed_loop(1, kForever, 5));
  ASSERT_EQ(result.records.size(), 5u);
  for (size_t i = 1; i < result.records.size(); ++i) {
    const double pause = result.records[i].due_s - result.records[i - 1].end_s;
    EXPECT_NEAR(pause, result.records[i - 1].ok() ? 0 : 0.1, 1e-9) << i;
  }
}

// Some fail at once and some take longer: that says nothing of the others.
TEST(LoadGenerator, GoesOnWhereSomeOfTheFirstRun) {
  ScriptedServer server([](int64_t index) {
    Script script;
    if (index < 10) script.chunks.assign(2000, {1});
    if (index >= 10 && index < 60) {
      script = {.chunks = {}, .status = {grpc::StatusCode::RESOURCE_EXHAUSTED, "full"}};
    }
    return script;
  });
  const LoadResult result = run(server, open_loop(1000, kForever, 100, 1));
  EXPECT_FALSE(result.gave_up);
  EXPECT_EQ(result.records.size(), 100u);
}

// All of it is overdue, so that there is always something to send.
TEST(LoadGenerator, SeesEndsAndStopsWhereItCannotKeepUp) {
  constexpr int kRequests = 200'000;
  const auto long_ago = LoadClock::now() - std::chrono::seconds(1000);
  ScriptedServer refuses([](int64_t) {
    return Script{.chunks = {}, .status = {grpc::StatusCode::INVALID_ARGUMENT, "no"}};
  });
  const LoadPlan plan = open_loop(1000, kForever, kRequests, 1);
  const LoadResult given_up = make_generator(refuses, plan)->run(long_ago);
  EXPECT_TRUE(given_up.gave_up);
  EXPECT_LT(given_up.records.size(), kRequests / 2);

  ScriptedServer server;
  const auto generator = make_generator(server, plan);
  std::thread stopper([&] {
    server.wait_for_calls(100);
    generator->stop();
  });
  const LoadResult stopped = generator->run(long_ago);
  stopper.join();
  EXPECT_TRUE(stopped.interrupted);
  EXPECT_LT(stopped.records.size(), kRequests / 2);
}

// A load test of many turns would wait for new ones in each.
TEST(LoadGenerator, ConnectionsOutliveALoad) {
  ScriptedServer server;
  Connections connections(server.address());
  const auto ask = [] {
    v1::GenerateRequest request;
    request.set_text("x");
    return LoadGenerator::Ask{0, request};
  };
  const auto* const first = &connections.with_room();
  for (int load = 0; load < 2; ++load) {
    LoadGenerator generator(connections, closed_loop(3, kForever, 9), ask, quietly());
    EXPECT_EQ(generator.run().records.size(), 9u);
    EXPECT_EQ(connections.with_room().num_streams, 0);
    EXPECT_EQ(&connections.with_room(), first);
  }
  EXPECT_EQ(server.peers().size(), 1u);
}

// What a request waits for is the server, not a connection of its own.
TEST(LoadGenerator, ConnectionsAreThereBeforeTheyAreUsed) {
  ScriptedServer server;
  Connections of_users(server.address()), of_few(server.address()), of_open(server.address());
  const auto ask = [] { return LoadGenerator::Ask{}; };
  const LoadGenerator users(of_users, closed_loop(250, kForever, 1000), ask, quietly());
  const LoadGenerator few(of_few, closed_loop(250, kForever, 150), ask, quietly());
  const LoadGenerator open(of_open, open_loop(1000, kForever, 250, 1), ask, quietly());
  EXPECT_EQ(of_users.size(), 3);
  EXPECT_EQ(of_few.size(), 2);
  EXPECT_EQ(of_open.size(), 1);
  for (int i = 0; i < 4; ++i) {
    Connections::Connection& connection = of_users.with_room();
    if (i > 0) {  // the first is opened by its first call
      EXPECT_EQ(connection.channel->GetState(false), GRPC_CHANNEL_READY) << i;
    }
    connection.num_streams = 100;
  }
  EXPECT_EQ(of_users.size(), 4);
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

}  // namespace
}  // namespace outrider
