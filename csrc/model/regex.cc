#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/regex.h"

#include <absl/strings/str_cat.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <new>

#include "core/error.h"
#include "model/json_file.h"
#include "model/unicode_newer.h"

namespace outrider {
namespace {

// Of one match, for patterns that repeat groups; those of the common tokenizers repeat characters.
constexpr uint32_t kMostHeapKib = 256 << 10;

// Members of a character class: the characters newer than PCRE2's tables whose category is `name`
// ("L", "Nd").
std::string newer_members(std::string_view name) {
  std::string members;
  int32_t first = 1, last = 0;  // an empty range
  const auto flush = [&] {
    if (first > last) return;
    std::array<char, 32> range;
    std::snprintf(range.data(), range.size(), "\\x{%X}-\\x{%X}", static_cast<unsigned>(first),
                  static_cast<unsigned>(last));
    members += range.data();
  };
  for (const CategoryRange& range : kNewerCategories) {
    if (!std::string_view(range.category).starts_with(name)) continue;
    if (range.first != last + 1) {
      flush();
      first = range.first;
    }
    last = range.last;
  }
  flush();
  return members;
}

bool is_alphanumeric(char c) {
  return ('0' <= c && c <= '9') || ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z');
}

// Copies a pattern, rewriting what the engines read differently and refusing what cannot be
// rewritten.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      if (pattern_[at_] == '\\') {
        escape();
      } else if (in_class_) {
        class_character();
      } else {
        character();
      }
    }
    return std::move(out_);
  }

 private:
  std::string_view rest() const { return pattern_.substr(at_); }
  void copy(size_t bytes) {
    out_ += rest().substr(0, bytes);
    at_ += bytes;
  }
  void put(std::string_view text, size_t consumed) {
    out_ += text;
    at_ += consumed;
  }
  [[noreturn]] void refuse(size_t bytes) const {
    throw Error(where_ + ": the pattern has " + quote(rest().substr(0, bytes)) + " at byte " +
                std::to_string(at_) + ", which is not supported");
  }

  void escape() {
    if (rest().size() < 2) refuse(1);
    const char c = rest()[1];
    switch (c) {
      case 's':  // PCRE2 counts U+180E as space, Oniguruma does not
        return put("\\p{White_Space}", 2);
      case 'S':
        return put("\\P{White_Space}", 2);
      case 'd':
        return category("Nd", false, 2);
      case 'p':
      case 'P':
        return property(c == 'P');
      case 'r':
      case 'n':
      case 't':
      case 'f':
        return copy(2);
      case 'x':  // without braces Oniguruma reads one byte, not one character
        return hexadecimal("\\x{", "}");
      case 'u':
        return hexadecimal("\\u", "");
      default:
        if (is_alphanumeric(c) || (c & 0x80) != 0) refuse(2);
        return copy(2);
    }
  }

  // \x{1F600} or \u00E9: `opening`, digits, `closing`.
  void hexadecimal(std::string_view opening, std::string_view closing) {
    const size_t digits = closing.empty() ? 4 : rest().find(closing) - opening.size();
    const std::string_view number = rest().substr(std::min(opening.size(), rest().size()), digits);
    if (!rest().starts_with(opening) || number.empty() || number.size() != digits ||
        number.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      refuse(2);
    }
    put("\\x{" + std::string(number) + "}", opening.size() + digits + closing.size());
  }

  // \p{L}: a general category of one or two letters.
  void property(bool negated) {
    const size_t close = rest().find('}');
    if (close != 4 && close != 5) refuse(std::min<size_t>(close, 24));
    const std::string_view name = rest().substr(3, close - 3);
    if (rest()[2] != '{' || std::string_view("LMNPSZ").find(name[0]) == std::string_view::npos) {
      refuse(close + 1);
    }
    category(name, negated, close + 1);
  }

  void category(std::string_view name, bool negated, size_t consumed) {
    const std::string members = newer_members(name);
    const std::string known = "\\p{" + std::string(name) + "}";
    if (members.empty()) return put(negated ? "\\P" + known.substr(2) : known, consumed);
    if (!in_class_) return put((negated ? "[^" : "[") + known + members + "]", consumed);
    if (negated) refuse(consumed);
    put(known + members, consumed);
  }

  void class_character() {
    const char c = rest()[0];
    if (c == '[' || rest().starts_with("&&"))
      refuse(2);  // Oniguruma: nested classes, intersections
    in_class_ = c != ']';
    copy(1);
  }

  void character() {
    switch (rest()[0]) {
      case '[': {
        const size_t opening = rest().starts_with("[^") ? 2 : 1;
        if (rest().substr(opening).starts_with("]")) refuse(opening + 1);
        in_class_ = true;
        return copy(opening);
      }
      case '^':  // Oniguruma: of every line
      case '$':
        refuse(1);
      case '(':
        return group();
      case '{':
        return interval();
      default:
        return copy(1);
    }
  }

  void group() {
    if (!rest().starts_with("(?")) return copy(1);
    for (std::string_view opening : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (rest().starts_with(opening)) return copy(opening.size());
    }
    refuse(4);
  }

  // {n}, {n,} and {n,m}. A + or ? behind one means different things to the engines.
  void interval() {
    const size_t close = rest().find('}');
    if (close == std::string_view::npos || rest()[1] < '0' || rest()[1] > '9' ||
        rest().find_first_not_of("0123456789,", 1) != close) {
      refuse(1);
    }
    const std::string_view behind = rest().substr(close + 1, 1);
    if (behind == "+" || behind == "?") refuse(close + 2);
    copy(close + 1);
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

const pcre2_code* pcre2_code_of(const std::shared_ptr<const void>& code) {
  return static_cast<const pcre2_code*>(code.get());
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> message{};
  pcre2_get_error_message(error, message.data(), message.size());
  return reinterpret_cast<const char*>(message.data());
}

}  // namespace

