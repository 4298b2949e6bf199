#include "model/detokenizer.h"

#include "model/utf8.h"

namespace outrider {

std::string Detokenizer::push(int32_t id) {
  held_ += tokenizer_->token_bytes(id);
  std::string text;
  const size_t incomplete = append_utf8(held_, &text);
  held_.erase(0, held_.size() - incomplete);
  return text;
}

std::string Detokenizer::finish() {
  const std::string text(held_.empty() ? std::string_view() : kReplacementCharacter);
  held_.clear();
  return text;
}

}  // namespace outrider
