// See request_flags.h.
#include "launcher/request_flags.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "launcher/command_line.h"
#include "model/utf8.h"
#include "spec/drafter_kind.h"

namespace outrider {
namespace {

// Texts as 1,2,3. Throws CLI::ValidationError.
std::vector<int32_t> read_ids(const std::string& flag, const std::vector<std::string>& texts) {
  std::vector<int32_t> ids;
  for (const std::string& text : texts) {
    for (const absl::string_view part : absl::StrSplit(text, ',')) {
      if (!absl::SimpleAtoi(part, &ids.emplace_back())) {
        throw CLI::ValidationError(flag, "is \"" + text + "\"; expected token ids, as 1,2,3");
      }
    }
  }
  return ids;
}

// What goes into a message of the schema; Protobuf and gRPC say of other bytes neither where nor
// why.
CLI::Validator utf8() {
  return {[](const std::string& text) {
            return is_valid_utf8(text)
                       ? std::string()
                       : std::string("holds bytes that are not UTF-8; expected text");
          },
          ""};
}

}  // namespace

CLI::Option* RequestFlags::add_ids_to(CLI::App& command, const std::string& flag,
                                      std::vector<int32_t>& ids, const std::string& what) {
  return command
      .add_option_function<std::vector<std::string>>(
          flag, [flag, &ids](const auto& texts) { ids = read_ids(flag, texts); }, what)
      ->allow_extra_args(false)
      ->type_name("TOKEN,TOKEN,…");
}

void RequestFlags::read_logit_bias(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
    int32_t token;
    float bias;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &token) ||
        !absl::SimpleAtof(parts[1], &bias) || !std::isfinite(bias)) {
      throw CLI::ValidationError("--logit-bias",
                                 "is " + text + "; expected a token id and a number, as 123:-5");
    }
    if (!logit_bias_.emplace(token, bias).second) {
      throw CLI::ValidationError("--logit-bias", "names token " + std::to_string(token) +
                                                     " twice; expected each token once");
    }
  }
}

void RequestFlags::add_to(CLI::App& command) {
  auto* prompt = command.add_option("prompt", prompt_, "What to answer")->check(utf8());
  add_ids_to(command, "--input-ids", input_ids_,
             "Token ids instead of a prompt, with commas: 1,2,3")
      ->excludes(prompt);
  command.add_option("--request-id", request_id_, "Your name for this request")
      ->check(not_empty("a name"))
      ->check(utf8());
  add_ids_to(command, "--emitted-token-ids", emitted_token_ids_,
             "Tokens of the answer that are there already, to go on behind: 1,2,3");
  add_parameters_to(command);
  add_order_and_seed_to(command);
}

void RequestFlags::add_conversation_to(CLI::App& command) {
  add_choice_to(command);
  add_order_and_seed_to(command);
}

void RequestFlags::add_order_and_seed_to(CLI::App& command) {
  command.add_option("--priority", priority_,
                     "Higher ones are begun first, -100 … 100 (default 0)");
  command.add_option("--seed", seed_, "The same seed gives the same answer");
}

void RequestFlags::add_parameters_to(CLI::App& command) {
  command.add_flag("--raw", raw_, "Continue the prompt as it stands, without a chat template");
  command.add_option("--n", n_, "So many answers to the prompt, 1 … 16");
  command.add_option("--logprobs", logprobs_,
                     "Log-probabilities of the tokens and the so many best ones, 0 … 20 (JSON)");
  command.add_option("--prompt-logprobs", prompt_logprobs_, "The same of the prompt's tokens");
  add_choice_to(command);
}

void RequestFlags::add_choice_to(CLI::App& command) {
  command.add_option("--temperature", temperature_, "0: greedy (default 1)");
  command.add_option("--top-p", top_p_, "Keep the likeliest tokens of this probability, (0, 1]");
  command.add_option("--top-k", top_k_, "Keep so many of the likeliest tokens (0: all)");
  command.add_option(
      "--min-p", min_p_,
      "Keep tokens of at least this share of the likeliest one's probability, 0 … 1");
  command.add_option("--repetition-penalty", repetition_penalty_,
                     "Above 1: tokens of prompt and answer become less likely (default 1)");
  command.add_option("--presence-penalty", presence_penalty_,
                     "Taken from the logits of tokens that the answer has, -2 … 2");
  command.add_option("--frequency-penalty", frequency_penalty_,
                     "The same for each time that it has them, -2 … 2");
  command
      .add_option_function<std::vector<std::string>>(
          "--logit-bias", [this](const auto& texts) { read_logit_bias(texts); },
          "Add to a token's logit, -100 … 100, as 123:-5; may be given again for others")
      ->allow_extra_args(false)
      ->type_name("TOKEN:BIAS");
  command.add_option("--max-tokens", max_tokens_,
                     "Most tokens of the answer (default: as many as max_positions and the KV "
                     "cache have room for behind the prompt)");
  command.add_option("--min-tokens", min_tokens_,
                     "No end-of-sequence or stop token before so many (default 0)");
  command.add_option("--stop", stop_, "End before this text; may be given again")
      ->allow_extra_args(false)
      ->check(utf8());
  add_ids_to(command, "--stop-token-ids", stop_token_ids_, "End with one of these tokens: 1,2,3");
  command.add_flag("--ignore-eos", ignore_eos_, "Go on past the end-of-sequence token");

  command
      .add_option("--mode", mode_,
                  "How to speculate: rejection (default), coupled (default with --seed) or off")
      ->check(CLI::IsMember({"rejection", "coupled", "off"}));
  command.add_option("--drafter", drafter_, "Who drafts: " + absl::StrJoin(drafter_names(), ", "))
      ->check(utf8());
  command.add_option("--num-speculative-tokens", num_speculative_tokens_,
                     "Draft exactly so many tokens a step, 0 … 15");
  command.add_option("--num-alternatives", num_alternatives_,
                     "Other candidates for the first of them, 0 … 6");
  command.add_option("--tpot-slo", tpot_slo_ms_,
                     "Milliseconds that a token behind the first shall take at most");
  command.add_option("--lenience", lenience_,
                     "Accept more at the price of exactness, (0, 1] (default 1: exact)");
}

