// The engine on tiny random models: what an answer is must not depend on how it was computed.
#include "engine/engine.h"

#include <absl/strings/str_replace.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/cpu/isa.h"
#include "testing/checkpoints.h"
#include "testing/edited_checkpoint.h"
#include "testing/engine_harness.h"
#include "testing/every_drafter.h"
#include "testing/one_line_error.h"
#include "testing/read_file.h"
#include "testing/temporary_directory.h"

namespace outrider {
namespace {

// One distinct answer a prompt within one number of ranks, for every K, drafter and prefill chunk,
// alone, among others, and after preemption; among the drafts a poor one and the target itself, so
// that refusing and accepting both show.
TEST(Engine, GreedyDoesNotDependOnSpeculationOrCompany) {
  struct Way {
    int prefill_chunk;
    int max_sequences = 64;
    int64_t kv_cache_tokens = 0;  // as many as they need
  };
  constexpr int64_t kScarce = 448;
  const std::map<std::string, std::vector<std::string>> drafters_of = {
      {"tiny-draft", {kEveryDrafter.begin(), kEveryDrafter.end()}},
      {"tiny", {"model"}},
      {"tiny-trimmed", {"model"}}};
  for (const int ranks : {1, 2, 3}) {
    std::map<size_t, std::set<std::vector<int32_t>>> distinct;  // by the prompt's length
    std::map<std::string, int64_t> accepted;                    // by drafter
    for (const auto& [draft, drafters] : drafters_of) {
      for (const Way& way : {Way{1}, {7}, {64}, {1000}, {64, 1}, {64, 64, kScarce}}) {
        EngineOptions options = with_every_drafter(tiny_options());
        options.draft = test_checkpoint(draft);
        options.prefill_chunk = way.prefill_chunk;
        options.max_sequences = way.max_sequences;
        options.kv_cache_tokens = way.kv_cache_tokens;
        options.max_positions = 192;
        std::vector<Request> requests;
        for (const int k : {0, 1, 2, 3, 4, 5, 6, 7, 8, kMaxDraftTokens}) {
          for (const std::string& drafter : drafters) {
            for (const int length : {1, 20, 130}) {
              requests.push_back(greedy_request(length, length, 40, k, drafter));
            }
          }
        }
        EngineStats stats;
        const auto answers = run_requests(options, ranks, requests, {}, &stats);
        EXPECT_EQ(stats.num_preemptions > 0, way.kv_cache_tokens == kScarce)
            << stats.num_preemptions;
        for (size_t i = 0; i < answers.size(); ++i) {
          ASSERT_TRUE(answers[i].completion) << answers[i].status;
          ASSERT_EQ(answers[i].token_ids.size(), 40u);
          distinct[requests[i].prompt.size()].insert(answers[i].token_ids);
          accepted[*requests[i].speculation.drafter] +=
              answers[i].completion->speculation.num_accepted_draft_tokens;
        }
      }
    }
    EXPECT_EQ(distinct.size(), 3u);
    for (const auto& [length, outputs] : distinct) {
      EXPECT_EQ(outputs.size(), 1u) << "prompt of " << length << ", " << ranks << " ranks";
    }
    EXPECT_GT(accepted["model"], 0) << ranks << " ranks";
    EXPECT_GT(accepted["prompt_lookup"], 0) << ranks << " ranks";
  }
}

// A target of another family, with drafts of its own and of the first one; prompts that begin alike
// share their pages.
TEST(Engine, AGpt2sGreedyAnswerDoesNotDependOnSpeculation) {
  for (const int ranks : {1, 2, 3}) {
    std::map<std::vector<int32_t>, std::set<std::vector<int32_t>>> distinct;  // by prompt
    std::map<std::string, int64_t> accepted;                                  // by draft
    int64_t cached = 0;
    for (const char* draft : {"tiny-gpt2-draft", "tiny-gpt2", "tiny-draft"}) {
      EngineOptions options = {.model = test_checkpoint("tiny-gpt2"),
                               .draft = test_checkpoint(draft),
                               .draft_head = test_checkpoint("tiny-head")};
      options.max_sequences = 4;
      options.prefill_chunk = 13;
      std::vector<Request> requests;
      for (const int k : {0, 1, 4}) {
        for (const std::string drafter : {"model", "head", "prompt_lookup"}) {
          for (const int length : {1, 20, 130, 131}) {
            requests.push_back(greedy_request(length, length / 20, 40, k, drafter));
          }
        }
      }
      const auto answers = run_requests(options, ranks, requests);
      for (size_t i = 0; i < answers.size(); ++i) {
        ASSERT_TRUE(answers[i].completion) << answers[i].status;
        ASSERT_EQ(answers[i].token_ids.size(), 40u);
        distinct[requests[i].prompt].insert(answers[i].token_ids);
        cached += answers[i].completion->cached_tokens;
        if (requests[i].speculation.drafter == "model") {
          accepted[draft] += answers[i].completion->speculation.num_accepted_draft_tokens;
        }
      }
    }
    EXPECT_EQ(distinct.size(), 4u);
    for (const auto& [prompt, outputs] : distinct) {
      EXPECT_EQ(outputs.size(), 1u) << "prompt of " << prompt.size() << ", " << ranks << " ranks";
    }
    EXPECT_GT(accepted["tiny-gpt2"], accepted["tiny-gpt2-draft"]) << ranks << " ranks";
    EXPECT_GT(cached, 0);
  }
}

TEST(Engine, ADraftEqualToTheTargetIsAlwaysAccepted) {
  const Int8Checkpoint model(test_checkpoint("tiny"));
  const EngineOptions options{.model = model.path(), .draft = model.path()};
  for (const float temperature : {0.0f, 1.0f}) {
    Request request = greedy_request(20, 1, 41, 4, "model");
    request.sampling.temperature = temperature;
    const auto answers = run_requests(options, 1, {request});
    ASSERT_TRUE(answers[0].completion) << answers[0].status;
    const SpeculationStats& stats = answers[0].completion->speculation;
    EXPECT_EQ(stats.num_accepted_draft_tokens, stats.num_draft_tokens);
    EXPECT_DOUBLE_EQ(stats.draft_acceptance_rate(), 1.0);
    EXPECT_NEAR(stats.alpha(), 1.0, 1e-6);  // Σ min(p, q) with p = q, within rounding of the sums
    EXPECT_DOUBLE_EQ(stats.mean_acceptance_length(),
                     41.0 / static_cast<double>(stats.num_decode_steps));
  }
}

TEST(Engine, SampledAnswersRepeatWithTheSameSeedAndK) {
  for (const int ranks : {1, 2}) {
    std::vector<Request> requests;
    for (const std::string drafter : {"model", "random", "prompt_lookup"}) {
      for (const uint64_t seed : {7u, 7u, 8u}) {
        Request request = greedy_request(20, 3, 48, 3, drafter);
        request.sampling.temperature = 0.9f;
        request.sampling.top_k = 200;
        request.sampling.top_p = 0.97f;
        request.sampling.seed = seed;
        request.speculation.mode = VerifyMode::rejection;
        requests.push_back(request);
      }
    }
    const auto answers = run_requests(tiny_options(), ranks, requests);
    for (size_t i = 0; i < answers.size(); i += 3) {
      ASSERT_TRUE(answers[i].completion) << answers[i].status;
      EXPECT_EQ(answers[i].token_ids, answers[i + 1].token_ids);
      EXPECT_NE(answers[i].token_ids, answers[i + 2].token_ids);
      EXPECT_EQ(answers[i].completion->seed, 7u);
      EXPECT_EQ(answers[i].completion->mode, SpeculationMode::rejection);
    }
  }
}

TEST(Engine, DrawsASeedThatRepeatsTheAnswer) {
  Request request = greedy_request(10, 5, 32, 2, "random");
  request.sampling.temperature = 1.0f;
  const auto drawn = run_requests(tiny_options(), 1, {request});
  ASSERT_TRUE(drawn[0].completion);
  EXPECT_EQ(drawn[0].completion->mode, SpeculationMode::rejection);
  request.sampling.seed = drawn[0].completion->seed;
  request.speculation.mode = VerifyMode::rejection;
  EXPECT_EQ(run_requests(tiny_options(), 1, {request})[0].token_ids, drawn[0].token_ids);
}

TEST(Engine, FillsTheContextToItsEnd) {
  EngineOptions options = tiny_options();
  options.max_positions = 96;
  for (const std::string drafter : {"model", "prompt_lookup"}) {
    Request request = greedy_request(60, 9, 36, 8, drafter);
    const auto answers = run_requests(options, 2, {request});
    ASSERT_TRUE(answers[0].completion) << answers[0].status;
    EXPECT_EQ(answers[0].token_ids.size(), 36u);
    EXPECT_EQ(answers[0].completion->finish_reason, FinishReason::length);
  }
}

// A slot that is used again keeps nothing of the request before it.
TEST(Engine, RequestsLeaveNoTrace) {
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i)
    requests.push_back(greedy_request(10 + 17 * i, i, 20, i % 4, "model"));
  requests.push_back(requests[0]);
  requests.push_back(requests[3]);
  const auto answers = run_requests(tiny_options(), 2, requests);
  EXPECT_EQ(answers[6].token_ids, answers[0].token_ids);
  EXPECT_EQ(answers[7].token_ids, answers[3].token_ids);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(run_requests(tiny_options(), 2, {requests[i]})[0].token_ids, answers[i].token_ids);
  }
}

