#include "model/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "model/unicode_newer.h"

namespace outrider {
namespace {

struct Character {
  int32_t code_point;
  size_t bytes;
};

Character first_character(std::string_view text) {
  utf8proc_int32_t code_point = 0;
  const auto bytes = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                      static_cast<utf8proc_ssize_t>(text.size()), &code_point);
  return {code_point, static_cast<size_t>(bytes)};
}

Character last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while ((static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return first_character(text.substr(begin));
}

// Unicode's White_Space.
bool is_space(int32_t c) {
  return (0x09 <= c && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (0x2000 <= c && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// The two letters of a general category, by Unicode 16.
std::string_view category(int32_t c) {
  for (const CategoryRange& range : kNewerCategories) {
    if (range.first <= c && c <= range.last) return range.category;
  }
  return utf8proc_category_string(c);
}

// \w as Unicode's annex on regular expressions has it (UTS 18, annex C): alphabetic, a mark, a
// decimal digit, a connector or a joiner.
bool is_word(int32_t c) {
  if (c < 0x80) return c == '_' || ('0' <= c && c <= '9') || ('a' <= (c | 32) && (c | 32) <= 'z');
  const std::string_view name = category(c);
  const bool enclosed_letter = (0x24B6 <= c && c <= 0x24E9) || (0x1F130 <= c && c <= 0x1F149) ||
                               (0x1F150 <= c && c <= 0x1F169) || (0x1F170 <= c && c <= 0x1F189);
  return name[0] == 'L' || name[0] == 'M' || name == "Nd" || name == "Nl" || name == "Pc" ||
         enclosed_letter || c == 0x200C || c == 0x200D;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  token_at_.push_back(kNone);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    int32_t node = 0;
    for (char c : tokens_[i].content) {
      const uint64_t key = static_cast<uint64_t>(node) * 256 + static_cast<uint8_t>(c);
      const auto [child, is_new] =
          children_.try_emplace(key, static_cast<int32_t>(token_at_.size()));
      if (is_new) token_at_.push_back(kNone);
      node = child->second;
    }
    if (token_at_[node] == kNone) token_at_[node] = static_cast<int32_t>(i);
    begins_[static_cast<uint8_t>(tokens_[i].content[0])] = true;
  }
}

const AddedToken* AddedTokens::longest_at(std::string_view text) const {
  const AddedToken* longest = nullptr;
  int32_t node = 0;
  for (char c : text) {
    const auto child = children_.find(static_cast<uint64_t>(node) * 256 + static_cast<uint8_t>(c));
    if (child == children_.end()) break;
    node = child->second;
    if (token_at_[node] != kNone) longest = &tokens_[token_at_[node]];
  }
  return longest;
}

bool AddedTokens::split(std::string_view text, absl::FunctionRef<bool(std::string_view)> between,
                        absl::FunctionRef<bool(int32_t)> token) const {
  size_t done = 0;  // what has been handed over
  for (size_t at = 0; at < text.size();) {
    const AddedToken* found =
        begins_[static_cast<uint8_t>(text[at])] ? longest_at(text.substr(at)) : nullptr;
    if (found == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at += found->content.size();
    if (found->single_word &&
        ((begin > 0 && is_word(last_character(text.substr(0, begin)).code_point)) ||
         (end < text.size() && is_word(first_character(text.substr(end)).code_point)))) {
      continue;
    }
    if (found->lstrip) {
      begin = std::max(begin, done);
      while (begin > done) {
        const Character before = last_character(text.substr(0, begin));
        if (!is_space(before.code_point)) break;
        begin -= before.bytes;
      }
    }
    if (found->rstrip) {
      while (end < text.size()) {
        const Character behind = first_character(text.substr(end));
        if (!is_space(behind.code_point)) break;
        end += behind.bytes;
      }
    }
    if (done < begin && !between(text.substr(done, begin - done))) return false;
    // A token of white space may lie within what the one before it has swallowed.
    if (begin < end && !token(found->id)) return false;
    done = std::max(begin, end);
  }
  return done >= text.size() || between(text.substr(done));
}

}  // namespace outrider