v1::GenerateRequest RequestFlags::request() const {
  if (!input_ids_.empty()) return request_for(input_ids_);
  if (!prompt_) throw CLI::RequiredError("a prompt, or --input-ids,");
  return request_for(*prompt_);
}

v1::GenerateRequest RequestFlags::request_for(const std::vector<int32_t>& input_ids) const {
  v1::GenerateRequest request = parameters();
  request.mutable_tokenized()->mutable_input_ids()->Add(input_ids.begin(), input_ids.end());
  return request;
}

v1::GenerateRequest RequestFlags::request_for(const std::string& prompt) const {
  v1::GenerateRequest request = parameters();
  if (raw_) {
    request.set_text(prompt);
  } else {
    v1::ChatMessage& message = *request.mutable_messages()->add_messages();
    message.set_role("user");
    message.set_content(prompt);
  }
  return request;
}

v1::GenerateRequest RequestFlags::request_for(const v1::Chat& conversation) const {
  v1::GenerateRequest request = parameters();
  *request.mutable_messages() = conversation;
  return request;
}

v1::GenerateRequest RequestFlags::parameters() const {
  v1::GenerateRequest request;
  if (request_id_) request.set_request_id(*request_id_);
  if (priority_) request.set_priority(*priority_);
  request.mutable_emitted_token_ids()->Add(emitted_token_ids_.begin(), emitted_token_ids_.end());
  v1::SamplingParams& sampling = *request.mutable_sampling_params();
  if (temperature_) sampling.set_temperature(*temperature_);
  if (top_p_) sampling.set_top_p(*top_p_);
  if (top_k_) sampling.set_top_k(*top_k_);
  if (min_p_) sampling.set_min_p(*min_p_);
  if (repetition_penalty_) sampling.set_repetition_penalty(*repetition_penalty_);
  if (presence_penalty_) sampling.set_presence_penalty(*presence_penalty_);
  if (frequency_penalty_) sampling.set_frequency_penalty(*frequency_penalty_);
  for (const auto& [token, bias] : logit_bias_) (*sampling.mutable_logit_bias())[token] = bias;
  if (seed_) sampling.set_seed(*seed_);
  if (n_) sampling.set_n(*n_);
  if (logprobs_) sampling.set_logprobs(*logprobs_);
  if (prompt_logprobs_) sampling.set_prompt_logprobs(*prompt_logprobs_);
  if (max_tokens_) sampling.set_max_tokens(*max_tokens_);
  if (min_tokens_) sampling.set_min_tokens(*min_tokens_);
  for (const std::string& stop : stop_) sampling.add_stop(stop);
  sampling.mutable_stop_token_ids()->Add(stop_token_ids_.begin(), stop_token_ids_.end());
  sampling.set_ignore_eos(ignore_eos_);

  v1::SpeculationParams& speculation = *request.mutable_speculation();
  if (mode_) {
    speculation.set_mode(*mode_ == "off"       ? v1::SPECULATION_MODE_OFF
                         : *mode_ == "coupled" ? v1::SPECULATION_MODE_COUPLED
                                               : v1::SPECULATION_MODE_REJECTION);
  }
  if (drafter_) speculation.set_drafter(*drafter_);
  if (num_speculative_tokens_) {
    speculation.set_num_speculative_tokens(*num_speculative_tokens_);
  }
  if (num_alternatives_) speculation.set_num_alternatives(*num_alternatives_);
  if (tpot_slo_ms_) speculation.set_tpot_slo_ms(*tpot_slo_ms_);
  if (lenience_) speculation.set_lenience(*lenience_);
  return request;
}

}  // namespace outrider
