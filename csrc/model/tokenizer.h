// Tokenizer: byte-level BPE as a Hugging Face directory's tokenizer.json describes it. Token for
// token equal to the `tokenizers` package; what it cannot do in the same way it refuses when it
// loads, by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/added_tokens.h"
#include "model/bpe.h"
#include "model/normalizer.h"
#include "model/pre_tokenizer.h"

namespace outrider {

class JsonNode;

// What the post-processor puts around a text.
struct SpecialAddition {
  std::vector<int32_t> prefix, suffix;
};

// Immutable once loaded: every method may be called from any number of threads at once.
class Tokenizer {
 public:
  // Throws Error naming tokenizer.json and the key for whatever is not supported or inconsistent.
  static Tokenizer load(const std::filesystem::path& directory);

  // text: UTF-8, at most 2^31 - 1 bytes. Callers check it; what is ill-formed all the same is read
  // as U+FFFD. add_special_tokens: whether the post-processor adds its own (a BOS, say). Special
  // tokens that are written in the text are recognised either way. max_tokens: that are of use;
  // where there are more, at least one of them is returned, and no further piece of the text is
  // read.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true,
                              int64_t max_tokens = INT64_MAX) const;

  // The bytes of a token as they stand in the text; "" for special tokens and for ids that no token
  // has (a model may have more logits than its tokenizer has tokens). id: at least 0.
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;
  // The same bytes, or what a special token is called; "" for ids that no token has.
  std::string_view token(int32_t id) const;

  // 1 + the largest id.
  int32_t vocab_size() const { return static_cast<int32_t>(tokens_.size()); }

  // The id of a token as tokenizer.json writes it.
  std::optional<int32_t> token_to_id(std::string_view token) const;

 private:
  struct Token {
    std::string content;
    bool special = false;
  };

  explicit Tokenizer(const JsonNode& file);
  void read_tokens(const JsonNode& file, const std::vector<AddedToken>& added);

  Vocabulary vocabulary_;  // with the added tokens
  Bpe bpe_;
  PreTokenizer pre_tokenizer_;
  Normalizer normalizer_;
  AddedTokens in_text_;        // looked for in the text as it came
  AddedTokens in_normalized_;  // looked for in the rest, normalized
  std::vector<Token> tokens_;  // by id
  SpecialAddition addition_;
};

}  // namespace outrider
