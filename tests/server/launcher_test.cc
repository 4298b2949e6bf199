// Parts of the program that need no process: what it prints, and what it makes of a command line.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "launcher/answer_printer.h"
#include "launcher/mpirun.h"
#include "launcher/nearest_name.h"
#include "launcher/request_flags.h"

namespace outrider {
namespace {

TEST(NearestName, FindsWhatWasMeant) {
  const std::vector<std::string> flags = {"--top-p", "--top-k", "--temperature", "--max-tokens"};
  EXPECT_EQ(nearest_name("--tempreature", flags), "--temperature");
  EXPECT_EQ(nearest_name("--max_tokens", flags), "--max-tokens");
  EXPECT_EQ(nearest_name("--topk", flags), "--top-k");
  EXPECT_EQ(nearest_name("--top-k", flags), "--top-k");
  EXPECT_EQ(nearest_name("--frequency-penalty", flags), "");
  EXPECT_EQ(nearest_name("x", flags), "");
  EXPECT_EQ(nearest_name("--top-p", {}), "");
}

constexpr auto kDrafted = v1::TOKEN_ORIGIN_DRAFTED, kCorrected = v1::TOKEN_ORIGIN_CORRECTED,
               kBonus = v1::TOKEN_ORIGIN_BONUS, kPlain = v1::TOKEN_ORIGIN_PLAIN;

v1::Chunk chunk(const std::string& text,
                const std::vector<std::pair<int, v1::TokenOrigin>>& tokens) {
  v1::Chunk chunk;
  chunk.set_text(text);
  for (const auto& [end, origin] : tokens) {
    chunk.add_text_ends(end);
    chunk.add_origins(origin);
  }
  return chunk;
}

TEST(Coloured, ShowsWhereTokensComeFrom) {
  EXPECT_EQ(coloured(chunk("abc", {{1, kDrafted}, {3, kPlain}})), "\x1b[32ma\x1b[0mbc");
  EXPECT_EQ(coloured(chunk("abc", {{1, kCorrected}, {3, kBonus}})),
            "\x1b[33ma\x1b[0m\x1b[36mbc\x1b[0m");
  EXPECT_EQ(coloured(chunk("abc", {{3, kPlain}})), "abc");
  EXPECT_EQ(coloured(chunk("", {{0, kDrafted}})), "");
  EXPECT_EQ(coloured(chunk("ab", {{0, kBonus}, {1, kDrafted}})), "\x1b[32ma\x1b[0mb");
}

// A token that ends inside a character has all of it.
TEST(Coloured, NeverCutsACharacter) {
  EXPECT_EQ(coloured(chunk("é!", {{1, kDrafted}, {2, kBonus}, {3, kPlain}})), "\x1b[32mé\x1b[0m!");
  EXPECT_EQ(coloured(chunk("a", {{7, kDrafted}})), "a");  // beyond the text: not coloured, not lost
}

v1::Complete a_complete() {
  v1::Complete complete;
  complete.set_finish_reason(v1::FINISH_REASON_STOP);
  complete.set_prompt_tokens(3);
  complete.set_completion_tokens(25);
  complete.mutable_timings()->set_total_ms(500);
  complete.mutable_timings()->set_ttft_ms(40);
  v1::SpeculationStats& stats = *complete.mutable_speculation();
  stats.set_num_spec_steps(10);
  stats.set_num_draft_tokens(30);
  stats.set_num_accepted_draft_tokens(12);
  stats.set_mean_acceptance_length(2.1);
  stats.set_draft_acceptance_rate(0.4);
  stats.set_drafter("model");
  stats.set_alpha(0.45);
  stats.set_draft_cost(0.125);
  stats.set_measured_speedup(1.5);
  stats.set_predicted_speedup(1.625);
  stats.set_lenience(1);
  stats.set_seed(18446744073709551615u);
  return complete;
}

TEST(Mpirun, OtherHostsGetTheVariablesThatMatter) {
  setenv("NCCL_OUTRIDER_TEST", "1", 1);
  setenv("OUTRIDER_TEST_VARIABLE", "1", 1);
  const auto passed_on = [](const std::string& hostfile) {
    const auto arguments = mpirun_arguments(2, hostfile, {"serve"});
    return std::count(arguments.begin(), arguments.end(), "NCCL_OUTRIDER_TEST") +
           std::count(arguments.begin(), arguments.end(), "OUTRIDER_TEST_VARIABLE");
  };
  EXPECT_EQ(passed_on("hosts"), 2);
  EXPECT_EQ(passed_on(""), 0);  // children have them anyway
  unsetenv("NCCL_OUTRIDER_TEST");
  unsetenv("OUTRIDER_TEST_VARIABLE");
}

TEST(Mpirun, StaysOnThisHostWithoutAHostfile) {
  for (const std::string hostfile : {"", "hosts"}) {
    const auto arguments = mpirun_arguments(2, hostfile, {"serve"});
    for (const auto& [parameter, value] : {std::pair{"ras", "^alps,gridengine,lsf,slurm,tm"},
                                           {"orte_default_hostfile", "none"},
                                           {"orte_default_dash_host", "none"},
                                           {"plm", "isolated"}}) {
      const std::vector<std::string> setting = {"--mca", parameter, value};
      const auto found =
          std::search(arguments.begin(), arguments.end(), setting.begin(), setting.end());
      EXPECT_EQ(found != arguments.end(), hostfile.empty()) << parameter;
    }
  }
}

TEST(AnswerPrinter, Summary) {
  EXPECT_EQ(summary(a_complete(), 25),
            "accepted 12 of 30 drafted tokens (40.0 %), 2.10 tokens a step, drafter model; 25 "
            "tokens in 0.50 s (50.0 a second), the first after 40 ms; alpha 0.45, c 0.125: 1.50 "
            "times as fast as without drafts, predicted 1.62");
}

TEST(AnswerPrinter, SummaryWithoutDrafts) {
  v1::Complete complete = a_complete();
  complete.mutable_speculation()->set_num_draft_tokens(0);
  EXPECT_EQ(summary(complete, 25).find("alpha"), std::string::npos);
}

// Neither by the start nor by a step that only decoded.
TEST(AnswerPrinter, LeavesOutWhatWasNotMeasured) {
  v1::GenerateOnceResponse answer;
  v1::Complete& complete = *answer.mutable_complete();
  complete = a_complete();
  v1::SpeculationStats& stats = *complete.mutable_speculation();
  stats.clear_measured_speedup();
  stats.clear_predicted_speedup();
  const auto ends_with = [&](const std::string& end) {
    const std::string text = summary(complete, 25);
    EXPECT_EQ(text.substr(text.size() - std::min(text.size(), end.size())), end);
  };
  ends_with("; alpha 0.45, c 0.125");
  stats.clear_draft_cost();
  ends_with("; alpha 0.45");
  const auto speculation = nlohmann::json::parse(to_json({answer}))["speculation"];
  for (const char* key : {"draft_cost", "measured_speedup", "predicted_speedup"}) {
    EXPECT_TRUE(speculation.at(key).is_null()) << key;
  }
}

TEST(AnswerPrinter, SummaryOfCopiesAndLenience) {
  v1::Complete complete = a_complete();
  v1::SpeculationStats& stats = *complete.mutable_speculation();
  const std::string plain = summary(complete, 25);
  for (const int copied : {7, 30}) {
    stats.set_num_copied_draft_tokens(copied);
    EXPECT_EQ(summary(complete, 25),
              plain + "; copied " + std::to_string(copied) + " of the drafted tokens");
  }
  stats.set_drafter("ngram");  // its name says it
  EXPECT_EQ(summary(complete, 25).find("copied"), std::string::npos);
  stats.set_drafter("model");
  stats.set_num_copied_draft_tokens(0);
  stats.set_lenience(0.5f);
  stats.set_lenience_shift(0.125);
  EXPECT_EQ(summary(complete, 25), plain + "; lenience 0.5 moved the distribution by 0.125");
}

TEST(AnswerPrinter, SummaryOfAnObjective) {
  v1::Complete complete = a_complete();
  complete.mutable_speculation()->set_tpot_slo_ms(12.5);
  EXPECT_NE(summary(complete, 25).find("; the objective of 12.5 ms a token was met"),
            std::string::npos);
  complete.mutable_speculation()->set_tpot_slo_missed(true);
  EXPECT_NE(summary(complete, 25).find("; the objective of 12.5 ms a token was missed"),
            std::string::npos);
}

TEST(AnswerPrinter, ShortSummary) {
  v1::Complete complete = a_complete();
  complete.mutable_timings()->set_decode_ms(460.8);
  const std::string drafts =
      "; alpha 0.45, c 0.125: 1.50 times as fast as without drafts, predicted 1.62";
  EXPECT_EQ(short_summary(complete), "25 tokens, 19.2 ms a token, 2.10 tokens a step" + drafts);
  complete.set_completion_tokens(1);  // no token behind the first
  EXPECT_EQ(short_summary(complete), "1 token, 2.10 tokens a step" + drafts);
  complete.mutable_speculation()->set_num_draft_tokens(0);
  EXPECT_EQ(short_summary(complete), "1 token, 2.10 tokens a step");
}

TEST(AnswerPrinter, JsonKeepsNumbersAndPrintsZeros) {
  v1::GenerateOnceResponse answer;
  answer.set_text("é\n\"");
  answer.add_token_ids(1);
  answer.add_token_ids(2);
  *answer.mutable_complete() = a_complete();
  const auto object = nlohmann::json::parse(to_json({answer}));
  EXPECT_EQ(object["text"], "é\n\"");
  EXPECT_EQ(object["token_ids"], nlohmann::json({1, 2}));
  EXPECT_EQ(object["finish_reason"], "STOP");
  EXPECT_TRUE(object["cached_tokens"].is_number_integer());
  EXPECT_EQ(object["cached_tokens"], 0);
  EXPECT_EQ(object["speculation"]["seed"].get<uint64_t>(), 18446744073709551615u);
  EXPECT_EQ(object["speculation"]["alpha"], 0.45);
  EXPECT_EQ(object["speculation"]["draft_cost"], 0.125);
  EXPECT_TRUE(object["speculation"]["tpot_slo_ms"].is_null());
  EXPECT_EQ(object["speculation"]["tpot_slo_missed"], false);
  EXPECT_EQ(object["speculation"]["acceptance_by_position"], nlohmann::json::array());
}

TEST(AnswerPrinter, PrintsAllOfATextWithNul) {
  AnswerFormat format;
  format.stats = false;
  format.colour = Colour::never;
  AnswerPrinter printer(format, 2);
  testing::internal::CaptureStdout();
  for (int index = 0; index < 2; ++index) {
    v1::Chunk part = chunk(std::string("a\0b", 3), {});
    part.set_index(index);
    printer.chunk(part);
    v1::Complete complete = a_complete();
    complete.set_index(index);
    printer.complete(complete);
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), std::string("a\0b\n\nanswer 2:\na\0b\n", 19));
}

// A failed call's reason then stands on a line of its own.
TEST(AnswerPrinter, PrintsWhatThereIsOfAnswersThatAreCutOff) {
  const auto printed = [](int n, bool json, const std::vector<std::pair<int, std::string>>& parts) {
    AnswerFormat format;
    format.json = json;
    format.colour = Colour::never;
    AnswerPrinter printer(format, n);
    testing::internal::CaptureStdout();
    for (const auto& [index, text] : parts) {
      v1::Chunk part = chunk(text, {});
      part.set_index(index);
      printer.chunk(part);
    }
    printer.cut_off();
    return testing::internal::GetCapturedStdout();
  };
  EXPECT_EQ(printed(1, false, {{0, "Once upon a ti"}}), "Once upon a ti\n");
  EXPECT_EQ(printed(2, false, {{0, "One"}, {1, "Two"}}), "One\n\nanswer 2:\nTwo\n");
  EXPECT_EQ(printed(1, false, {}), "");
  EXPECT_EQ(printed(1, true, {{0, "Once upon a ti"}}), "");
}

TEST(AnswerPrinter, SaysWhatTheColoursOfACutOffAnswerMean) {
  AnswerFormat format;
  format.colour = Colour::always;
  AnswerPrinter printer(format, 1);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  printer.chunk(chunk("Once", {}));
  printer.cut_off();
  testing::internal::GetCapturedStdout();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), colour_legend() + "\n");
}