TEST(Engine, ACancelledAnswerHoldsNothingBack) {
  Request asked = greedy_request(20, 1, 30, 0, "random");
  const CollectedAnswer whole = run_requests(tiny_options(), 1, {asked})[0];
  // All of the text may yet become this.
  asked.sampling.stop = {whole.text + " and more"};
  asked.sampling.max_tokens = 400;
  const CollectedAnswer cut = run_requests(tiny_options(), 1, {asked}, {10})[0];
  ASSERT_TRUE(cut.completion);
  EXPECT_EQ(cut.completion->finish_reason, FinishReason::cancelled);
  EXPECT_FALSE(cut.token_ids.empty());
  EXPECT_EQ(static_cast<int64_t>(cut.token_ids.size()), cut.completion->completion_tokens);
  EXPECT_FALSE(cut.text.empty());
}

TEST(Engine, CancelsOneAndServesTheNext) {
  std::vector<Request> requests = {greedy_request(20, 1, 400, 0, "random"),
                                   greedy_request(20, 1, 30, 0, "random")};
  const auto answers = run_requests(tiny_options(), 2, requests, {20});
  ASSERT_TRUE(answers[0].completion);
  EXPECT_EQ(answers[0].completion->finish_reason, FinishReason::cancelled);
  EXPECT_EQ(answers[0].completion->completion_tokens, 20);
  EXPECT_EQ(answers[1].token_ids.size(), 30u);
  // Under load more than 30 have come before the cancel is heard.
  const size_t both = std::min(answers[0].token_ids.size(), answers[1].token_ids.size());
  EXPECT_TRUE(std::equal(answers[0].token_ids.begin(), answers[0].token_ids.begin() + both,
                         answers[1].token_ids.begin()));
}

