// OutputStream: one answer's tokens on their way out. Finds stop strings token by token, so that
// the end does not depend on how many tokens a step emits, and holds back text that may yet belong
// to one. Where an answer ends by its tokens, TokenEnd has found out.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/token_end.h"
#include "model/detokenizer.h"
#include "model/tokenizer.h"

namespace outrider {

class OutputStream {
 public:
  // stop: strings, none of them empty. `tokenizer` outlives the stream.
  OutputStream(const Tokenizer& tokenizer, std::vector<std::string> stop);

  // Tokens that the client has already, text and all: the answer goes on behind them, unless it
  // ends with them (finished()). Before any push(). They go through `end` as well.
  void resume(const std::vector<int32_t>& emitted, TokenEnd& end);

  // Takes the next token; false once the answer has ended (with this token: it counts). Not to be
  // called after that. end: what TokenEnd said of the token. logprobs: sent with the token; empty
  // where none are wanted.
  bool push(int32_t token, TokenOrigin origin, std::optional<FinishReason> end,
            std::optional<TokenLogprobs> logprobs = {});

  // The answer ends with what there is: nothing is held back any more.
  void cut();

  // What may be sent since the last call: whole UTF-8 that no stop string can claim, and the tokens
  // whose text it completes.
  Chunk take();

  bool finished() const { return finished_; }
  FinishReason finish_reason() const { return finish_reason_; }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  struct HeldToken {
    int32_t id;
    TokenOrigin origin;
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
