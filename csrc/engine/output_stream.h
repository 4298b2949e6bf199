// OutputStream: one request's tokens on their way out. Finds the end (EOS, stop ids, stop strings,
// max_tokens) token by token, so that it does not depend on how many tokens a step emits; holds
// back text that may yet belong to a stop string.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "model/detokenizer.h"
#include "model/tokenizer.h"

namespace outrider {

class OutputStream {
 public:
  // max_tokens: most tokens of the answer, ≥ 1. `tokenizer` outlives the stream.
  OutputStream(const Tokenizer& tokenizer, const SamplingParams& sampling,
               std::vector<int32_t> eos_token_ids, int64_t max_tokens);

  // Tokens that the client has already, text and all: the answer goes on behind them, unless it
  // ends with them (finished()). Before any push().
  void resume(const std::vector<int32_t>& emitted);

  // Takes the next token; false once the answer has ended (with this token: it counts). Not to be
  // called after that. logprobs: sent with the token; empty where none are wanted.
  bool push(int32_t token, bool drafted, std::optional<TokenLogprobs> logprobs = {});

  // What may be sent since the last call: whole UTF-8 that no stop string can claim, and the tokens
  // whose text it completes.
  Chunk take();

  bool finished() const { return finished_; }
  FinishReason finish_reason() const { return finish_reason_; }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  struct HeldToken {
    int32_t id;
    bool drafted;
    int64_t text_end;  // sent with the text up to here
    std::optional<TokenLogprobs> logprobs;
  };

  void finish(FinishReason reason);
  // Appends text and looks for a stop string in what is held; true where one is found (the text is
  // cut there).
  bool append(const std::string& text);

  Detokenizer detokenizer_;
  const Tokenizer* tokenizer_;
  std::vector<std::string> stop_;
  std::vector<int32_t> stop_ids_;  // of the request, and EOS unless ignored
  int64_t max_tokens_;
  int64_t num_tokens_ = 0;
  std::string held_;         // text not sent yet
  size_t sendable_ = 0;      // bytes of held_ that no stop string can claim
  int64_t text_length_ = 0;  // bytes of all text so far
  size_t resumed_ = 0;       // bytes at the front of held_ that the client has already
  std::deque<HeldToken> tokens_;
  bool finished_ = false;
  FinishReason finish_reason_ = FinishReason::length;
};

}  // namespace outrider