v1::GenerateRequest request_of(std::vector<std::string> arguments) {
  CLI::App app;
  RequestFlags flags;
  flags.add_to(app);
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  return flags.request();
}

// Unset is not zero: what was not given is not in the request.
TEST(RequestFlags, SetWhatWasGivenAndNothingElse) {
  const v1::GenerateRequest plain = request_of({"Hi"});
  ASSERT_EQ(plain.messages().messages_size(), 1);
  EXPECT_EQ(plain.messages().messages(0).role(), "user");
  EXPECT_EQ(plain.messages().messages(0).content(), "Hi");
  EXPECT_EQ(plain.sampling_params().ByteSizeLong(), 0u);
  EXPECT_EQ(plain.speculation().ByteSizeLong(), 0u);
  EXPECT_EQ(request_of({"--raw", "Hi"}).text(), "Hi");
  EXPECT_THROW(request_of({}), CLI::RequiredError);

  const v1::GenerateRequest full = request_of({"--temperature",
                                               "0",
                                               "--top-p",
                                               "0.5",
                                               "--top-k",
                                               "-3",
                                               "--seed",
                                               "9",
                                               "--max-tokens",
                                               "7",
                                               "--stop",
                                               "a,b",
                                               "--stop",
                                               "c",
                                               "--stop-token-ids",
                                               "4,5",
                                               "--ignore-eos",
                                               "--mode",
                                               "off",
                                               "--drafter",
                                               "random",
                                               "--num-speculative-tokens",
                                               "0",
                                               "--input-ids",
                                               "1,2"});
  EXPECT_TRUE(full.sampling_params().has_temperature());
  EXPECT_EQ(full.sampling_params().temperature(), 0);
  EXPECT_EQ(full.sampling_params().top_k(), -3);
  EXPECT_EQ(full.sampling_params().stop_size(), 2);
  EXPECT_EQ(full.sampling_params().stop(0), "a,b");
  EXPECT_EQ(full.sampling_params().stop_token_ids_size(), 2);
  EXPECT_TRUE(full.speculation().has_num_speculative_tokens());
  EXPECT_EQ(full.speculation().mode(), v1::SPECULATION_MODE_OFF);
  EXPECT_EQ(full.tokenized().input_ids_size(), 2);
}

TEST(RequestFlags, TokenIdsAddUp) {
  const v1::GenerateRequest request =
      request_of({"--input-ids", "7,-8", "--input-ids", "9", "--emitted-token-ids", "10,11"});
  const auto& ids = request.tokenized().input_ids();
  EXPECT_EQ(std::vector<int32_t>(ids.begin(), ids.end()), (std::vector<int32_t>{7, -8, 9}));
  const auto& emitted = request.emitted_token_ids();
  EXPECT_EQ(std::vector<int32_t>(emitted.begin(), emitted.end()), (std::vector<int32_t>{10, 11}));
}

}  // namespace
}  // namespace outrider
