// PreTokenizer: cuts text into the pieces within which BPE merges, by a chain of rules ending in
// ByteLevel.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "model/regex.h"

namespace outrider {

class JsonNode;

class PreTokenizer {
 public:
  // node: "pre_tokenizer" of tokenizer.json. Throws Error for a rule that is not known.
  explicit PreTokenizer(const JsonNode& node);

  // Hands the non-empty pieces of `text` (valid UTF-8) to `piece`, in order, until that returns
  // false; returns whether it never did. They are views that last for the call. Without a prefix
  // space and dropped matches the pieces joined are the text.
  bool split(std::string_view text, absl::FunctionRef<bool(std::string_view)> piece) const;

 private:
  // Each rule cuts what the one before it left.
  struct Rule {
    bool add_prefix_space = false;  // where the text does not begin with one
    std::optional<Regex> pattern;   // none: the text stays whole
    bool keep_matches = true;
    bool keep_between = true;  // what lies between the matches
  };

  void read(const JsonNode& node);
  bool apply(size_t rule, std::vector<std::optional<Regex::Matcher>>& matchers,
             std::string_view text, absl::FunctionRef<bool(std::string_view)> piece) const;

  std::vector<Rule> rules_;
  bool byte_level_ = false;  // the last rule so far is ByteLevel
};

}  // namespace outrider
