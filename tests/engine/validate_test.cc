// validate(): each wrong value is refused by the name of its field, and good ones at the very edge
// are not.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/field_error.h"
#include "engine/named_drafter.h"
#include "engine/request.h"

namespace outrider {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Limits limits() {
  Limits limits;
  limits.vocab_size = 100;
  limits.max_positions = 32;
  limits.max_kv_tokens = 96;  // with three answers 32 for each, 16 of them a step's rows
  limits.drafters = {DrafterKind::prompt_lookup, DrafterKind::random};
  limits.default_drafter = DrafterKind::prompt_lookup;
  limits.eos_token_ids = {2};
  return limits;
}

Request good_request() {
  Request request;
  request.prompt = {1, 2, 3};
  return request;
}

struct Case {
  std::string what;
  std::string field;  // named by the error; empty: the request is good
  std::function<void(Request&)> change;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"as it is", "", [](Request&) {}},
      {"greedy", "", [](Request& r) { r.sampling.temperature = 0; }},
      {"a hot temperature", "", [](Request& r) { r.sampling.temperature = 1e30f; }},
      {"a negative temperature", "sampling_params.temperature",
       [](Request& r) { r.sampling.temperature = -1e-6f; }},
      {"a NaN temperature", "sampling_params.temperature",
       [](Request& r) { r.sampling.temperature = kNan; }},
      {"an infinite temperature", "sampling_params.temperature",
       [](Request& r) { r.sampling.temperature = kInfinity; }},
      {"the smallest top_p", "",
       [](Request& r) { r.sampling.top_p = std::numeric_limits<float>::denorm_min(); }},
      {"top_p 0", "sampling_params.top_p", [](Request& r) { r.sampling.top_p = 0; }},
      {"top_p above 1", "sampling_params.top_p",
       [](Request& r) { r.sampling.top_p = std::nextafter(1.0f, 2.0f); }},
      {"a NaN top_p", "sampling_params.top_p", [](Request& r) { r.sampling.top_p = kNan; }},
      {"a negative top_p", "sampling_params.top_p",
       [](Request& r) { r.sampling.top_p = -kInfinity; }},
      {"a top_k beyond the vocabulary", "",
       [](Request& r) { r.sampling.top_k = std::numeric_limits<int32_t>::max(); }},
      {"a negative top_k", "sampling_params.top_k", [](Request& r) { r.sampling.top_k = -1; }},
      {"the largest min_p", "", [](Request& r) { r.sampling.min_p = 1; }},
      {"a negative min_p", "sampling_params.min_p", [](Request& r) { r.sampling.min_p = -0.1f; }},
      {"min_p above 1", "sampling_params.min_p",
       [](Request& r) { r.sampling.min_p = std::nextafter(1.0f, 2.0f); }},
      {"a NaN min_p", "sampling_params.min_p", [](Request& r) { r.sampling.min_p = kNan; }},
      {"any repetition_penalty above 0", "",
       [](Request& r) { r.sampling.repetition_penalty = 1e-30f; }},
      {"repetition_penalty 0", "sampling_params.repetition_penalty",
       [](Request& r) { r.sampling.repetition_penalty = 0; }},
      {"a negative repetition_penalty", "sampling_params.repetition_penalty",
       [](Request& r) { r.sampling.repetition_penalty = -1; }},
      {"an infinite repetition_penalty", "sampling_params.repetition_penalty",
       [](Request& r) { r.sampling.repetition_penalty = kInfinity; }},
      {"a NaN repetition_penalty", "sampling_params.repetition_penalty",
       [](Request& r) { r.sampling.repetition_penalty = kNan; }},
      {"the largest penalties", "",
       [](Request& r) { r.sampling.presence_penalty = r.sampling.frequency_penalty = 2; }},
      {"the least penalties", "",
       [](Request& r) { r.sampling.presence_penalty = r.sampling.frequency_penalty = -2; }},
      {"a presence_penalty above 2", "sampling_params.presence_penalty",
       [](Request& r) { r.sampling.presence_penalty = 2.1f; }},
      {"a NaN presence_penalty", "sampling_params.presence_penalty",
       [](Request& r) { r.sampling.presence_penalty = kNan; }},
      {"a frequency_penalty below -2", "sampling_params.frequency_penalty",
       [](Request& r) { r.sampling.frequency_penalty = -2.1f; }},
      {"an infinite frequency_penalty", "sampling_params.frequency_penalty",
       [](Request& r) { r.sampling.frequency_penalty = kInfinity; }},
      {"biases at both ends", "",
       [](Request& r) {
         r.sampling.logit_bias = {{0, -100.0f}, {99, 100.0f}};
       }},
      {"a bias beyond 100", "sampling_params.logit_bias",
       [](Request& r) {
         r.sampling.logit_bias = {{5, 100.5f}};
       }},
      {"a NaN bias", "sampling_params.logit_bias",
       [](Request& r) {
         r.sampling.logit_bias = {{5, kNan}};
       }},
      {"an infinite bias", "sampling_params.logit_bias",
       [](Request& r) {
         r.sampling.logit_bias = {{5, -kInfinity}};
       }},
      {"a bias of a token beyond the vocabulary", "sampling_params.logit_bias",
       [](Request& r) {
         r.sampling.logit_bias = {{100, 1.0f}};
       }},
      {"a bias of a negative token", "sampling_params.logit_bias",
       [](Request& r) {
         r.sampling.logit_bias = {{-1, 1.0f}};
       }},
      {"more biases than there may be", "sampling_params.logit_bias",
       [](Request& r) {
         for (int i = 0; i <= kMaxLogitBias; ++i) r.sampling.logit_bias[i] = 1;
       }},
      {"min_tokens as many as max_tokens", "",
       [](Request& r) { r.sampling.min_tokens = 5, r.sampling.max_tokens = 5; }},
      {"min_tokens above max_tokens", "sampling_params.min_tokens",
       [](Request& r) { r.sampling.min_tokens = 6, r.sampling.max_tokens = 5; }},
      {"min_tokens beyond all positions", "sampling_params.min_tokens",
       [](Request& r) { r.sampling.min_tokens = 33; }},
      {"min_tokens as many as fit", "", [](Request& r) { r.sampling.min_tokens = 29; }},
      {"min_tokens beyond the prompt's room", "sampling_params.min_tokens",
       [](Request& r) { r.sampling.min_tokens = 30; }},
      {"a stop string of half a character", "sampling_params.stop[1]",
       [](Request& r) {
         r.sampling.stop = {"\xc3\xa9", "\xa9"};
       }},
      {"negative min_tokens", "sampling_params.min_tokens",
       [](Request& r) { r.sampling.min_tokens = -1; }},
      {"max_tokens that just fit", "", [](Request& r) { r.sampling.max_tokens = 29; }},
      {"max_tokens that do not", "sampling_params.max_tokens",
       [](Request& r) { r.sampling.max_tokens = 30; }},
      {"the largest max_tokens", "sampling_params.max_tokens",
       [](Request& r) { r.sampling.max_tokens = std::numeric_limits<int32_t>::max(); }},
      {"max_tokens 0", "sampling_params.max_tokens", [](Request& r) { r.sampling.max_tokens = 0; }},
      {"negative max_tokens", "sampling_params.max_tokens",
       [](Request& r) { r.sampling.max_tokens = std::numeric_limits<int32_t>::min(); }},
      {"answers that together just fit", "",
       [](Request& r) { r.sampling.n = 3, r.sampling.max_tokens = 13; }},
      {"answers that do not", "sampling_params.max_tokens",
       [](Request& r) { r.sampling.n = 3, r.sampling.max_tokens = 14; }},
      {"more answers than fit, however short", "sampling_params.n",
       [](Request& r) { r.sampling.n = 6, r.sampling.max_tokens = 1; }},
      {"more answers than fit, of any length", "sampling_params.n",
       [](Request& r) { r.sampling.n = 6; }},
      {"no answer", "sampling_params.n", [](Request& r) { r.sampling.n = 0; }},
      {"an answer too many", "sampling_params.n", [](Request& r) { r.sampling.n = 17; }},
      {"fewer than no answers", "sampling_params.n",
       [](Request& r) { r.sampling.n = std::numeric_limits<int32_t>::min(); }},
      {"the most log-probabilities", "",
       [](Request& r) { r.sampling.logprobs = r.sampling.prompt_logprobs = 20; }},
      {"a log-probability too many", "sampling_params.logprobs",
       [](Request& r) { r.sampling.logprobs = 21; }},
      {"a negative number of the prompt's", "sampling_params.prompt_logprobs",
       [](Request& r) { r.sampling.prompt_logprobs = -1; }},
      {"the highest priority", "", [](Request& r) { r.priority = 100; }},
      {"a higher one", "priority", [](Request& r) { r.priority = 101; }},
      {"the lowest number of all", "priority",
       [](Request& r) { r.priority = std::numeric_limits<int32_t>::min(); }},
      {"all the stop strings", "", [](Request& r) { r.sampling.stop.assign(16, "x"); }},
      {"a stop string too many", "sampling_params.stop",
       [](Request& r) { r.sampling.stop.assign(17, "x"); }},
      {"an empty stop string", "sampling_params.stop[1]",
       [](Request& r) {
         r.sampling.stop = {"x", ""};
       }},
      {"the longest stop string", "",
       [](Request& r) { r.sampling.stop = {std::string(256, 'x')}; }},
      {"a longer stop string", "sampling_params.stop[0]",
       [](Request& r) { r.sampling.stop = {std::string(257, 'x')}; }},
      {"all the stop tokens", "", [](Request& r) { r.sampling.stop_token_ids.assign(64, 99); }},
      {"a stop token too many", "sampling_params.stop_token_ids",
       [](Request& r) { r.sampling.stop_token_ids.assign(65, 0); }},
      {"a stop token beyond the vocabulary", "sampling_params.stop_token_ids[1]",
       [](Request& r) {
         r.sampling.stop_token_ids = {99, 100};
       }},
      {"a negative stop token", "sampling_params.stop_token_ids[0]",
       [](Request& r) { r.sampling.stop_token_ids = {-1}; }},
      {"the most drafted tokens", "",
       [](Request& r) { r.speculation.num_speculative_tokens = kMaxDraftTokens; }},
      {"a drafted token too many", "speculation.num_speculative_tokens",
       [](Request& r) { r.speculation.num_speculative_tokens = kMaxDraftTokens + 1; }},
      {"a negative number of drafted tokens", "speculation.num_speculative_tokens",
       [](Request& r) { r.speculation.num_speculative_tokens = -1; }},
      {"the most alternatives", "",
       [](Request& r) {
         r.speculation.drafter = "random", r.speculation.num_alternatives = kMaxAlternatives;
       }},
      {"an alternative too many", "speculation.num_alternatives",
       [](Request& r) { r.speculation.num_alternatives = kMaxAlternatives + 1; }},
      {"a negative number of alternatives", "speculation.num_alternatives",
       [](Request& r) { r.speculation.num_alternatives = -1; }},
      {"as many alternatives as K leaves", "",
       [](Request& r) {
         r.speculation = {.drafter = "random", .num_speculative_tokens = 13, .num_alternatives = 2};
       }},
      {"more alternatives than K leaves", "speculation.num_alternatives",
       [](Request& r) {
         r.speculation.num_speculative_tokens = 13, r.speculation.num_alternatives = 3;
       }},
      {"alternatives to nothing", "speculation.num_alternatives",
       [](Request& r) {
         r.speculation.num_speculative_tokens = 0, r.speculation.num_alternatives = 1;
       }},
      {"alternatives where drafts are off", "speculation.num_alternatives",
       [](Request& r) { r.speculation.off = true, r.speculation.num_alternatives = 1; }},
      {"alternatives with log-probabilities", "speculation.num_alternatives",
       [](Request& r) {
         r.sampling.logprobs = 0, r.speculation.drafter = "random";
         r.speculation.num_alternatives = 1;
       }},
      {"alternatives to what the default drafter copies", "speculation.num_alternatives",
       [](Request& r) { r.speculation.num_alternatives = 1; }},
      {"alternatives to what is copied as asked", "speculation.num_alternatives",
       [](Request& r) {
         r.speculation.drafter = "prompt_lookup", r.speculation.num_alternatives = 1;
       }},
      {"alternatives with a seed and rejection", "speculation.num_alternatives",
       [](Request& r) {
         r.sampling.seed = 1, r.speculation.mode = VerifyMode::rejection;
         r.speculation.drafter = "random", r.speculation.num_alternatives = 1;
       }},
      {"alternatives with a seed, which couples", "",
       [](Request& r) {
         r.sampling.seed = 1;
         r.speculation.drafter = "random", r.speculation.num_alternatives = 1;
       }},
      {"no alternatives where there can be none", "",
       [](Request& r) { r.sampling.logprobs = 0, r.speculation.num_alternatives = 0; }},
      {"off, and none drafted", "",
       [](Request& r) { r.speculation.off = true, r.speculation.num_speculative_tokens = 0; }},
      {"lenience", "", [](Request& r) { r.speculation.lenience = 0.5f; }},
      {"the smallest lenience", "",
       [](Request& r) { r.speculation.lenience = std::numeric_limits<float>::min(); }},
      {"greedy lenience with a seed", "",
       [](Request& r) {
         r.sampling.temperature = 0, r.sampling.seed = 1, r.speculation.lenience = 0.5f;
       }},
      {"lenience with a seed and rejection", "",
       [](Request& r) {
         r.sampling.seed = 1, r.speculation.mode = VerifyMode::rejection;
         r.speculation.lenience = 0.5f;
       }},
      {"a lenience that engines take for 0", "speculation.lenience",
       [](Request& r) {
         r.speculation.lenience = std::nextafter(std::numeric_limits<float>::min(), 0.0f);
       }},
      {"lenience 0", "speculation.lenience", [](Request& r) { r.speculation.lenience = 0; }},
      {"lenience above 1", "speculation.lenience",
       [](Request& r) { r.speculation.lenience = std::nextafter(1.0f, 2.0f); }},
      {"a negative lenience", "speculation.lenience",
       [](Request& r) { r.speculation.lenience = -0.5f; }},
      {"a NaN lenience", "speculation.lenience", [](Request& r) { r.speculation.lenience = kNan; }},
      {"lenience where coupled", "speculation.lenience",
       [](Request& r) { r.speculation.mode = VerifyMode::coupled, r.speculation.lenience = 0.5f; }},
      {"greedy lenience where coupled", "speculation.lenience",
       [](Request& r) {
         r.sampling.temperature = 0, r.speculation.mode = VerifyMode::coupled;
         r.speculation.lenience = 0.5f;
       }},
      {"lenience with a seed, which couples", "speculation.lenience",
       [](Request& r) { r.sampling.seed = 1, r.speculation.lenience = 0.5f; }},
      {"lenience where nothing is drafted", "speculation.lenience",
       [](Request& r) { r.speculation.off = true, r.speculation.lenience = 0.5f; }},
      {"lenience where K is 0", "speculation.lenience",
       [](Request& r) { r.speculation.num_speculative_tokens = 0, r.speculation.lenience = 0.5f; }},
      {"off, yet some drafted", "speculation.num_speculative_tokens",
       [](Request& r) { r.speculation.off = true, r.speculation.num_speculative_tokens = 1; }},
      {"an objective", "", [](Request& r) { r.speculation.tpot_slo_ms = 0.001; }},
      {"an objective of no time", "speculation.tpot_slo_ms",
       [](Request& r) { r.speculation.tpot_slo_ms = 0; }},
      {"an objective below none", "speculation.tpot_slo_ms",
       [](Request& r) { r.speculation.tpot_slo_ms = -5; }},
      {"an objective that is no number", "speculation.tpot_slo_ms",
       [](Request& r) { r.speculation.tpot_slo_ms = NAN; }},
      {"an endless objective", "speculation.tpot_slo_ms",
       [](Request& r) { r.speculation.tpot_slo_ms = INFINITY; }},
      {"a drafter at hand", "", [](Request& r) { r.speculation.drafter = "random"; }},
      {"a drafter that is not at hand", "speculation.drafter",
       [](Request& r) { r.speculation.drafter = "model"; }},
      {"no such drafter", "speculation.drafter",
       [](Request& r) { r.speculation.drafter = "Random"; }},
      {"none, which is no drafter", "speculation.drafter",
       [](Request& r) { r.speculation.drafter = "none"; }},
      {"an empty drafter", "speculation.drafter", [](Request& r) { r.speculation.drafter = ""; }},
      {"no prompt", "input", [](Request& r) { r.prompt.clear(); }},
      {"the longest prompt", "", [](Request& r) { r.prompt.assign(31, 0); }},
      {"a prompt that leaves no room", "input", [](Request& r) { r.prompt.assign(32, 0); }},
      {"the last token", "", [](Request& r) { r.prompt = {99}; }},
      {"a token beyond the vocabulary", "tokenized.input_ids[2]",
       [](Request& r) {
         r.prompt = {0, 1, 100};
       }},
      {"a negative token", "tokenized.input_ids[0]", [](Request& r) { r.prompt = {-1}; }},
      {"the longest request_id", "", [](Request& r) { r.request_id.assign(128, 'x'); }},
      {"a longer request_id", "request_id", [](Request& r) { r.request_id.assign(129, 'x'); }},
  };
  return kCases;
}

