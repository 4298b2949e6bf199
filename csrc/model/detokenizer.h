// Detokenizer: the text of one sequence, token by token.
#pragma once

#include <cstdint>
#include <string>

#include "model/tokenizer.h"

namespace outrider {

// What push() and finish() return is whole UTF-8; joined it is what Hugging Face's decode() makes
// of all the ids when it skips special tokens, each maximal ill-formed part being one U+FFFD. A
// value: a copy is a state to come back to.
class Detokenizer {
 public:
  // `tokenizer` outlives the detokenizer.
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // The text that became whole with this token; "" while the bytes of a character are held.
  // id: in [0, vocab_size()).
  std::string push(int32_t id);

  // What is still held, as U+FFFD. The detokenizer is as new afterwards.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string held_;  // the beginning of a character, at most 3 bytes
};

}  // namespace outrider
