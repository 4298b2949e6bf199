// Regex: the patterns of tokenizer.json, matched by PCRE2 as the `tokenizers` package matches them
// with Oniguruma.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace outrider {

class Regex {
 public:
  // pattern: in the part of Oniguruma's Ruby syntax that PCRE2 can be made to read in the same way.
  // Throws Error for the rest; `where` ("FILE: KEY") begins the message.
  Regex(std::string_view pattern, const std::string& where);

  // A pattern that matches `text` itself.
  static std::string escape(std::string_view text);

  struct Match {
    size_t begin, end;
  };

  // Working memory for matching, of one thread.
  class Matcher {
   public:
    explicit Matcher(const Regex& regex);
    Matcher(Matcher&&) noexcept = default;
    ~Matcher();
    // The leftmost match in `text` (valid UTF-8) that begins at byte `from` or later. Throws Error
    // where a pattern that repeats groups takes too much memory for it.
    std::optional<Match> find(std::string_view text, size_t from);

   private:
    struct Scratch;
    const Regex* regex_;
    std::unique_ptr<Scratch> scratch_;
  };

  // What PCRE2 reads for `pattern`.
  static std::string to_pcre2(std::string_view pattern, const std::string& where);

 private:
  std::shared_ptr<const void> code_;  // pcre2_code
};

}  // namespace outrider