TEST(Validate, NamesTheField) {
  for (const Case& c : cases()) {
    Request request = good_request();
    c.change(request);
    const absl::Status status = validate(request, limits());
    if (c.field.empty()) {
      EXPECT_TRUE(status.ok()) << c.what << ": " << status;
      continue;
    }
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.what << ": " << status;
    EXPECT_EQ(field_of(status), c.field) << c.what << ": " << status;
    EXPECT_EQ(status.message().find(c.field + " "), 0u) << c.what << ": " << status;
    EXPECT_NE(std::string(status.message()).find("expected"), std::string::npos)
        << c.what << ": " << status;
  }
}

// Where every token ends the answer, none could come before min_tokens.
TEST(Validate, MinTokensLeavesATokenToCome) {
  Limits few = limits();
  few.vocab_size = 4;
  Request request = good_request();
  request.sampling.min_tokens = 1;
  request.sampling.stop_token_ids = {0, 1, 1};
  EXPECT_TRUE(validate(request, few).ok());
  request.sampling.stop_token_ids = {0, 1, 3};
  EXPECT_EQ(field_of(validate(request, few)), "sampling_params.min_tokens");
}

TEST(Validate, SaysWhatWasFound) {
  Request request = good_request();
  request.sampling.top_p = 1.5f;
  EXPECT_EQ(validate(request, limits()).message(),
            "sampling_params.top_p is 1.5; expected a number in (0, 1]");
  request = good_request();
  request.sampling.logit_bias = {{5, 101.0f}};
  EXPECT_EQ(validate(request, limits()).message(),
            "sampling_params.logit_bias is 101 for token 5; expected a number in [-100, 100]");
  // With six digits they would look right.
  request = good_request();
  request.sampling.top_p = std::nextafter(1.0f, 2.0f);
  EXPECT_EQ(validate(request, limits()).message(),
            "sampling_params.top_p is 1.0000001; expected a number in (0, 1]");
  request = good_request();
  request.sampling.logit_bias = {{5, std::nextafter(100.0f, 200.0f)}};
  EXPECT_EQ(
      validate(request, limits()).message(),
      "sampling_params.logit_bias is 100.00001 for token 5; expected a number in [-100, 100]");
}

