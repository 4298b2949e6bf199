// The flags of `generate`, `chat`, `run` and `loadtest` that make a GenerateRequest: every
// parameter under its own name.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "outrider/v1/generation.pb.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace outrider {

class RequestFlags {
 public:
  // All that one request takes.
  void add_to(CLI::App& command);
  // What does not belong to one prompt: all but the prompt or its ids, the request's name, its
  // priority and the seed.
  void add_parameters_to(CLI::App& command);
  // What holds for every answer of a conversation: how tokens are chosen, priority and seed.
  void add_conversation_to(CLI::App& command);

  // What was given, unchecked: what is wrong with it is the server's to say. Throws
  // CLI::RequiredError where there is neither a prompt nor token ids.
  v1::GenerateRequest request() const;
  // The same without anything to answer.
  v1::GenerateRequest parameters() const;
  // The same with this prompt, this conversation, or these token ids.
  v1::GenerateRequest request_for(const std::string& prompt) const;
  v1::GenerateRequest request_for(const v1::Chat& conversation) const;
  v1::GenerateRequest request_for(const std::vector<int32_t>& input_ids) const;

 private:
  void add_choice_to(CLI::App& command);
  void add_order_and_seed_to(CLI::App& command);
  // Adds a flag for lists of token ids.
  static CLI::Option* add_ids_to(CLI::App& command, const std::string& flag,
                                 std::vector<int32_t>& ids, const std::string& what);
  // Texts as 123:-5, each of another token. Throws CLI::ValidationError.
  void read_logit_bias(const std::vector<std::string>& texts);

  std::optional<std::string> prompt_;
  std::vector<int32_t> input_ids_;
  bool raw_ = false;
  std::optional<std::string> request_id_;
  std::optional<int32_t> priority_;
  std::vector<int32_t> emitted_token_ids_;
  std::optional<float> temperature_, top_p_, min_p_;
  std::optional<float> repetition_penalty_, presence_penalty_, frequency_penalty_;
  std::optional<uint64_t> seed_;
  std::optional<int32_t> top_k_, max_tokens_, min_tokens_, n_, logprobs_, prompt_logprobs_;
  std::map<int32_t, float> logit_bias_;
  std::vector<std::string> stop_;
  std::vector<int32_t> stop_token_ids_;
  bool ignore_eos_ = false;
  std::optional<std::string> mode_, drafter_;
  std::optional<int32_t> num_speculative_tokens_, num_alternatives_;
  std::optional<float> lenience_;
  std::optional<double> tpot_slo_ms_;
};

}  // namespace outrider