// Greedy and sampled, through every kernel: the instruction set shows nowhere. One that this
// machine cannot execute is left out, and said.
TEST(Engine, InstructionSetsGiveTheSameAnswer) {
  Request sampled = greedy_request(33, 4, 60, 3, "model");
  sampled.sampling.temperature = 1.1f;
  sampled.sampling.top_p = 0.9f;
  sampled.sampling.seed = 3;
  const std::vector<Request> requests = {greedy_request(33, 4, 60, 4, "model"), sampled};
  std::optional<std::vector<CollectedAnswer>> reference;
  for (const cpu::Isa isa :
       {cpu::Isa::scalar, cpu::Isa::avx2, cpu::Isa::avx512, cpu::Isa::avx512_bf16}) {
    const std::string name(cpu::isa_name(isa));
    if (!cpu::isa_available(isa)) {
      std::cout << "not executed on this machine: " << name << "\n";
      continue;
    }
    setenv("OUTRIDER_CPU_ISA", name.c_str(), 1);
    auto answers = run_requests(tiny_options(), 1, requests);
    unsetenv("OUTRIDER_CPU_ISA");
    if (!reference) reference = answers;
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(answers[i].completion) << answers[i].status;
      EXPECT_EQ(answers[i].token_ids, (*reference)[i].token_ids) << name;
      EXPECT_EQ(answers[i].completion->speculation.alpha_sum,
                (*reference)[i].completion->speculation.alpha_sum)
          << name;
    }
  }
}

