// AnswerPrinter: an answer on its way to the terminal: text as it comes, or one JSON object.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "engine/request.h"
#include "outrider/v1/generation.pb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace outrider {

// When text is coloured by where its tokens come from.
enum class Colour {
  automatic,  // where stdout is a terminal, and NO_COLOR is unset or empty
  always,
  never,
};

struct AnswerFormat {
  bool json = false;
  bool stats = true;  // text: a line about speculation on stderr
  Colour colour = Colour::automatic;

  // All of it.
  void add_to(CLI::App& command);
  // What concerns text: --stats and --color.
  void add_text_flags_to(CLI::App& command);

  // Asks the environment and stdout; false for JSON.
  bool colours() const;
  // Whether to say what the colours mean, on stderr.
  bool legend() const;
};

class AnswerPrinter {
 public:
  // n: how many answers the request asked for; there are none where that is out of its range. The
  // first is printed as it comes, the others behind it.
  AnswerPrinter(const AnswerFormat& format, int n)
      : format_(format),
        colours_(format.colours()),
        answers_(std::clamp(n, 1, Limits().max_choices)) {}

  void chunk(const v1::Chunk& chunk);
  void complete(const v1::Complete& complete);
  // Where the call fails, before anything is said of that: prints what there is of the answers, as
  // text, and what their colours mean.
  void cut_off();

  bool started() const { return started_; }

 private:
  void print_all();
  // What is behind the first answer's text: the others', and on stderr what the colours mean.
  void print_others();

  AnswerFormat format_;
  bool colours_;
  bool started_ = false;
  size_t num_complete_ = 0;
  std::vector<v1::GenerateOnceResponse> answers_;  // by index; coloured text where colours_ is set
};

// "accepted 12 of 30 drafted tokens (40.0 %), 2.10 tokens a step, …", and what speculation brought
// and whether an objective was met, where there is something to say. num_new: tokens that this call
// brought, of a resumed answer not all.
std::string summary(const v1::Complete& complete, int64_t num_new);

// "25 tokens, 19.2 ms a token, 2.10 tokens a step": the time of the tokens behind the first, where
// there are any.
std::string short_summary(const v1::Complete& complete);

// The object of --format json, without a line break: the answer, and in `others` those behind it.
std::string to_json(const std::vector<v1::GenerateOnceResponse>& answers);

// The chunk's text with terminal escapes: each token in the colour of its origin, tokens where
// nothing was drafted in none. A character has the colour of the token that began it. Text that
// came without its token has none: text is held back only where it may begin a stop string, tokens
// until all of their text is there.
std::string coloured(const v1::Chunk& chunk);

// What the colours mean, in these colours; one line without its break.
std::string colour_legend();

}  // namespace outrider
