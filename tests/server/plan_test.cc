// `outrider plan` on shapes whose figures can be worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launcher/command_line.h"
#include "launcher/plan_report.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/one_line_error.h"
#include "tests/testing/read_file.h"
#include "tests/testing/temporary_directory.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVocab = 128256;

std::string shape(const std::string& name) {
  return std::string(OUTRIDER_SOURCE_DIR) + "/tests/testing/checkpoints/" + name + ".json";
}

PlanOptions options_for(const std::string& name) {
  PlanOptions options;
  options.model = shape(name);
  options.server = {64, 512, 0};
  return options;
}

nlohmann::json planned(const PlanOptions& options) {
  return nlohmann::json::parse(plan_as_json(make_plan(options)));
}

TEST(Plan, EightBillionParametersOnOneGpu) {
  const auto plan = planned(options_for("llama-8b"));
  // Llama 3.1 8B, as its model card counts.
  EXPECT_EQ(plan["parameters"], 8030261248);
  const auto& one = plan["passes"][0];
  EXPECT_EQ(one["rows"], 1);
  // All but the embedding, of which a row is read.
  EXPECT_EQ(one["weight_bytes"], 2 * (8030261248 - kVocab * 4096 + 4096));
  // 1025 positions read and one written.
  EXPECT_EQ(one["kv_bytes"], 1026 * 131072);
  EXPECT_EQ(plan["memory"]["kv_bytes_per_token"], 131072);
  // 7 kernels a layer; tokens, embedding, last norm, LM head; 2 of verification.
  EXPECT_EQ(one["kernel_launches"], 32 * 7 + 4 + 2);
  EXPECT_EQ(one["exchanges"], 0);
  EXPECT_NEAR(one["ms"].get<double>(), 15.0e9 / 4.8e12 * 1e3, 0.05);
  EXPECT_NEAR(plan["predicted"]["plain_tokens_per_second"].get<double>(),
              1e3 / one["ms"].get<double>(), 1e-6);
  EXPECT_EQ(plan["memory"]["fits"], true);
}

TEST(Plan, ThePagesExampleIsWhatItSays) {
  PlanOptions options = options_for("llama-8b");
  options.draft = shape("llama-1b");
  options.device = "H100";
  options.ranks = 2;
  options.rows = {1, 5};
  options.alpha = 0.8;
  options.exchange_us = 10;
  std::string text = plan_as_text(make_plan(options));
  const std::string root = std::string(OUTRIDER_SOURCE_DIR) + "/";
  for (size_t at = text.find(root); at != std::string::npos; at = text.find(root)) {
    text.erase(at, root.size());
  }
  EXPECT_THAT(read_file(root + "docs/operations/plan.md"), HasSubstr("--exchange-us 10\n" + text));
}

// From 65 rows on, the activation is a kernel of its own in each layer, and each of the 65 sums of
// four ranks is NCCL's one in place of three.
TEST(Plan, FastNumerics) {
  const auto launches = [](int ranks, int64_t sequences, Numerics numerics) {
    PlanOptions options = options_for("llama-8b");
    options.ranks = ranks;
    options.sequences = sequences;
    options.rows = {5};
    options.server.numerics = numerics;
    const auto plan = planned(options);
    EXPECT_EQ(plan["numerics"], numerics_name(numerics));
    return plan["passes"][0]["kernel_launches"].get<int64_t>();
  };
  EXPECT_EQ(launches(1, 12, Numerics::fast), launches(1, 12, Numerics::exact));
  EXPECT_EQ(launches(1, 13, Numerics::fast), launches(1, 13, Numerics::exact) + 32);
  EXPECT_EQ(launches(4, 13, Numerics::fast), launches(4, 13, Numerics::exact) + 32 - 2 * 65);
}