std::string Regex::to_pcre2(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

std::string Regex::escape(std::string_view text) {
  std::string pattern;
  for (char c : text) {
    if (!is_alphanumeric(c) && (c & 0x80) == 0 && c > ' ') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

Regex::Regex(std::string_view pattern, const std::string& where) {
  const std::string translated = to_pcre2(pattern, where);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get());
  if (code == nullptr) {
    throw Error(where + ": expected a regular expression; found one with the fault \"" +
                message_of(error) + "\"");
  }
  code_ = std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
  // Without a JIT for this machine matching interprets: the same matches, only slower.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

struct Regex::Matcher::Scratch {
  pcre2_match_data* data;
  pcre2_match_context* context;
};

Regex::Matcher::Matcher(const Regex& regex)
    : regex_(&regex),
      scratch_(
          new Scratch{pcre2_match_data_create_from_pattern(pcre2_code_of(regex.code_), nullptr),
                      pcre2_match_context_create(nullptr)}) {
  if (scratch_->data == nullptr || scratch_->context == nullptr) throw std::bad_alloc();
  // The pattern is the checkpoint's, to be trusted; a long text must not fail.
  pcre2_set_match_limit(scratch_->context, UINT32_MAX);
  pcre2_set_depth_limit(scratch_->context, UINT32_MAX);
  pcre2_set_heap_limit(scratch_->context, kMostHeapKib);
}

Regex::Matcher::~Matcher() {
  if (scratch_ == nullptr) return;
  pcre2_match_data_free(scratch_->data);
  pcre2_match_context_free(scratch_->context);
}

std::optional<Regex::Match> Regex::Matcher::find(std::string_view text, size_t from) {
  const auto run = [&](uint32_t options) {
    // An empty view may hold a null pointer.
    const char* subject = text.empty() ? "" : text.data();
    return pcre2_match(pcre2_code_of(regex_->code_), reinterpret_cast<PCRE2_SPTR>(subject),
                       text.size(), from, PCRE2_NO_UTF_CHECK | options, scratch_->data,
                       scratch_->context);
  };
  int result = run(0);
  // The JIT's stack is small; the interpreter's is the heap.
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = run(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
  if (result < 0) {
    PCRE2_UCHAR8 why[128] = "";
    pcre2_get_error_message(result, why, sizeof why);
    throw Error(absl::StrCat("a text of ", text.size(),
                             " bytes is beyond the pattern: ", reinterpret_cast<const char*>(why)));
  }
  CHECK(result > 0);
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(scratch_->data);
  return Match{span[0], span[1]};
}

}  // namespace outrider