// In AMX's order of sums, too, an answer depends neither on drafts nor chunks nor company.
TEST(Engine, AmxGivesOneAnswer) {
  if (!cpu::isa_available(cpu::Isa::amx_bf16)) {
    GTEST_SKIP() << "no test executed amx_bf16: this machine cannot";
  }
  std::vector<Request> requests;
  for (const int k : {0, 1, 4, 8}) {
    requests.push_back(greedy_request(130, 4, 60, k, "prompt_lookup"));
  }
  setenv("OUTRIDER_CPU_ISA", "amx_bf16", 1);
  for (const int ranks : {1, 2}) {
    EngineOptions options = tiny_options();
    const CollectedAnswer alone = run_requests(options, ranks, {requests[0]})[0];
    ASSERT_TRUE(alone.completion) << alone.status;
    for (const int64_t chunk : {1, 7, 64}) {
      options.prefill_chunk = chunk;
      const auto together = run_requests(options, ranks, requests);
      for (const CollectedAnswer& answer : together) {
        ASSERT_TRUE(answer.completion) << answer.status;
        EXPECT_EQ(answer.token_ids, alone.token_ids) << ranks << " ranks, chunks of " << chunk;
      }
      EXPECT_GT(together[2].completion->speculation.num_accepted_draft_tokens, 0);
    }
  }
  unsetenv("OUTRIDER_CPU_ISA");
}

TEST(Engine, RefusesADraftWithAnotherVocabulary) {
  EngineOptions options = tiny_options();
  options.draft = test_checkpoint("tiny-v64");
  const auto backend = make_cpu_backend();
  const auto self = make_self_communicator();
  try {
    Executor executor(options, *backend, *self);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("vocab_size is 64, expected the target's, 512"),
              std::string::npos)
        << error.what();
  }
}

TEST(Engine, RefusesADraftWhoseTokensMeanOtherText) {
  const auto expect_refused = [](const std::vector<std::pair<std::string, std::string>>& changes,
                                 const std::string& message) {
    std::string text = read_file(test_checkpoint("tiny-draft") / "tokenizer.json");
    for (const auto& [from, to] : changes) text = absl::StrReplaceAll(text, {{from, to}});
    const TemporaryDirectory draft;
    std::filesystem::copy(test_checkpoint("tiny-draft"), draft.path());
    draft.write("tokenizer.json", text);
    EngineOptions options = tiny_options();
    options.draft = draft.path();
    const auto backend = make_cpu_backend();
    const auto self = make_self_communicator();
    expect_one_line_error({"tokenizer.json: " + message},
                          [&] { Executor executor(options, *backend, *self); });
  };
  // A tab and a line feed, which must not break the message's line.
  expect_refused({{R"("ĉ": 10)", R"("ĉ": 11)"}, {R"("Ċ": 11)", R"("Ċ": 10)"}},
                 R"(token 10 is "\n", expected the target's, "\t")");
  expect_refused({{"<|endoftext|>", "<|end|>"}},
                 R"(token 0 is "<|end|>", expected the target's, "<|endoftext|>")");
  expect_refused({{",\n      \"ju\": 511", ""}, {",\n      \"j u\"", ""}},
                 "has 511 tokens, expected the target's, 512");
}