TEST(ExactText, ReadsBackAsTheNumber) {
  EXPECT_EQ(exact_text(0.1f), "0.1");
  EXPECT_EQ(exact_text(-2.1f), "-2.1");
  EXPECT_EQ(exact_text(100000.0f), "100000");
  EXPECT_EQ(exact_text(-kInfinity), "-inf");
  EXPECT_EQ(exact_text(kNan), "nan");
  for (const float number :
       {std::nextafter(1.0f, 0.0f), 16777217.0f, 1.0f / 3.0f,
        std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max(), -0.0f}) {
    EXPECT_EQ(static_cast<float>(std::stod(exact_text(number))), number) << exact_text(number);
  }
}

TEST(Validate, DraftedTokensAreBoundByTheServer) {
  Limits few = limits();
  few.max_draft_tokens = 4;
  Request request = good_request();
  request.speculation.num_speculative_tokens = 4;
  EXPECT_TRUE(validate(request, few).ok());
  request.speculation.num_alternatives = 1;
  EXPECT_EQ(validate(request, few).message(), "speculation.num_alternatives is 1; expected 0 … 0");
  request.speculation.num_speculative_tokens = 5;
  EXPECT_EQ(validate(request, few).message(),
            "speculation.num_speculative_tokens is 5; expected 0 … 4");
  request.speculation = {.drafter = "random", .num_alternatives = 6};  // the server chooses K
  EXPECT_TRUE(validate(request, few).ok());
  few.max_draft_tokens = 0;
  EXPECT_EQ(field_of(validate(request, few)), "speculation.num_alternatives");
  request.speculation.num_alternatives = 0;
  EXPECT_TRUE(validate(request, few).ok());
}

