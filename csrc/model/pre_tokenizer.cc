#include "model/pre_tokenizer.h"

#include "core/error.h"
#include "model/json_node.h"
#include "model/utf8.h"

namespace outrider {
namespace {

// ByteLevel's own, GPT-2's (Radford et al. 2019, encoder.py).
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Digits knows Unicode 17, patterns know Unicode 16.
constexpr std::string_view kDigits = R"([\p{N}\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6}])";

}  // namespace

PreTokenizer::PreTokenizer(const JsonNode& node) {
  if (node.value().is_null()) node.refuse("a ByteLevel pre-tokenizer");
  read(node);
  if (!byte_level_) node.refuse("a chain of rules that ends in ByteLevel");
}

void PreTokenizer::read(const JsonNode& node) {
  const std::string& type = node["type"].string();
  if (type == "Sequence") {
    for (const JsonNode& element : node["pretokenizers"].elements()) read(element);
    return;
  }
  if (byte_level_) node.refuse("no rule behind ByteLevel");
  Rule rule;
  if (type == "ByteLevel") {
    byte_level_ = true;
    rule.add_prefix_space = node["add_prefix_space"].boolean();
    if (node.boolean_or("use_regex", true)) rule.pattern.emplace(kGpt2Pattern, node.where());
  } else if (type == "Digits") {
    const bool individual = node["individual_digits"].boolean();
    rule.pattern.emplace(std::string(kDigits) + (individual ? "" : "+"), node.where());
  } else if (type == "Split") {
    const JsonNode pattern = node["pattern"];
    rule.pattern.emplace(pattern.is_null("Regex") ? Regex::escape(pattern["String"].string())
                                                  : pattern["Regex"].string(),
                         pattern.where());
    const JsonNode behavior = node["behavior"];
    if (behavior.string() == "Removed") {
      (node["invert"].boolean() ? rule.keep_between : rule.keep_matches) = false;
    } else if (behavior.string() != "Isolated") {
      behavior.refuse("\"Isolated\" or \"Removed\"");
    }
  } else {
    node["type"].refuse("\"ByteLevel\", \"Digits\", \"Split\" or \"Sequence\"");
  }
  rules_.push_back(std::move(rule));
}

bool PreTokenizer::split(std::string_view text,
                         absl::FunctionRef<bool(std::string_view)> piece) const {
  std::vector<std::optional<Regex::Matcher>> matchers(rules_.size());
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (rules_[i].pattern.has_value()) matchers[i].emplace(*rules_[i].pattern);
  }
  return apply(0, matchers, text, piece);
}

bool PreTokenizer::apply(size_t rule, std::vector<std::optional<Regex::Matcher>>& matchers,
                         std::string_view text,
                         absl::FunctionRef<bool(std::string_view)> piece) const {
  if (text.empty()) return true;
  if (rule == rules_.size()) return piece(text);
  const Rule& current = rules_[rule];
  std::string prefixed;
  if (current.add_prefix_space && text[0] != ' ') {
    prefixed.reserve(1 + text.size());
    prefixed.append(" ").append(text);
    text = prefixed;
  }
  if (!current.pattern.has_value()) return apply(rule + 1, matchers, text, piece);

  const auto next = [&](size_t begin, size_t end, bool keep) {
    return !keep || apply(rule + 1, matchers, text.substr(begin, end - begin), piece);
  };
  size_t from = 0;   // where the search goes on
  size_t after = 0;  // the end of the last match
  bool matched = false;
  while (from < text.size()) {  // an empty match at the end would change no piece
    const auto match = matchers[rule]->find(text, from);
    if (!match.has_value()) break;
    // No empty match right behind another.
    if (matched && match->begin == match->end && match->end == after) {
      from += first_utf8_piece(text.substr(from)).bytes;
      continue;
    }
    if (!next(after, match->begin, current.keep_between) ||
        !next(match->begin, match->end, current.keep_matches)) {
      return false;
    }
    from = after = match->end;
    matched = true;
  }
  return next(after, text.size(), current.keep_between);
}

}  // namespace outrider
