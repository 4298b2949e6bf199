// `outrider loadtest` as a whole, in this process, against servers that stall, fail or lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "testing/one_line_error.h"
#include "tests/server/loadtest_harness.h"
#include "tests/server/scripted_server.h"

namespace outrider {
namespace {

TEST_F(Loadtest, ReportsOnTheTerminalAndInJson) {
  ScriptedServer server;
  EXPECT_EQ(run(server, {"--concurrency", "4", "--requests", "40", "--temperature", "0"}), 0);
  EXPECT_EQ(report()["requests"], 40);
  EXPECT_EQ(report()["errors"], 0);
  EXPECT_TRUE(report()["failure"].is_null());
  EXPECT_EQ(report()["completion_tokens"], 120);
  EXPECT_EQ(report()["server"]["num_ranks"], 7);
  EXPECT_EQ(report()["settings"]["raw"], false);
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
    run(server, {"--rate", "1000", "--requests", "60", "--html", html_path()});
  });
  EXPECT_NE(html().find("the test is void: 20 of 60 requests succeeded"), std::string::npos);
  EXPECT_EQ(report()["failure"].get<std::string>().find("the test is void: 20 of 60"), 0u);
  EXPECT_EQ(report()["errors_by_code"]["UNAVAILABLE"], 40);  // the report is there all the same
  EXPECT_EQ(report()["ttft_ms"]["count"], 20);
}

