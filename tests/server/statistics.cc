// Sampled tokens through the whole stack against the target's exact distribution: a running server
// of two ranks with seeds of its own, asked over gRPC. statistics_test.py starts it and names its
// port; with --counts, the file of counts that the server wants is printed instead.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/server_harness.h"
#include "testing/every_drafter.h"
#include "testing/exact_triples.h"

namespace outrider {
namespace {

constexpr int kChoices = 16;              // answers to a call
constexpr int kClients = 8;               // that ask at once
constexpr int kTokens = 4;                // of an answer: its first step may draft three
constexpr int64_t kSomeAnswers = 20'000;  // of drafters but the model

int server_port() {
  const char* const port = std::getenv("OUTRIDER_TEST_PORT");
  return port == nullptr ? 0 : std::stoi(port);
}

v1::GenerateRequest sampled(const std::string& drafter) {
  v1::GenerateRequest request;
  request.mutable_tokenized()->mutable_input_ids()->Assign(kPrompt.begin(), kPrompt.end());
  sampling(request).set_n(kChoices);
  sampling(request).set_max_tokens(kTokens);
  sampling(request).set_ignore_eos(true);
  request.mutable_speculation()->set_drafter(drafter);
  request.mutable_speculation()->set_num_speculative_tokens(3);
  return request;
}

// What the clients of one arm have heard.
class Arm {
 public:
  Arm(int port, const std::string& drafter, int64_t answers)
      : port_(port), request_(sampled(drafter)), calls_left_((answers + kChoices - 1) / kChoices) {
    std::vector<std::jthread> clients;
    for (int i = 0; i < kClients; ++i) clients.emplace_back([this] { ask(); });
  }

  const Drawn& drawn() const { return drawn_; }

 private:
  void ask() {
    const auto stub = v1::GenerationService::NewStub(connect(port_));
    while (calls_left_-- > 0) ask(*stub);
  }

  void ask(v1::GenerationService::Stub& stub) {
    grpc::ClientContext context;
    set_timeout(context);
    std::vector<std::vector<int32_t>> ids(kChoices);
    std::vector<v1::SpeculationStats> stats(kChoices);
    const auto stream = stub.Generate(&context, request_);
    v1::GenerateResponse response;
    while (stream->Read(&response)) {
      if (response.has_complete()) {
        stats.at(response.complete().index()) = response.complete().speculation();
        continue;
      }
      const auto& tokens = response.chunk().token_ids();
      auto& of_choice = ids.at(response.chunk().index());
      of_choice.insert(of_choice.end(), tokens.begin(), tokens.end());
    }
    const grpc::Status status = stream->Finish();
    const std::lock_guard lock(mutex_);
    if (!status.ok()) calls_left_ = 0;
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(seeds_.insert(stats[0].seed()).second) << "a seed came twice";
    for (int i = 0; i < kChoices; ++i) {
      ASSERT_EQ(ids[i].size(), kTokens);
      EXPECT_EQ(stats[i].mode(), "rejection");
      EXPECT_EQ(stats[i].drafter(), request_.speculation().drafter());
      drawn_.add(ids[i], stats[i].num_draft_tokens(), stats[i].num_accepted_draft_tokens());
    }
  }

  const int port_;
  const v1::GenerateRequest request_;
  std::atomic<int64_t> calls_left_;
  std::mutex mutex_;  // guards all below
  std::set<uint64_t> seeds_;
  Drawn drawn_;
};

class ServerSampling : public ::testing::TestWithParam<const char*> {};

TEST_P(ServerSampling, DrawsFromTheTargetsDistribution) {
  const std::string drafter = GetParam();
  const Arm arm(server_port(), drafter,
                answers_to_ask_for(drafter == "model" ? kManyAnswers : kSomeAnswers));
  const Drawn& drawn = arm.drawn();
  EXPECT_GT(drawn.accepted, 0);
  EXPECT_LT(drawn.accepted, drawn.drafted);
  expect_drawn_from(exact_triples({}), drawn.triples);
}

INSTANTIATE_TEST_SUITE_P(Drafters, ServerSampling, ::testing::ValuesIn(kEveryDrafter),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--counts") {
    std::cout << outrider::some_counts(outrider::kVocab);
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
