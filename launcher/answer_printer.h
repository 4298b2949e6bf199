// AnswerPrinter: an answer on its way to the terminal: text as it comes, or one JSON object.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "outrider/v1/generation.pb.h"

namespace outrider {

struct AnswerFormat {
  bool json = false;
  bool stats = true;    // text: a line about speculation on stderr
  bool colour = false;  // text: drafted tokens stand out

  void add_to(CLI::App& command);
};

class AnswerPrinter {
 public:
  // n: how many answers the request asked for. The first is printed as it comes, the others behind
  // it.
  AnswerPrinter(const AnswerFormat& format, int n) : format_(format), answers_(std::max(n, 1)) {}

  void chunk(const v1::Chunk& chunk);
  void complete(const v1::Complete& complete);

  bool started() const { return started_; }

 private:
  void print_all();

  AnswerFormat format_;
  bool started_ = false;
  size_t num_complete_ = 0;
  std::vector<v1::GenerateOnceResponse>
      answers_;  // by index; coloured text where that is asked for
};

// "accepted 12 of 30 drafted tokens (40.0 %), 2.10 tokens a step, …", and what speculation brought
// and whether an objective was met, where there is something to say.
std::string summary(const v1::Complete& complete);

// The object of --format json, without a line break: the answer, and in `others` those behind it.
std::string to_json(const std::vector<v1::GenerateOnceResponse>& answers);

// `text` with its drafted tokens set off by terminal escapes.
std::string coloured(const v1::Chunk& chunk);

}  // namespace outrider