// Its drafts begin with a step's states, and where answers are computed again there are other
// steps.
TEST(Validate, AHeadThatDraftsByRejectionTakesNoSeed) {
  Limits with_head = limits();
  with_head.drafters.push_back(DrafterKind::head);
  Request request = good_request();
  request.sampling.temperature = 1;
  request.speculation.mode = VerifyMode::rejection;
  request.speculation.drafter = "head";
  EXPECT_TRUE(validate(request, with_head).ok());
  request.sampling.seed = 7;
  EXPECT_EQ(field_of(validate(request, with_head)), "speculation.drafter");
  request.speculation.num_speculative_tokens = 1;
  EXPECT_EQ(field_of(validate(request, with_head)), "speculation.drafter");
  request.speculation.num_speculative_tokens = 0;
  EXPECT_TRUE(validate(request, with_head).ok());
}

// Three steps: one that drafted four tokens of which two were accepted, one that drafted two
// (both), one that drafted none; so 4 of 6, and 4 + 3 tokens in 3 steps.
TEST(SpeculationStats, Rates) {
  SpeculationStats stats;
  EXPECT_EQ(stats.mean_acceptance_length(), 0);
  EXPECT_EQ(stats.draft_acceptance_rate(), 0);
  EXPECT_EQ(stats.alpha(), 0);
  stats.num_decode_steps = 3;
  stats.num_decoded_tokens = 7;
  stats.num_spec_steps = 2;
  stats.num_draft_tokens = 6;
  stats.num_accepted_draft_tokens = 4;
  stats.alpha_sum = 2.5;
  stats.alpha_rows = 5;
  EXPECT_EQ(stats.draft_cost(), std::nullopt);
  stats.draft_cost_sum = 1.8;
  EXPECT_DOUBLE_EQ(stats.mean_acceptance_length(), 7.0 / 3.0);
  EXPECT_DOUBLE_EQ(stats.draft_acceptance_rate(), 4.0 / 6.0);
  EXPECT_DOUBLE_EQ(stats.alpha(), 0.5);
  EXPECT_DOUBLE_EQ(stats.draft_cost().value(), 0.3);
  stats.num_alternative_draft_tokens = 2;
  EXPECT_DOUBLE_EQ(stats.draft_cost().value(), 0.45);
}

TEST(DrafterName, ModelIsWhatWasTrainedForTheTarget) {
  Limits limits;
  limits.drafters = {DrafterKind::prompt_lookup};
  EXPECT_EQ(named_drafter("prompt_lookup", limits), DrafterKind::prompt_lookup);
  EXPECT_EQ(named_drafter("model", limits), std::nullopt);
  EXPECT_EQ(named_drafter("head", limits), std::nullopt);
  limits.drafters = {DrafterKind::prompt_lookup, DrafterKind::head};
  EXPECT_EQ(named_drafter("model", limits), DrafterKind::head);
  EXPECT_EQ(named_drafter("head", limits), DrafterKind::head);
  limits.drafters = {DrafterKind::head, DrafterKind::model};
  EXPECT_EQ(named_drafter("model", limits), DrafterKind::model);
}

TEST(DrafterName, ThereAndBack) {
  for (const auto kind : {DrafterKind::model, DrafterKind::random, DrafterKind::prompt_lookup}) {
    EXPECT_EQ(drafter_from_name(drafter_name(kind)), kind);
  }
  EXPECT_FALSE(drafter_from_name("none"));
  EXPECT_FALSE(drafter_from_name("prompt-lookup"));
}

}  // namespace
}  // namespace outrider