// A step gives its accepted drafts, then one token of the target's own.
TEST(Engine, SaysWhereTokensComeFrom) {
  constexpr int kDrafted = 3;
  std::map<TokenOrigin, int64_t> seen;
  for (const char* draft : {"tiny-draft", "tiny"}) {
    EngineOptions options = tiny_options();
    options.draft = test_checkpoint(draft);
    std::vector<Request> requests;
    for (const char* drafter : {"model", "random", "prompt_lookup"}) {
      requests.push_back(greedy_request(20, 1, 60, kDrafted, drafter));
    }
    requests.push_back(greedy_request(20, 1, 60, 0, "model"));
    for (const CollectedAnswer& answer : run_requests(options, 1, requests)) {
      ASSERT_EQ(answer.origins.size(), answer.token_ids.size());
      std::map<TokenOrigin, int64_t> counts;
      int accepted = 0;  // of this step
      for (size_t i = 0; i < answer.origins.size(); ++i) {
        const TokenOrigin origin = answer.origins[i];
        ++counts[origin];
        // The last steps draft no more than there is room for.
        const bool room = i + kDrafted + 1 < answer.origins.size();
        if (origin == TokenOrigin::corrected) {
          EXPECT_LT(accepted, kDrafted);
        }
        if (origin == TokenOrigin::bonus) {
          EXPECT_GT(accepted, 0);
        }
        if (origin == TokenOrigin::plain) {
          EXPECT_EQ(accepted, 0);
        }
        accepted = origin == TokenOrigin::drafted ? accepted + 1 : 0;
        EXPECT_LE(accepted, kDrafted);
        if (room && accepted == kDrafted) {
          EXPECT_EQ(answer.origins[i + 1], TokenOrigin::bonus) << i;
        }
      }
      const SpeculationStats& stats = answer.completion->speculation;
      EXPECT_EQ(counts[TokenOrigin::drafted], stats.num_accepted_draft_tokens);
      EXPECT_EQ(counts[TokenOrigin::corrected] + counts[TokenOrigin::bonus], stats.num_spec_steps);
      EXPECT_EQ(counts[TokenOrigin::plain], stats.num_decode_steps - stats.num_spec_steps);
      for (const auto& [origin, count] : counts) seen[origin] += count;
    }
  }
  EXPECT_EQ(seen.size(), 4u) << "some never came";
}

TEST(Engine, RefusesAHeadOfAnotherModel) {
  const TemporaryDirectory head;
  nlohmann::json config =
      nlohmann::json::parse(read_file(test_checkpoint("tiny-head") / "config.json"));
  config["target"] = "0123456789abcdef";
  head.write("config.json", config.dump());
  std::filesystem::copy(test_checkpoint("tiny-head") / "model.safetensors", head.path());
  EngineOptions options = tiny_options();
  options.draft_head = head.path();
  options.model_hash = checkpoint_hash(options.model);
  const auto backend = make_cpu_backend();
  const auto self = make_self_communicator();
  const std::vector<std::string> expected = {"config.json: target is 0123456789abcdef",
                                             options.model_hash};
  expect_one_line_error(expected,
                        [&] { check_head_files(head.path(), options.model, options.model_hash); });
  expect_one_line_error(expected, [&] { Executor executor(options, *backend, *self); });
}

TEST(Engine, RefusesATargetWithATrimmedHead) {
  EngineOptions options = tiny_options();
  options.model = test_checkpoint("tiny-trimmed");
  const auto backend = make_cpu_backend();
  const auto self = make_self_communicator();
  expect_one_line_error({"config.json: draft_token_ids", "expected a whole LM head"},
                        [&] { check_files(options, 1); });
  expect_one_line_error({"config.json: draft_token_ids", "expected a whole LM head"},
                        [&] { Executor executor(options, *backend, *self); });
}

}  // namespace
}  // namespace outrider
