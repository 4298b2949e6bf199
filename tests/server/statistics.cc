// Sampled tokens through the whole stack against the target's exact distribution: a running server
// of two ranks with seeds of its own, asked over gRPC. statistics_test.py starts it and names its
// port; with --counts CHECKPOINT, the file of counts that the server wants is printed instead.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "model/checkpoint_hash.h"
#include "server/server_harness.h"
#include "testing/every_drafter.h"
#include "testing/exact_triples.h"

namespace outrider {
namespace {

constexpr int kChoices = 16;              // answers to a call
constexpr int kClients = 8;               // that ask at once
constexpr int kTokens = 4;                // of an answer: its first step may draft three
constexpr int64_t kSomeAnswers = 20'000;  // of arms that need not see a bias of a hundredth

int server_port() {
  const char* const port = std::getenv("OUTRIDER_TEST_PORT");
  return port == nullptr ? 0 : std::stoi(port);
}

struct Setting {
  const char* drafter;
  const char* name = "temperature_1";
  SamplingParams sampling = {};
  bool seeded = false;  // so that answers are coupled
  int64_t answers = kSomeAnswers;
  int alternatives = 0;
};

v1::GenerateRequest sampled(const Setting& setting) {
  const SamplingParams& asked = setting.sampling;
  v1::GenerateRequest request;
  request.mutable_tokenized()->mutable_input_ids()->Assign(kPrompt.begin(), kPrompt.end());
  v1::SamplingParams& wire = sampling(request);
  wire.set_temperature(asked.temperature);
  wire.set_top_p(asked.top_p);
  wire.set_top_k(asked.top_k);
  wire.set_min_p(asked.min_p);
  wire.set_repetition_penalty(asked.repetition_penalty);
  wire.set_presence_penalty(asked.presence_penalty);
  wire.set_frequency_penalty(asked.frequency_penalty);
  for (const auto& [token, bias] : asked.logit_bias) (*wire.mutable_logit_bias())[token] = bias;
  wire.set_min_tokens(asked.min_tokens);
  wire.mutable_stop_token_ids()->Assign(asked.stop_token_ids.begin(), asked.stop_token_ids.end());
  wire.set_n(kChoices);
  wire.set_max_tokens(kTokens);
  wire.set_ignore_eos(true);
  request.mutable_speculation()->set_drafter(setting.drafter);
  request.mutable_speculation()->set_num_speculative_tokens(3);
  request.mutable_speculation()->set_num_alternatives(setting.alternatives);
  return request;
}

// What the clients of one arm have heard.
class Arm {
 public:
  Arm(int port, const Setting& setting, int64_t answers)
      : port_(port),
        setting_(setting),
        request_(sampled(setting)),
        calls_left_((answers + kChoices - 1) / kChoices) {
    std::vector<std::jthread> clients;
    for (int i = 0; i < kClients; ++i) clients.emplace_back([this] { ask(); });
  }

  const Drawn& drawn() const { return drawn_; }
  int64_t accepted_alternatives() const { return accepted_alternatives_; }

 private:
  void ask() {
    const auto stub = v1::GenerationService::NewStub(connect(port_));
    for (int64_t call; (call = calls_left_--) > 0;) {
      v1::GenerateRequest request = request_;
      if (setting_.seeded) sampling(request).set_seed(call);
      ask(*stub, request);
    }
  }

  void ask(v1::GenerationService::Stub& stub, const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    set_timeout(context);
    std::vector<std::vector<int32_t>> ids(kChoices);
    std::vector<v1::SpeculationStats> stats(kChoices);
    const auto stream = stub.Generate(&context, request);
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
      ASSERT_GE(ids[i].size(), setting_.sampling.min_tokens > 0 ? 3 : kTokens);
      EXPECT_EQ(stats[i].mode(), setting_.seeded ? "coupled" : "rejection");
      EXPECT_EQ(stats[i].drafter(), setting_.drafter);
      drawn_.add(ids[i], stats[i].num_draft_tokens(), stats[i].num_accepted_draft_tokens());
      accepted_alternatives_ += stats[i].num_accepted_alternatives();
    }
  }

  const int port_;
  const Setting& setting_;
  const v1::GenerateRequest request_;
  std::atomic<int64_t> calls_left_;
  std::mutex mutex_;  // guards all below
  std::set<uint64_t> seeds_;
  Drawn drawn_;
  int64_t accepted_alternatives_ = 0;
};

class ServerSampling : public ::testing::TestWithParam<Setting> {};

TEST_P(ServerSampling, DrawsFromTheTargetsDistribution) {
  const Arm arm(server_port(), GetParam(), answers_to_ask_for(GetParam().answers));
  const Drawn& drawn = arm.drawn();
  EXPECT_GT(drawn.accepted, 0);
  EXPECT_LT(drawn.accepted, drawn.drafted);
  EXPECT_EQ(arm.accepted_alternatives() > 0, GetParam().alternatives > 0);
  expect_drawn_from(exact_triples(GetParam().sampling), drawn.triples);
}

std::vector<Setting> settings() {
  const SamplingParams filtered{.temperature = 0.8f, .top_p = 0.9f, .top_k = 20};
  const SamplingParams penalised =
      edited({.temperature = 1.4f, .top_p = 0.95f, .top_k = 40, .min_p = 0.03f});
  std::vector<Setting> all;
  for (const char* const drafter : kEveryDrafter) all.push_back({.drafter = drafter});
  for (const char* const drafter : {"model", "head", "prompt_lookup"}) {
    all.push_back({drafter, "filtered", filtered});
    all.push_back({drafter, "penalised", penalised});
    all.push_back({drafter, "coupled", {}, true});
    all.push_back({drafter, "coupled_penalised", penalised, true});
  }
  all.push_back({.drafter = "model",
                 .name = "alternatives",
                 .answers = kManyAnswers,
                 .alternatives = kMaxAlternatives});
  for (const char* const drafter : {"model", "head"}) {
    all.push_back({.drafter = drafter,
                   .name = "alternatives_filtered",
                   .sampling = filtered,
                   .alternatives = 3});
    all.push_back({.drafter = drafter,
                   .name = "alternatives_penalised",
                   .sampling = penalised,
                   .alternatives = 3});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Settings, ServerSampling, ::testing::ValuesIn(settings()),
                         [](const auto& info) {
                           return std::string(info.param.name) + "_" + info.param.drafter;
                         });

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  if (argc > 2 && std::string_view(argv[1]) == "--counts") {  // for the checkpoint that follows
    const std::filesystem::path tokenizer = std::filesystem::path(argv[2]) / "tokenizer.json";
    std::cout << outrider::some_counts(outrider::kVocab, outrider::file_hash(tokenizer));
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
