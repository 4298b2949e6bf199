// Normalizer: the Unicode normal forms that a tokenizer.json may ask for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace outrider {

class JsonNode;

class Normalizer {
 public:
  // node: "normalizer" of tokenizer.json, null for none. Throws Error for one that is not known.
  explicit Normalizer(const JsonNode& node);

  bool empty() const { return forms_.empty(); }
  std::string operator()(std::string_view text) const;  // text: valid UTF-8

 private:
  void read(const JsonNode& node);

  std::vector<int> forms_;  // utf8proc options, applied in turn
};

}  // namespace outrider