TEST(Plan, ADraftHead) {
  PlanOptions options = options_for("tiny");
  options.context = 100;
  options.draft_head = test_checkpoint("tiny-head");
  const auto plan = planned(options);
  // All but the embedding, of which a row is read.
  const DraftHeadConfig head = DraftHeadConfig::load(*options.draft_head);
  const auto scored = static_cast<int64_t>(head.draft_token_ids.size());
  const int64_t hidden = head.hidden_size, ffn = head.intermediate_size;
  const int64_t numbers = hidden * (2 * hidden + 3 * ffn + (scored + 15) / 16 * 16);  // panels
  const int64_t scales = 2 * hidden + 2 * ffn + hidden + scored;
  // A row of the embedding, and four norms, of which one only adds.
  EXPECT_EQ(plan["draft_round"]["weight_bytes"], numbers + 4 * scales + 2 * hidden * (1 + 4));
  EXPECT_GT(plan["memory"]["draft_weight_bytes"], 0);
  EXPECT_EQ(plan["draft_head"], *options.draft_head);
  EXPECT_THAT(plan_as_text(make_plan(options)), HasSubstr("head     "));
  // Of the states, once a step.
  const auto rows_bytes = [&](bool with_head) {
    PlanOptions other = options;
    if (!with_head) other.draft_head.reset();
    return planned(other)["passes"][1]["weight_bytes"].get<int64_t>();
  };
  EXPECT_EQ(rows_bytes(true) - rows_bytes(false), hidden * head.aux_width() + 4 * hidden);
  options.model = shape("llama-1b");
  expect_one_line_error({"--draft-head", "hidden_size", "expected the model's, 2048"},
                        [&] { make_plan(options); });
  const TemporaryDirectory far;
  auto config = nlohmann::json::parse(read_file(test_checkpoint("tiny-head") / "config.json"));
  config["aux_hidden_state_layers"] = {1, 2};
  far.write("config.json", config.dump());
  options.model = shape("tiny");
  options.draft_head = far.path();
  expect_one_line_error({"--draft-head", "aux_hidden_state_layers has 2", "layers, 0 to 1"},
                        [&] { make_plan(options); });
}

TEST(Plan, AGpt2) {
  PlanOptions options = options_for("gpt2-xl");
  options.context = 500;
  options.rows = {1};
  const auto plan = planned(options);
  EXPECT_EQ(plan["parameters"], 1557611200);  // as Transformers counts
  const auto& one = plan["passes"][0];
  // 7 kernels a layer; tokens, embedding, positions, last norm, LM head; 2 of verification.
  EXPECT_EQ(one["kernel_launches"], 48 * 7 + 5 + 2);
  EXPECT_EQ(plan["memory"]["kv_bytes_per_token"], 48 * 2 * 1600 * 2);
  EXPECT_EQ(one["kv_bytes"], 502 * 48 * 2 * 1600 * 2);  // 501 positions read and one written
  // Embedding, two a layer, verification.
  options.ranks = 2;
  EXPECT_EQ(planned(options)["passes"][0]["exchanges"], 1 + 2 * 48 + 1);
  options.context = 1024;
  expect_one_line_error({"--context is 1024", "expected at most 1019"}, [&] { planned(options); });
  options.context.reset();
  EXPECT_EQ(planned(options)["context"], 1019);  // with 5 rows behind it
  options.server.max_positions = 3;
  expect_one_line_error({"--context is 0", "expected at most -2"}, [&] { planned(options); });
}

TEST(Plan, RanksShareWeightsAndExchangeSums) {
  PlanOptions options = options_for("llama-8b");
  options.ranks = 2;
  options.rows = {5};
  options.exchange_us = 10;
  const auto pass = planned(options)["passes"][0];
  EXPECT_EQ(pass["exchanges"], 1 + 2 * 32 + 1);  // embedding, two a layer, verification
  // Five rows are padded to eight.
  const int64_t sums = 65 * 8 * 4096 * 4, summaries = 8 + 8 * 56;
  EXPECT_EQ(pass["exchange_bytes"], sums + summaries);
  EXPECT_NEAR(pass["exchange_ms"].get<double>(), (sums + summaries) / 450e9 * 1e3 + 66 * 0.01,
              1e-9);
  const int64_t norms = 65 * 4096, row = 4096;
  EXPECT_EQ(pass["weight_bytes"], 2 * ((8030261248 - norms - 2 * kVocab * 4096) / 2 +
                                       kVocab / 2 * 4096 + norms + 8 * row));
}