// What overload takes is the load's; all else is the server's, from a tenth on.
TEST_F(Loadtest, FailsWithItsServer) {
  const auto every_fifth = [](grpc::StatusCode code) {
    return ScriptedServer([code](int64_t index) {
      Script script;
      if (index % 5 == 0) script.status = {code, "one of five"};
      return script;
    });
  };
  constexpr char kSaid[] = "latencies are of the answers alone";
  {
    ScriptedServer server = every_fifth(grpc::StatusCode::INTERNAL);
    expect_one_line_error({"the server failed: 40 of 50", "INTERNAL", "one of five"}, [&] {
      run(server, {"--rate", "1000", "--requests", "50", "--html", html_path()});
    });
    EXPECT_EQ(report()["ttft_ms"]["count"], 40);  // the report is there all the same
    EXPECT_NE(output_.find(kSaid), std::string::npos) << output_;
    EXPECT_NE(html().find(kSaid), std::string::npos);
  }
  {
    ScriptedServer server = every_fifth(grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(run(server, {"--rate", "1000", "--requests", "50"}), 0);
    EXPECT_NE(output_.find(kSaid), std::string::npos) << output_;
  }
  ScriptedServer server;
  EXPECT_EQ(run(server, {"--rate", "1000", "--requests", "50"}), 0);
  EXPECT_EQ(output_.find(kSaid), std::string::npos) << output_;
}

TEST_F(Loadtest, AVoidTestHasACauseInTheWarmUpToo) {
  ScriptedServer server([](int64_t) {
    return Script{.chunks = {}, .status = {grpc::StatusCode::INTERNAL, "broken"}};
  });
  expect_one_line_error({"void", "0 of 0", "in the warm-up", "INTERNAL", "broken"}, [&] {
    run(server, {"--concurrency", "4", "--duration", "3600", "--warmup", "3000"});
  });
  EXPECT_EQ(report()["first_error_by_code"]["INTERNAL"], "broken");
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
  EXPECT_NE(output_.find("; throughput is greatest at users="), std::string::npos) << output_;
  EXPECT_EQ(output_.find("saturated"), std::string::npos) << output_;
  EXPECT_EQ(output_.find("alone"), std::string::npos) << output_;
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
  EXPECT_NE(output_.find("\nrate=2000 * "), std::string::npos) << output_;
  EXPECT_NE(output_.find("\n*: latencies are of the answers alone"), std::string::npos) << output_;
}

// What its first arm found leaves nothing to ask of the others.
TEST_F(Loadtest, ASweepEndsWhereItsFirstArmIsSaturatedAtOnce) {
  ScriptedServer server([](int64_t index) {
    Script script;
    if (index >= 600) script.status = {grpc::StatusCode::RESOURCE_EXHAUSTED, "full"};
    return script;
  });
  EXPECT_EQ(run(server, {"--sweep", "rate=200,2000", "--requests", "300", "--compare", "K=0,4",
                         "--rounds", "1"}),
            0);
  const nlohmann::json steps = report()["sweep"]["steps"];
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[1]["compare"]["arms"].size(), 1u);
  EXPECT_NE(output_.find("K=0: Knee at rate=200, where throughput / mean latency is greatest; "
                         "saturated at rate=2000"),
            std::string::npos)
      << output_;
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

// All answers fail from `index` on.
ScriptedServer dying_server(int64_t index) {
  return ScriptedServer([index](int64_t i) {
    Script script;
    if (i >= index) script.status = {grpc::StatusCode::UNAVAILABLE, "dead"};
    return script;
  });
}

// In the middle of a load, and within its warm-up. Users cannot saturate a machine that is busy
// with something else, as a rate can.
TEST_F(Loadtest, ASweepOfAServerThatEndsFails) {
  {
    ScriptedServer server = dying_server(50);
    expect_one_line_error({"users=2", "server failed", "20 of 30", "UNAVAILABLE", "dead"}, [&] {
      run(server, {"--sweep", "users=1,2,4", "--requests", "30", "--html", html_path()});
    });
    nlohmann::json sweep = report()["sweep"];
    ASSERT_EQ(sweep["steps"].size(), 2u);
    EXPECT_EQ(sweep["steps"][1]["failed"], true);
    EXPECT_TRUE(sweep["saturated_at"].is_null());
    EXPECT_EQ(sweep["knee"], 1);
    EXPECT_NE(output_.find("the server failed at users=2"), std::string::npos) << output_;
    EXPECT_EQ(output_.find("saturated at"), std::string::npos) << output_;
    EXPECT_NE(html().find("the server failed at users=2"), std::string::npos);
    EXPECT_NE(html().find("the server failed: 20 of 30 requests"), std::string::npos);
  }
  {
    ScriptedServer server = dying_server(100);
    expect_one_line_error({"rate=400", "server failed", "in the warm-up", "given up", "dead"}, [&] {
      run(server, {"--sweep", "rate=100,400", "--duration", "1", "--warmup", "0.9"});
    });
  }
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

  // What was asked, in the order of asking: K=0 first, then K=4 first, and backwards from there;
  // each round's questions are the same for both, and go on from round to round.
  std::vector<v1::GenerateRequest> requests = server.requests();
  ASSERT_EQ(requests.size(), 24u);
  const int32_t tokens[] = {0, 4, 4, 0, 4, 0};
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

TEST_F(Loadtest, ComparesArmsAtEachLoadOfASweep) {
  ScriptedServer server;
  EXPECT_EQ(run(server, {"--sweep", "users=1,2", "--compare", "K=0,4", "--rounds", "2",
                         "--requests", "4", "--html", html_path(), "--samples", samples_path()}),
            0);
  const nlohmann::json sweep = report()["sweep"];
  ASSERT_EQ(sweep["steps"].size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(sweep["steps"][i]["value"], i + 1);
    const nlohmann::json compare = sweep["steps"][i]["compare"];
    EXPECT_EQ(compare["rounds"], 2);
    ASSERT_EQ(compare["arms"].size(), 2u);
    for (const nlohmann::json& arm : compare["arms"]) {
      EXPECT_EQ(arm["requests"], 8);
      EXPECT_EQ(arm["saturated"], false);
      EXPECT_EQ(arm["failed"], false);
    }
    EXPECT_GT(compare["ratios"][0]["tpot_ms"]["p50"]["ratio"], 0);
  }
  ASSERT_EQ(sweep["knees"].size(), 2u);
  EXPECT_EQ(sweep["knees"][1]["arm"], "K=4");
  EXPECT_TRUE(sweep["knees"][1]["knee"].is_number());
  EXPECT_TRUE(sweep["knees"][1]["saturated_at"].is_null());
  for (const char* part : {"users=2, K=4 ", "K=0: Knee at users=", "K=4: Knee at users=",
                           "users=2, K=4 / K=0, end to end"}) {
    EXPECT_NE(output_.find(part), std::string::npos) << part << output_;
  }
  EXPECT_NE(html().find("users=2, K=4 / K=0, TPOT"), std::string::npos);
  EXPECT_NE(html().find("Throughput against P99"), std::string::npos);

  std::ifstream samples(samples_path());
  std::vector<std::string> runs;
  for (std::string line; std::getline(samples, line);) {
    const std::string run = nlohmann::json::parse(line)["run"];
    if (runs.empty() || runs.back() != run) runs.push_back(run);
  }
  EXPECT_EQ(runs, (std::vector<std::string>{"users=1, K=0, round 0", "users=1, K=4, round 0",
                                            "users=1, K=4, round 1", "users=1, K=0, round 1",
                                            "users=2, K=0, round 0", "users=2, K=4, round 0",
                                            "users=2, K=4, round 1", "users=2, K=0, round 1"}));
}

// Half of the answers that are asked from `begin` to `end` are refused.
ScriptedServer refusing_server(int64_t begin, int64_t end) {
  return ScriptedServer([begin, end](int64_t i) {
    Script script;
    if (i >= begin && i < end && i % 2 == 0) {
      script.status = {grpc::StatusCode::RESOURCE_EXHAUSTED, "full"};
    }
    return script;
  });
}

// The other one goes on without it.
TEST_F(Loadtest, AnArmEndsWhereItIsSaturated) {
  ScriptedServer server = refusing_server(60, 90);
  EXPECT_EQ(run(server, {"--sweep", "users=1,2,4", "--compare", "K=0,4", "--rounds", "1",
                         "--requests", "30", "--html", html_path()}),
            0);
  EXPECT_EQ(server.num_calls(), 150);
  const nlohmann::json sweep = report()["sweep"];
  ASSERT_EQ(sweep["steps"].size(), 3u);
  const nlohmann::json last = sweep["steps"][2]["compare"];
  ASSERT_EQ(last["arms"].size(), 1u);
  EXPECT_EQ(last["arms"][0]["name"], "K=4");
  EXPECT_EQ(last["ratios"].size(), 0u);
  EXPECT_EQ(sweep["steps"][1]["compare"]["arms"][0]["saturated"], true);
  EXPECT_EQ(sweep["steps"][1]["compare"]["arms"][0]["errors_by_code"]["RESOURCE_EXHAUSTED"], 15);
  EXPECT_EQ(sweep["steps"][1]["compare"]["ratios"].size(), 1u);
  EXPECT_EQ(sweep["knees"][0]["saturated_at"], 2);
  EXPECT_EQ(sweep["knees"][0]["knee"], 1);
  EXPECT_TRUE(sweep["knees"][1]["saturated_at"].is_null());
  for (const char* part :
       {"K=0: Knee at users=1", "saturated at users=2, so more was not tried",
        "15 RESOURCE_EXHAUSTED, the first: full", "; throughput is greatest at users="}) {
    EXPECT_NE(output_.find(part), std::string::npos) << part << output_;
  }
  EXPECT_NE(html().find(">2*<"), std::string::npos);
}

// An arm of which the first load says nothing makes the test void, whatever the other one brings.
TEST_F(Loadtest, ASweepOfWhichAnArmIsVoidFails) {
  ScriptedServer server([](int64_t i) {
    Script script;
    if (i < 30 && i % 3 != 0) script.status = {grpc::StatusCode::RESOURCE_EXHAUSTED, "full"};
    return script;
  });
  expect_one_line_error({"users=1, K=0", "void", "10 of 30", "full"}, [&] {
    run(server,
        {"--sweep", "users=1,2", "--compare", "K=0,4", "--rounds", "1", "--requests", "30"});
  });
  EXPECT_EQ(report()["sweep"]["steps"].size(), 2u);
  EXPECT_TRUE(report()["sweep"]["knees"][0]["knee"].is_null());
  EXPECT_TRUE(report()["sweep"]["knees"][1]["knee"].is_number());
}

// In the second load's second turn, in its first one, and between two turns too short to be given
// up alone.
TEST_F(Loadtest, ASweepOfComparisonsEndsWithItsServer) {
  const struct {
    int64_t dies_at;
    std::string requests, run;
  } cases[] = {{100, "30", "users=2, K=4"}, {60, "30", "users=2, K=0"}, {16, "4", "users=1"}};
  for (const auto& [dies_at, requests, name] : cases) {
    ScriptedServer server = dying_server(dies_at);
    expect_one_line_error({name, "UNAVAILABLE", "dead"}, [&] {
      run(server, {"--sweep", "users=1,2,4", "--compare", "K=0,4", "--rounds",
                   requests == "4" ? "1000" : "1", "--requests", requests, "--html", html_path()});
    });
    EXPECT_LT(server.num_calls(), dies_at + 60);
    EXPECT_LE(report()["sweep"]["steps"].size(), 2u);
    EXPECT_NE(output_.find("the server failed at users="), std::string::npos) << output_;
    EXPECT_EQ(output_.find("nan"), std::string::npos) << output_;
  }
}

// In the middle of a round, and where a turn has fewer requests than are given up after: what was
// measured before is kept, and no further turn is asked for.
TEST_F(Loadtest, AComparisonEndsWithItsServer) {
  for (const int requests : {30, 4}) {
    ScriptedServer server = dying_server(3 * requests);
    expect_one_line_error({"K=", "void", "given up", "UNAVAILABLE", "dead"}, [&] {
      run(server, {"--compare", "K=0,4", "--rounds", "1000", "--concurrency", "1", "--requests",
                   std::to_string(requests)});
    });
    EXPECT_LT(server.num_calls(), 3 * requests + 30);
    nlohmann::json arms = report()["compare"]["arms"];
    EXPECT_GE(arms[0]["requests"].get<int>() - arms[0]["errors"].get<int>(), requests);
    EXPECT_TRUE(arms[0]["gave_up"].get<bool>() || arms[1]["gave_up"].get<bool>());
  }
}

// It goes on answering, but the answers that failed are missing from one arm's latencies.
TEST_F(Loadtest, AComparisonOfWhichATenthFailedIsVoid) {
  for (const auto code : {grpc::StatusCode::INTERNAL, grpc::StatusCode::DEADLINE_EXCEEDED,
                          grpc::StatusCode::RESOURCE_EXHAUSTED}) {
    ScriptedServer server([code](int64_t index) {
      Script script;
      if (index >= 17 && index < 23) script.status = {code, "broken"};
      return script;
    });
    expect_one_line_error({"K=4", "void", "14 of 20", "broken"}, [&] {
      run(server,
          {"--compare", "K=0,4", "--rounds", "2", "--concurrency", "1", "--requests", "10"});
    });
  }
}

// Its warm-up is as long as all that is sent.
TEST_F(Loadtest, ALoadThatMeasuredNothingFailsASweep) {
  ScriptedServer server;
  expect_one_line_error({"rate=1000", "void", "0 of 0", "in the warm-up"}, [&] {
    run(server, {"--sweep", "rate=20,1000", "--requests", "20", "--warmup", "0.2"});
  });
}

// There is nothing that it would repeat, and the server would refuse the one or draw the other in
// another way.
TEST_F(Loadtest, NoSeedIsSentWhereAnswersDoNotRepeat) {
  const auto sends_seeds = [&](const std::vector<std::string>& flags) {
    ScriptedServer server;
    std::vector<std::string> arguments = {"--concurrency", "1", "--requests", "3"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    EXPECT_EQ(run(server, arguments), 0);
    const auto requests = server.requests();
    EXPECT_EQ(requests.size(), 3u);
    return std::ranges::all_of(requests, [](const v1::GenerateRequest& request) {
      return request.sampling_params().has_seed();
    });
  };
  EXPECT_TRUE(sends_seeds({}));
  EXPECT_TRUE(sends_seeds({"--mode", "coupled", "--lenience", "1"}));
  EXPECT_FALSE(sends_seeds({"--mode", "rejection"}));
  EXPECT_FALSE(sends_seeds({"--lenience", "0.5"}));
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
                         "--duration", "1000", "--samples", samples_path()}),
            0);
  EXPECT_EQ(report()["requests"], 3);
  EXPECT_EQ(report()["settings"]["raw"], true);
  EXPECT_LT(report()["measured_s"], 500);               // until it was answered
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