TEST(Plan, PredictsWhatADraftIsWorth) {
  PlanOptions options = options_for("llama-8b");
  options.draft = shape("llama-1b");
  options.alpha = 0.8;
  options.num_speculative_tokens = 4;
  options.rows = {1, 5};
  const auto plan = planned(options);
  const double one = plan["passes"][0]["ms"], five = plan["passes"][1]["ms"];
  // In 8 bits: 16 layers of 60,817,408 numbers and 23,552 outputs, norms, a row of the embedding,
  // which is the LM head, too.
  EXPECT_EQ(plan["draft_round"]["weight_bytes"],
            16 * (60'817'408 + 4 * 23'552) + 2 * 2048 * (33 + 1 + kVocab));
  const double draft = plan["draft_round"]["ms"];
  const double tokens = 1 + 0.8 + 0.64 + 0.512 + 0.4096;
  const auto& predicted = plan["predicted"];
  EXPECT_NEAR(predicted["expected_tokens"].get<double>(), tokens, 1e-12);
  EXPECT_NEAR(predicted["speculative_step_ms"].get<double>(), five + 4 * draft, 1e-9);
  EXPECT_NEAR(predicted["speculative_tokens_per_second"].get<double>(),
              1e3 * tokens / (five + 4 * draft), 1e-6);
  EXPECT_NEAR(predicted["plain_tokens_per_second"].get<double>(), 1e3 / one, 1e-6);
}

TEST(Plan, SaysWhatDoesNotFitAndByHowMuch) {
  PlanOptions options = options_for("llama-8b");
  options.device = "RTX-5090";
  options.server.max_sequences = 4096;
  const ServingPlan plan = make_plan(options);
  EXPECT_FALSE(plan.fits());
  const auto json = nlohmann::json::parse(plan_as_json(plan));
  const int64_t draft_logits = int64_t{4096} * 15 * kVocab * 4;  // kept for verification
  EXPECT_GT(json["memory"]["missing_bytes"], draft_logits - (int64_t{20} << 30));
  EXPECT_EQ(json["memory"]["kv_tokens"], 0);
  EXPECT_THAT(plan_as_text(plan), HasSubstr("does not fit: "));
  EXPECT_THAT(plan_as_text(make_plan(options_for("llama-1b"))), HasSubstr("\nfits: "));
}

// It fits, but not as many tokens as are wanted.
TEST(Plan, AKvCacheCanBeTooSmall) {
  PlanOptions options = options_for("llama-8b");
  options.device = "RTX-5090";
  options.sequences = 2;
  options.context = 100'000;
  const auto memory = planned(options)["memory"];
  EXPECT_GT(memory["kv_tokens"], 0);
  EXPECT_EQ(memory["fits"], false);
  const int64_t lacking =
      memory["kv_tokens_wanted"].get<int64_t>() - memory["kv_tokens"].get<int64_t>();
  EXPECT_NEAR(memory["missing_bytes"].get<double>(), 131072.0 * lacking, 16 * 131072);
}

TEST(Plan, TextHasEveryPass) {
  PlanOptions options = options_for("llama-1b");
  options.sequences = 3;
  options.rows = {1, 5};
  options.draft = shape("llama-1b");
  const std::string text = plan_as_text(make_plan(options));
  for (const char* part :
       {"\n3  ", "\n15  ", "\ndraft round  ", "1.24 B parameters", "H200", "3 sequences"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(Plan, NamesTheFlagThatIsWrong) {
  const auto with = [](auto change) {
    PlanOptions options = options_for("llama-8b");
    change(options);
    return [options] { make_plan(options); };
  };
  expect_one_line_error({"--ranks 33", "32 query heads"}, with([](auto& o) { o.ranks = 33; }));
  expect_one_line_error({"--model", "/nowhere"}, with([](auto& o) { o.model = "/nowhere"; }));
  expect_one_line_error({"--draft", "/nowhere"}, with([](auto& o) { o.draft = "/nowhere"; }));
  expect_one_line_error({"--draft", "vocab_size is 512", "128256"},
                        with([](auto& o) { o.draft = shape("tiny"); }));
  expect_one_line_error({"--context is 131060", "131056"},
                        with([](auto& o) { o.context = 131060; }));
  expect_one_line_error({"--max-positions is 200000", "131072"},
                        with([](auto& o) { o.server.max_positions = 200000; }));
}

TEST(Plan, RefusesFlagsBeforeAnythingIsRead) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--device", "abacus"}, {"--ranks", "0"}, {"--rows", "1,17"}, {"--alpha", "1.5"}};
  for (const auto& flag : wrong) {
    std::vector<std::string> arguments = {"plan", "--model", "x"};
    arguments.insert(arguments.end(), flag.begin(), flag.end());
    int exit_code = 0;
    ::testing::internal::CaptureStderr();
    EXPECT_FALSE(parse_command_line(arguments, exit_code));
    const std::string message = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(exit_code, kExitWrongFlags);
    EXPECT_THAT(message, HasSubstr(flag[0]));
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << message;
  }
}

}  // namespace
}  // namespace outrider
